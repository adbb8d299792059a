package jobcontainer

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Check refuses what Restore, or the first job, would: a BasePath that does not exist or
// in which users other than root may write, and scripts that others may have written. It
// makes nothing. What an error names it names with the command that mends it, where there
// is one.
func (t *Tmpfs) Check() error {
	cfg := &t.cfg
	errs := []error{checkBase(cfg)}
	for _, s := range []struct{ key, path string }{{"InitScript", cfg.InitScript}, {"CloneNSScript", cfg.CloneNSScript}, {"CloneNSEpilog", cfg.CloneNSEpilog}} {
		if s.path == "" {
			continue
		}
		if err := checkScript(s.path); err != nil {
			errs = append(errs, fmt.Errorf("cannot use %q: %w (%s= in job_container.conf)", s.path, err, s.key))
		}
	}
	return errors.Join(errs...)
}

func checkBase(cfg *Config) error {
	base, err := openBase(cfg, failMissing)
	if errors.Is(err, unix.ENOENT) && cfg.AutoBasePath {
		return nil // the way to it was looked at as far as it goes
	}
	if err != nil {
		return err
	}
	defer base.Close()
	tag, err := openBeneath(base, cfg.NodeTag, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return baseError(cfg, err)
	}
	defer tag.Close()
	if err := checkOwn(tag); err != nil {
		return baseError(cfg, err)
	}
	return nil
}

// openBase opens BASE, which is root's alone.
func openBase(cfg *Config, m missing) (*os.File, error) {
	base, err := openTrusted(cfg.BasePath, m)
	if err != nil {
		return nil, baseError(cfg, err)
	}
	if err = checkKept(base); err == nil {
		err = checkOwn(base)
	}
	if err != nil {
		base.Close()
		return nil, baseError(cfg, err)
	}
	return base, nil
}
