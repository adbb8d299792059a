package srunopt

import (
	"fmt"
	"strconv"
	"strings"
)

// ParseAcctgFreq reads srun's --acctg-freq: a number of seconds, or a list of
// TYPE=SECONDS of which "task" counts; energy, filesystem and network sample
// nothing here. nil is that the tasks' frequency is not told.
func ParseAcctgFreq(s string) (*int, error) {
	const want = "want SECONDS or task=SECONDS"
	if len(s) > NameMax {
		return nil, fmt.Errorf("%d bytes: %s", len(s), want)
	}
	var task *int
	for item := range strings.SplitSeq(s, ",") {
		kind, value, named := strings.Cut(item, "=")
		if !named {
			kind, value = "task", item
		}
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil || n > acctgFreqMax {
			return nil, fmt.Errorf("%q is no number of seconds up to %d: %s", value, acctgFreqMax, want)
		}
		switch strings.ToLower(kind) {
		case "task":
			task = new(int(n))
		case "energy", "filesystem", "network":
		default:
			return nil, fmt.Errorf("%q is none of task, energy, filesystem and network: %s", kind, want)
		}
	}
	return task, nil
}
