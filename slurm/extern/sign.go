package extern

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Sign is the directory by whose age pam_slurm_adopt of a release with cgroup v1 knows the newest
// of a user's jobs (action_unknown=newest): the one that Slurm's proctrack/cgroup makes in the
// freezer, below the mounts of the controllers. It is "" where no freezer is mounted.
func Sign(mounts string, uid, job uint32) string {
	freezer := filepath.Join(mounts, "freezer")
	if _, err := os.Stat(filepath.Join(freezer, "cgroup.procs")); err != nil {
		return ""
	}
	return filepath.Join(freezer, "slurm", "uid_"+strconv.FormatUint(uint64(uid), 10), "job_"+strconv.FormatUint(uint64(job), 10))
}

// PutSign makes the directory; no process is ever in it. The user's goes when the last job of the
// user's ends, and is made again then. What it is made in, Slurm leaves behind as well.
func PutSign(sign string) (err error) {
	for range signTries {
		if err = os.MkdirAll(sign, 0o755); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err == nil {
		// A cgroup's directory has the time at which it was first looked at, unless it is set.
		now := time.Now()
		err = os.Chtimes(sign, now, now)
	}
	if err != nil {
		return fmt.Errorf("cannot make the directory by which pam_slurm_adopt knows the newest job: %w", err)
	}
	return nil
}

// signTries bounds how often the end of another job may take the user's directory away.
const signTries = 5

// TakeSign removes the directory, and the user's after its last job.
func TakeSign(sign string) error {
	for _, dir := range []string{sign, filepath.Dir(sign)} {
		err := os.Remove(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) {
			return fmt.Errorf("cannot remove the directory by which pam_slurm_adopt knows the newest job: %w", err)
		}
	}
	return nil
}
