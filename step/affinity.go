package step

// AffinityConf is what the site says about task/affinity: TaskPluginParam.
type AffinityConf struct {
	// Default is the type for steps that ask for none: CPUBindNone, or one that is
	// dealt, as CPUBindCores. It goes before the automatic binding.
	Default CPUBindKind `json:"default,omitempty"`
	// Autobind is the type where the automatic binding finds no match (Autobind=).
	Autobind CPUBindKind `json:"autobind,omitempty"`
	// Verbose reports each task's binding where the user does not say.
	Verbose bool `json:"verbose,omitempty"`
	// Off says why no task can be bound to CPUs here: their numbers are not the
	// machine's. "" lets them be bound.
	Off string `json:"off,omitempty"`
}
