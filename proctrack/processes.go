package proctrack

import (
	"path/filepath"

	"stepd/step"
)

// Processes lists what is in the leaf of the step's stepd: of a job's prolog
// and epilog, which have no stepd, that is all there is. It has at most the
// first few, as an error would; a step without a cgroup has none.
func (r *Root) Processes(id step.ID) ([]Survivor, error) {
	leaf, err := openGroup(filepath.Join(r.StepDir(id), leafStepd))
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer leaf.close()
	pids, err := leaf.pids()
	if err != nil {
		return nil, err
	}
	if pids, err = livingPIDs(pids); err != nil {
		return nil, err
	}
	return newSurvivorsError("", pids, nil).Survivors, nil
}
