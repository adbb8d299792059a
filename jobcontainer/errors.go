package jobcontainer

import "strings"

// failures is several errors in one line: undo and sweeps go on after the
// first, and a log line must hold them all.
type failures []error

func (f failures) Error() string {
	texts := make([]string, len(f))
	for i, err := range f {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (f failures) Unwrap() []error { return f }

// join returns nil, the only error there is, or all of them.
func join(errs ...error) error {
	var f failures
	for _, err := range errs {
		if err != nil {
			f = append(f, err)
		}
	}
	switch len(f) {
	case 0:
		return nil
	case 1:
		return f[0]
	}
	return f
}
