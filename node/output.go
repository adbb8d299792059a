package node

import (
	"errors"
	"io"
	"os"

	"stepd/api"
	"stepd/step"
)

// Output opens what stepd has left of a step's output; the caller closes it. The file is whole:
// stepd has renamed it.
func (n steps) Output(id step.ID) (output io.ReadCloser, size int64, err error) {
	rec, err := n.Step(id)
	if err != nil {
		return nil, 0, err
	}
	if !rec.State.Final() {
		return nil, 0, api.Errorf(api.FailedPrecondition, "step %s is %s: its stepd has its output", rec.ID, rec.State)
	}
	f, err := n.spool.Open(n.spool.Output(rec.ID))
	if errors.Is(err, os.ErrNotExist) {
		return nil, 0, api.Errorf(api.NotFound, "nothing is kept of the output of step %s", rec.ID)
	}
	if err != nil {
		return nil, 0, api.Errorf(api.Internal, "cannot open kept output: %v", err)
	}
	if size, err = f.Size(); err != nil {
		f.Close()
		return nil, 0, api.Errorf(api.Internal, "cannot open kept output: %v", err)
	}
	return f, size, nil
}
