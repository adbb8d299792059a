package step

import "errors"

// ErrEnded is the answer to a client that wants to see the output of an ended step.
var ErrEnded = errors.New("the step has ended")

// FieldError names the field of a Request or Spec that is wrong, by its JSON name, and
// the problem with it.
type FieldError struct {
	Field   string
	Problem string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }
