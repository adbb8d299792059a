package step

// JobScript is what `stepd spank prolog|epilog` is told: the job_script context.
type JobScript struct {
	Schema   int       `json:"schema"`
	JobID    uint32    `json:"job_id"`
	User     User      `json:"user"`
	NodeName string    `json:"node_name"`
	Spank    SpankConf `json:"spank"`
	// Env is the plugins' own environ. It is bytes: what users give to plugins
	// is in it.
	Env [][]byte `json:"env"`
	// JobControl is the job control environment, NAME=VALUE without a prefix,
	// options among it as OptionVariable.
	JobControl [][]byte `json:"job_control"`
}

// JobScriptResult is what `stepd spank prolog|epilog` tells noded.
type JobScriptResult struct {
	Schema int `json:"schema"`
	// Hooks are the hooks that the stack has in its plugins, each once; nil where it
	// could not be loaded.
	Hooks []string `json:"hooks"`
	// Failure says what went wrong with a required plugin, "" if nothing did.
	Failure string `json:"failure,omitempty"`
	// Crashes are the plugins that took their host down.
	Crashes []PluginCrash `json:"crashes,omitempty"`
}
