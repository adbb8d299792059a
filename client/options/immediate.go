package options

import (
	"fmt"
	"strconv"

	"github.com/spf13/pflag"

	"stepd/srunopt"
)

// Immediate is how long a request waits for what it needs.
type Immediate string

func (o *Immediate) bind(f *pflag.FlagSet) {
	f.StringVarP((*string)(o), "immediate", "I", "", "wait so many seconds for what is missing, then give up; inf: as long as this command lives (default: 0; in a job: inf)")
	f.Lookup("immediate").NoOptDefVal = "1" // srun's
}

// Seconds is how long to wait: nil is the default.
func (o Immediate) Seconds() (*int, error) {
	if o == "" {
		return nil, nil
	}
	if o == "inf" {
		return new(srunopt.WaitForever), nil
	}
	n, err := strconv.ParseUint(string(o), 10, 31)
	if err != nil {
		return nil, fmt.Errorf("--immediate=%s: want a number of seconds, or inf", string(o))
	}
	return new(int(n)), nil
}
