package linux

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// WriteWhole makes the file path what write writes, for its owner alone (mode 0600),
// whole or not at all: the old file stays until all is written. With sync it is on
// the disk when WriteWhole returns, but for its name. It is not for folders that
// others may write to, though a link that waits there leads nowhere. The error is
// write's, or names the path and wraps the errno.
func WriteWhole(path string, sync bool, write func(io.Writer) error) (err error) {
	tmp := path + ".tmp"
	f, err := OpenBeneath(filepath.Dir(tmp), filepath.Base(tmp), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("cannot write %q: %w", path, err)
	}
	defer func() {
		if err != nil {
			os.Remove(tmp) // it is of no use
		}
	}()
	if err = write(f); err == nil && sync {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	return err
}
