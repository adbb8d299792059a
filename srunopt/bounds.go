package srunopt

import (
	"stepd/step"
)

// Bounds on what a client may ask for. They limit what noded stores and what stepd and the
// tasks carry; none is a site's policy.
const (
	// NameMax bounds a step's name, in bytes.
	NameMax = 255
	// PathMax bounds a path or a file name pattern, in bytes (PATH_MAX with its NUL).
	PathMax = 4095
	// acctgFreqMax is the longest time between samples, in seconds, as in Slurm.
	acctgFreqMax = 65533
)

// Bounds on a user's words to plugins, and on a batch script.
const (
	// OptionMax bounds the value of one plugin option, in bytes.
	OptionMax = 1 << 20
	// OptionsMax bounds the options of one step.
	OptionsMax = 1024
	// jobControlMax bounds the job control environment, in bytes. A variable that is
	// too long for a script's environment reaches the plugins alone.
	jobControlMax = 4 << 20
	// jobControlEntries bounds its variables, options among them.
	jobControlEntries = 4096
	// ScriptMax bounds a batch script, in bytes (Slurm's max_script_size).
	ScriptMax = 4 << 20
)

// terminalChars is the number of a terminal's control characters (NCCS of the kernel).
const terminalChars = 19

// appsMax bounds the commands of one step: each task may have its own.
const appsMax = step.TasksMax

// WaitForever is a step.Request.ImmediateS without a limit.
const WaitForever = -1

// OptionVariable is the variable that carries a plugin's option in an environment:
// _SLURM_SPANK_OPTION_<plugin>_<name>, with all but letters and digits as '_'
// (spank-behaviour §2).
func OptionVariable(plugin, name string) string {
	b := []byte(plugin + "_" + name)
	for i, c := range b { // bytes: what is no ASCII has one '_' for each
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			b[i] = '_'
		}
	}
	return OptionPrefix + string(b)
}

// OptionPrefix begins the variables of OptionVariable.
const OptionPrefix = "_SLURM_SPANK_OPTION_"

// JobEnvPrefix begins the variables by which a job's commands see the job
// control environment, options of the outer command included (spank-behaviour §2).
const JobEnvPrefix = "SLURM_SPANK_"
