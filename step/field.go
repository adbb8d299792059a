package step

// Limits on what a client may ask for. They bound what noded stores and what
// stepd and the tasks must carry; none is a site's policy.
const (
	// NameMax bounds a step's name, in bytes.
	NameMax = 255
	// PathMax bounds a path or a file name pattern, in bytes (PATH_MAX with its NUL).
	PathMax = 4095
	// TasksMax is the highest number of tasks that a request may name.
	TasksMax = 65533
	// AcctgFreqMax is the longest time between samples, in seconds, as in Slurm.
	AcctgFreqMax = 65533
)

// A FieldError says which field of a Request or Spec is wrong, by its JSON
// name, and why.
type FieldError struct {
	Field   string
	Problem string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }
