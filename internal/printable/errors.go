package printable

import "strings"

// failures are several errors on one line.
type failures []error

func (f failures) Error() string {
	texts := make([]string, len(f))
	for i, err := range f {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (f failures) Unwrap() []error { return f }

// JoinErrors is errors.Join on one line, with "; " between the texts, for a reason or a
// line of a log. It returns nil where all errors are nil, and a single error unchanged.
func JoinErrors(errs ...error) error {
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
