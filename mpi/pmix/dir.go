package pmix

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// DirName is the folder below the run directory that holds a folder for each
// step with a PMIx server. It is root's: what a step's user makes lies one deeper.
const DirName = "pmix"

// folder is where the library of one step keeps its files: those by which the
// tasks find what the ranks have in common, and those by which tools find the
// server. It lies in the run directory, which tasks with a /tmp of their own see
// as well (jobcontainer/tmpfs, plugins that mount), and belongs to the user, in a
// folder that is root's.
type folder struct {
	root *os.Root // RUN/pmix
	name string
	path string
}

// makeFolder makes the step's folder. A folder that exists is left from a
// step that was killed with its stepd, and is removed first.
func makeFolder(spec *step.Spec) (*folder, error) {
	base := filepath.Join(spec.RunDir, DirName)
	if err := os.Mkdir(base, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("cannot make the folder of PMIx servers: %w", err)
	}
	root, err := os.OpenRoot(base)
	if err != nil {
		return nil, fmt.Errorf("cannot open the folder of PMIx servers: %w", err)
	}
	f := &folder{root: root, name: spec.ID.String(), path: filepath.Join(base, spec.ID.String())}
	if err := f.make(spec.User); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot make folder %q: %w", f.path, err), f.remove())
	}
	return f, nil
}

func (f *folder) make(u step.User) error {
	if err := f.root.RemoveAll(f.name); err != nil {
		return err
	}
	if err := f.root.Mkdir(f.name, 0o700); err != nil {
		return err
	}
	// No other user may rename it meanwhile: its parent is root's.
	dir, err := f.root.OpenFile(f.name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Chown(int(u.UID), int(u.GID))
}

// remove takes the folder away with all that the user has put there: beneath a
// descriptor, following no link.
func (f *folder) remove() error {
	err := f.root.RemoveAll(f.name)
	if err != nil {
		err = fmt.Errorf("cannot remove folder %q: %w", f.path, err)
	}
	return errors.Join(err, f.root.Close())
}
