package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

type config struct {
	cache, accel, out     string
	run, pkg, command     string
	old                   string
	build                 bool
	mem, cpus             int
	timeout, testsTimeout time.Duration
}

func main() {
	var c config
	flag.StringVar(&c.cache, "cache", "/var/cache/stepd-vm", "folder of the images")
	flag.StringVar(&c.accel, "accel", "tcg", "qemu's accelerator: tcg or kvm")
	flag.StringVar(&c.out, "out", "build/vm", "folder for the guest's console and journal")
	flag.StringVar(&c.run, "run", "", "tests to run, not the ones of tests.tsv")
	flag.StringVar(&c.pkg, "pkg", "", "packages to look for -run in, parted by spaces; default: all")
	flag.StringVar(&c.command, "cmd", "", "shell command to run, instead of tests")
	flag.StringVar(&c.old, "old", "", "folder of an earlier release's programs, which the package's test upgrades")
	flag.BoolVar(&c.build, "build", false, "build the image and stop")
	flag.IntVar(&c.mem, "mem", 2048, "memory, MiB")
	flag.IntVar(&c.cpus, "cpus", 2, "CPUs")
	flag.DurationVar(&c.timeout, "timeout", 35*time.Minute, "time for all of the run, from the guest's boot")
	flag.DurationVar(&c.testsTimeout, "tests-timeout", 15*time.Minute, "time for the tests of one package")
	flag.Parse()
	// A child's death signal follows the thread that started it.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	status, err := c.main(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "vm: %v\n", err)
		status = 1
	}
	os.Exit(status)
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "vm: "+format+"\n", args...)
}

func (c config) main(ctx context.Context) (int, error) {
	img, err := findImage(ctx, c.cache, say)
	if err != nil || c.build {
		return 0, err
	}
	top, err := topFolder()
	if err != nil {
		return 0, err
	}
	tmp, err := os.MkdirTemp("", "stepd-vm-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(tmp)
	m := machine{img: img, disk: filepath.Join(tmp, "share.ext4"), tmp: tmp, accel: c.accel, mem: c.mem, cpus: c.cpus}
	if m.out, err = filepath.Abs(filepath.Join(top, c.out)); err != nil {
		return 0, err
	}
	if err := os.MkdirAll(m.out, 0o755); err != nil {
		return 0, err
	}
	began := time.Now()
	if m.reboots, err = c.makeShare(ctx, top, filepath.Join(tmp, "share"), m.disk); err != nil {
		return 0, err
	}
	say("share made in %.1f s", time.Since(began).Seconds())
	began = time.Now()
	status, err := m.boot(ctx, c.timeout, os.Stdout)
	say("the guest ran for %.1f s; its console and journal are in %s", time.Since(began).Seconds(), m.out)
	return status, err
}

// makeShare reports whether the guest is to be booted twice.
func (c config) makeShare(ctx context.Context, top, dir, disk string) (reboots bool, err error) {
	s := share{top: top, dir: dir, old: c.old}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return false, err
	}
	if err := s.fill(ctx); err != nil {
		return false, err
	}
	if c.command != "" {
		if err := s.addCommand(c.command); err != nil {
			return false, err
		}
		return false, s.disk(ctx, disk)
	}
	rows, err := c.rows(top)
	if err != nil {
		return false, err
	}
	if reboots, err = s.addTests(ctx, rows, c.testsTimeout); err != nil {
		return false, err
	}
	return reboots, s.disk(ctx, disk)
}

// rows reports which tests to run.
func (c config) rows(top string) ([]row, error) {
	if c.run != "" {
		return choose(top, c.run, strings.Fields(c.pkg))
	}
	rows, err := parseList(testsFile, func(dir string) ([]string, error) { return testNames(filepath.Join(top, dir)) })
	return merge(rows), err
}

// topFolder is where go.mod is.
func topFolder() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("cannot find go.mod: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}
