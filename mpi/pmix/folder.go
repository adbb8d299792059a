package pmix

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/internal/rmtree"
	"stepd/step"
	"stepd/step/launch"
)

// DirName is the folder below the run directory that holds a folder for each
// step with a PMIx server. It is root's: what a step's user makes lies one deeper.
const DirName = "pmix"

// What a step's folder may hold. The library (4.2.2) makes a dozen files there, 8 MiB until the
// ranks have put more than 4 MiB, which the fences' limit bounds to 64 MiB at a time.
const (
	folderBytes     = 128 << 20
	folderRankBytes = 64 << 10
	folderFiles     = 1024
	folderRankFiles = 16
)

// removeMax bounds the removal of what a user has put into a folder.
const removeMax = time.Minute

// folder is where the library of one step keeps its files: those by which the
// tasks find what the ranks have in common, and those by which tools find the
// server. It lies in the run directory, which tasks with a /tmp of their own see
// as well (jobcontainer/tmpfs, plugins that mount), in a folder that is root's. It is
// a small file system in memory, which belongs to the user: what the user fills is not
// the run directory, which the node's other steps need.
type folder struct {
	all  *os.File // RUN/pmix
	name string
	path string
	dir  *os.File // RUN/pmix/J.S, without what is mounted there
	root *os.File // what is mounted there
}

// makeFolder makes the step's folder in our own mount namespace. A folder that exists is left
// from a step that was killed with its stepd, and is removed first.
func makeFolder(spec *step.Spec) (*folder, error) {
	base := filepath.Join(spec.RunDir, DirName)
	if err := os.Mkdir(base, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("cannot make the folder of PMIx servers: %w", err)
	}
	all, err := os.Open(base)
	if err != nil {
		return nil, fmt.Errorf("cannot open the folder of PMIx servers: %w", err)
	}
	f := &folder{all: all, name: spec.MPIKey(), path: filepath.Join(base, spec.MPIKey())}
	if err := f.make(spec.User, spec.NTasks); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot make folder %q: %w", f.path, err), f.remove())
	}
	return f, nil
}

func (f *folder) make(u step.User, ranks int) (err error) {
	if err := f.removeAll(); err != nil {
		return err
	}
	if err := os.Mkdir(f.path, 0o700); err != nil {
		return err
	}
	if f.dir, err = openPath(f.path); err != nil {
		return err
	}
	number := func(n int) string { return strconv.Itoa(n) }
	f.root, err = linux.NewTmpfs("stepd-pmix", unix.MOUNT_ATTR_NOEXEC,
		[2]string{"size", number(folderBytes + ranks*folderRankBytes)},
		[2]string{"nr_inodes", number(folderFiles + ranks*folderRankFiles)},
		[2]string{"mode", "700"}, [2]string{"uid", number(int(u.UID))}, [2]string{"gid", number(int(u.GID))})
	if err != nil {
		return err
	}
	return linux.Attach(f.root, f.dir)
}

// openPath opens a directory for what is done to its name alone.
func openPath(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// show mounts the folder in another mount namespace, where it is not seen yet.
func (f *folder) show(namespace *os.File) error {
	tree, err := linux.CloneMount(f.root)
	if err != nil {
		return fmt.Errorf("cannot show folder %q in another mount namespace: %w", f.path, err)
	}
	defer tree.Close()
	done := make(chan error, 1)
	go func() { // ends with its thread, which the namespace keeps
		runtime.LockOSThread()
		err := linux.EnterMounts(namespace)
		if err == nil {
			err = f.attach(tree)
		}
		done <- err
	}()
	if err := <-done; err != nil {
		return fmt.Errorf("cannot show folder %q in another mount namespace: %w", f.path, err)
	}
	return nil
}

// attach mounts a copy at the folder's path as the calling thread sees it: nowhere else than on
// the folder, whatever a plugin has made of that path.
func (f *folder) attach(tree *os.File) error {
	target, err := openPath(f.path)
	if err != nil {
		return err
	}
	defer target.Close()
	there, err := target.Stat()
	if err != nil {
		return err
	}
	if same(f.root, there) { // mounts propagate to the namespace
		return nil
	}
	if !same(f.dir, there) {
		return fmt.Errorf("%q is another directory there", f.path)
	}
	return linux.Attach(tree, target)
}

// same reports whether an open file is a certain one.
func same(f *os.File, info fs.FileInfo) bool {
	own, err := f.Stat()
	return err == nil && os.SameFile(own, info)
}

// removeAll detaches what is mounted on the folder, though processes may hold it, and removes the
// folder: with it goes what is mounted there in other namespaces.
func (f *folder) removeAll() error {
	if err := linux.UnmountAt(f.all, f.name); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), removeMax)
	defer cancel()
	return rmtree.Remove(ctx, f.all, f.name)
}

// remove takes the folder away with all that the user has put there.
func (f *folder) remove() error {
	for _, file := range []*os.File{f.dir, f.root} {
		if file != nil {
			file.Close()
		}
	}
	err := f.removeAll()
	if err != nil {
		err = fmt.Errorf("cannot remove folder %q: %w", f.path, err)
	}
	return errors.Join(err, f.all.Close())
}

// RemoveFolder removes the folder of a step below a run directory, of which neither its stepd nor
// its processes live any more. That there is none is no error.
func RemoveFolder(runDir, key string) error {
	all, err := os.Open(filepath.Join(runDir, DirName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot open the folder of PMIx servers: %w", err)
	}
	return (&folder{all: all, name: key, path: filepath.Join(all.Name(), key)}).remove()
}

// showFolder shows the folder to pmixhost and the tasks: in the job's namespace, and where a plugin
// has given the SPANK host one of its own, in that.
func (p *Plugin) showFolder() error {
	if p.conf.Namespace != nil {
		if err := p.folder.show(p.conf.Namespace); err != nil {
			return err
		}
	}
	if p.job.HostPID == 0 {
		return nil
	}
	host, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", p.job.HostPID))
	if errors.Is(err, fs.ErrNotExist) {
		return launch.ErrHostGone
	}
	if err != nil {
		return fmt.Errorf("cannot open the mount namespace of spankhost: %w", err)
	}
	defer host.Close()
	ours, err := os.Stat("/proc/self/ns/mnt")
	if err != nil {
		return fmt.Errorf("cannot find the own mount namespace: %w", err)
	}
	if same(host, ours) {
		return nil
	}
	if err := p.folder.show(host); err != nil {
		p.log(err.Error()) // it has another run directory: tasks that use no PMIx run there
	}
	return nil
}
