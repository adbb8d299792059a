package step

// Limits on what a client may ask for. They bound what noded stores and what
// stepd and the tasks must carry; none is a site's policy.
const (
	// TasksMax is the highest number of tasks that a request may name.
	TasksMax = 65533
)

// A FieldError says which field of a Request or Spec is wrong, by its JSON
// name, and why.
type FieldError struct {
	Field   string
	Problem string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }
