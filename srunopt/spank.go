package srunopt

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
