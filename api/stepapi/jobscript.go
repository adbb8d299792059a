package stepapi

import (
	"stepd/step"
)

// JobScript is noded's document for `stepd spank prolog|epilog`: the job_script context.
type JobScript struct {
	Schema   int            `json:"schema"`
	JobID    uint32         `json:"job_id"`
	User     step.User      `json:"user"`
	NodeName string         `json:"node_name"`
	Spank    step.SpankConf `json:"spank"`
	// Env is the plugins' own environ. It is bytes: users' words to plugins are
	// among it.
	Env [][]byte `json:"env"`
	// JobControl is the job control environment, NAME=VALUE without a prefix,
	// with options as spank.OptionVariable names them.
	JobControl [][]byte `json:"job_control"`
}

// JobScriptResult is the answer of `stepd spank prolog|epilog` to noded.
type JobScriptResult struct {
	Schema int `json:"schema"`
	// Hooks are the hooks that the stack has in its plugins, each once; nil where it
	// could not be loaded.
	Hooks []string `json:"hooks"`
	// Failure says what went wrong with a required plugin, "" if nothing did.
	Failure string `json:"failure,omitempty"`
	// Crashes are the plugins that took their host down.
	Crashes []step.PluginCrash `json:"crashes,omitempty"`
}
