package site

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// program finds one of our own programs: beside this one, else in
// ../libexec/stepd; never by PATH or environment.
func program(self, name string) (string, error) {
	dir := filepath.Dir(self)
	tried := []string{filepath.Join(dir, name), filepath.Join(filepath.Dir(dir), "libexec", "stepd", name)}
	for _, path := range tried {
		if st, err := os.Stat(path); err == nil && st.Mode().IsRegular() && unix.Access(path, unix.X_OK) == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("cannot find program %q: neither %q nor %q can be executed", name, tried[0], tried[1])
}

// programs finds stepd and spankhost.
func programs() (stepd, spankhost string, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", "", fmt.Errorf("cannot find the own program: %w", err)
	}
	if stepd, err = program(self, "stepd"); err != nil {
		return "", "", err
	}
	spankhost, err = program(self, "spankhost")
	return stepd, spankhost, err
}
