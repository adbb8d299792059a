package node

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"stepd/api/stepapi"
	"stepd/internal/linux"
	"stepd/step"
)

// readResult reads the result that stepd left because no noded took it:
// a final step.Record, written by rename, so it is whole or not
// there. os.ErrNotExist is in the error when there is none.
func readResult(path string, id step.ID) (*step.Record, error) {
	f, err := linux.OpenBeneath(filepath.Dir(path), filepath.Base(path), os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open result: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, stepapi.RecordMax+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read result %q: %w", path, err)
	}
	rec, err := parseResult(b, id)
	if err != nil {
		return nil, fmt.Errorf("cannot use result %q: %w", path, err)
	}
	return rec, nil
}

func parseResult(b []byte, id step.ID) (*step.Record, error) {
	if len(b) > stepapi.RecordMax {
		return nil, fmt.Errorf("longer than %d bytes", stepapi.RecordMax)
	}
	rec := new(step.Record)
	if err := json.Unmarshal(b, rec); err != nil {
		return nil, err
	}
	if rec.ID != id {
		return nil, fmt.Errorf("it is of step %s", rec.ID)
	}
	if !isFinal(rec.State) {
		return nil, fmt.Errorf("state %.40q is not final", string(rec.State))
	}
	return rec, nil
}

// isFinal is State.Final for a word that came from outside: an unknown one is
// no state at all.
func isFinal(s step.State) bool {
	switch s {
	case step.Completed, step.Failed, step.Cancelled, step.Timeout, step.OutOfMemory, step.NodeFail:
		return true
	}
	return false
}
