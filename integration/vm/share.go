package main

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"time"

	"stepd/integration/slurm/cluster"
)

//go:embed run.sh
var runScript []byte

// share is the folder that becomes the guest's second disk.
type share struct {
	top string // of the source tree
	dir string
	old string // programs of an earlier release, to upgrade from; "" is none
}

func (s share) path(elem ...string) string {
	return filepath.Join(append([]string{s.dir}, elem...)...)
}

// fill puts in what every run needs: the built programs, as they lie in the
// source tree and as installed, and the source tree.
func (s share) fill(ctx context.Context) error {
	if err := os.WriteFile(s.path("run.sh"), runScript, 0o755); err != nil {
		return err
	}
	if err := s.copySource(); err != nil {
		return fmt.Errorf("cannot copy the source tree: %w", err)
	}
	if err := os.CopyFS(s.path("src/bin"), os.DirFS(filepath.Join(s.top, "bin"))); err != nil {
		return fmt.Errorf("cannot copy the programs (run make first): %w", err)
	}
	return s.tool(ctx, "make", "-s", "install-files", "DESTDIR="+s.path("root"), "PREFIX=/usr")
}

// addTests builds the test binaries of rows and the lists that run.sh reads. It
// reports whether the guest is to be booted twice.
func (s share) addTests(ctx context.Context, rows []row, timeout time.Duration) (reboots bool, err error) {
	if err := s.tool(ctx, "go", "build", "-trimpath", "-o", s.path("test2json"), "cmd/test2json"); err != nil {
		return false, err
	}
	var lists jobs
	for i, r := range rows {
		names, err := r.chosen(s.top)
		if err != nil {
			return false, err
		}
		binary := fmt.Sprintf("%d-%s.test", i, path.Base(r.dir))
		if err := s.tool(ctx, "go", "test", "-c", "-trimpath", "-ldflags=-s -w", "-o", s.path(binary), "./"+r.dir); err != nil {
			return false, err
		}
		lists.add(r, binary, names, timeout)
	}
	if lists.before.Len() > 0 {
		if err := s.addPackages(ctx); err != nil {
			return false, err
		}
	}
	if slices.ContainsFunc(rows, func(r row) bool { return r.dir == "integration/slurm" }) {
		if err := s.addSlurm(ctx); err != nil {
			return false, err
		}
	}
	for name, text := range map[string]string{"jobs": lists.now.String(), "jobs-before-reboot": lists.before.String(), "jobs-after-reboot": lists.after.String()} {
		if err := os.WriteFile(s.path(name), []byte(text), 0o644); err != nil {
			return false, err
		}
	}
	return lists.after.Len() > 0, nil
}

// addPackages makes the Debian packages twice, for an upgrade: the later ones are
// told apart by their version alone, or the first ones have the programs of old.
func (s share) addPackages(ctx context.Context) error {
	files := []string{"-s", "deb-files", "DEB_OUT=" + s.path("deb")}
	if s.old == "" {
		return s.tool(ctx, "make", append(files, "DEB_VERSION=0~guest1 0~guest2")...)
	}
	if err := s.tool(ctx, "make", append(files, "DEB_VERSION=0~guest1", "BIN="+s.old)...); err != nil {
		return err
	}
	return s.tool(ctx, "make", append(files, "DEB_VERSION=0~guest2")...)
}

// addSlurm puts in a Debian root with Slurm, where run.sh lets the tests find it.
func (s share) addSlurm(ctx context.Context) error {
	image, err := cluster.Image(ctx, slurmCache, "22.05")
	if err != nil {
		return err
	}
	if err := os.Mkdir(s.path("slurm"), 0o755); err != nil {
		return err
	}
	return s.tool(ctx, "cp", "-a", image, s.path("slurm/"))
}

// slurmCache is where the images of integration/slurm lie.
const slurmCache = "/var/cache/stepd-slurm"

// addCommand makes the run one of a shell command instead of tests.
func (s share) addCommand(command string) error {
	return os.WriteFile(s.path("cmd"), []byte(command+"\n"), 0o755)
}

// disk makes the disk from the folder, without mounting anything.
func (s share) disk(ctx context.Context, file string) error {
	var size, files int64
	err := filepath.WalkDir(s.dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			size += info.Size() + 4096
			files++
		}
		return err
	})
	if err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	const least = 8 << 20 // for the file system's own tables
	if err := f.Truncate(size*5/4 + least); err != nil {
		return err
	}
	return s.tool(ctx, "mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-E", "root_owner=0:0",
		"-N", fmt.Sprint(files+200), "-d", s.dir, file)
}

// tool runs a program in the source tree; what it prints is the error's text.
func (s share) tool(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = s.top
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot run %s %q: %w\n%s", name, args, err, out)
	}
	return nil
}

func (s share) copySource() error {
	return walkSource(s.top, func(rel string, d fs.DirEntry) error {
		if !d.Type().IsRegular() {
			return nil
		}
		to := s.path("src", rel)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return copyFile(filepath.Join(s.top, rel), to, info.Mode().Perm())
	})
}

// walkSource calls f for every file of the tree that is not built.
func walkSource(top string, f func(rel string, d fs.DirEntry) error) error {
	return fs.WalkDir(os.DirFS(top), ".", func(rel string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", "bin", "build"}, rel) {
				return fs.SkipDir
			}
			return nil
		}
		return f(rel, d)
	})
}

func copyFile(from, to string, mode fs.FileMode) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
