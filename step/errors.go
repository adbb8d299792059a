package step

import "errors"

// ErrEnded says that a step has nothing to show any more.
var ErrEnded = errors.New("the step has ended")

// A FieldError says which field of a Request or Spec is wrong, by its JSON
// name, and why.
type FieldError struct {
	Field   string
	Problem string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }
