package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/internal/printable"
)

// Mode is the step daemon's argument that has it call Main.
const Mode = "container"

// The parts of Main.
const (
	partCheck = "check" // DIR: can the bundle be read?
	partRun   = "run"   // DIR RANK ARGV...: in a task's place
	partEnd   = "end"   // DIR: behind a task
)

// Main is what runs as the user. It returns the exit code, of a check the errno.
func Main(args []string) int {
	if len(args) < 2 {
		fmt.Fprintln(os.Stderr, "slurmstepd: cannot run a container: the step daemon calls this for the tasks of srun --container")
		return 1
	}
	s, err := load(args[1])
	code := 0
	if err == nil {
		switch {
		case args[0] == partCheck:
			err = s.check()
		case args[0] == partEnd:
			err = s.end()
		case args[0] == partRun && len(args) > 3:
			code, err = s.run(args[2], args[3:])
		default:
			err = fmt.Errorf("cannot do %q for a container", args)
		}
	}
	if err == nil {
		return code
	}
	fmt.Fprintf(os.Stderr, "%s: error: %v\n", s.Speaker, err)
	if errno := syscall.EINVAL; args[0] == partCheck {
		errors.As(err, &errno)
		return int(errno)
	}
	return 1
}

// settingsMax bounds the settings: slurmd's environment is most of them.
const settingsMax = 4 << 20

func load(dir string) (*Step, error) {
	s := &Step{Speaker: "slurmstepd"}
	text, err := os.ReadFile(filepath.Join(dir, settings))
	if err != nil {
		return s, fmt.Errorf("cannot read the containers' settings: %w (a user must reach SlurmdSpoolDir)", err)
	}
	if len(text) > settingsMax {
		return s, fmt.Errorf("cannot read the containers' settings: they have more than %d MiB", settingsMax>>20)
	}
	if err := json.Unmarshal(text, s); err != nil {
		return s, fmt.Errorf("cannot read the containers' settings: %w", err)
	}
	return s, nil
}

// check reports whether the bundle is one.
func (s *Step) check() error {
	if s.Conf.IgnoreConfig {
		if _, err := os.Stat(s.Bundle); err != nil {
			return fmt.Errorf("cannot read the bundle: %w", err)
		}
		return nil
	}
	_, err := readConfig(s.Bundle)
	return err
}

// place is where a task's container is.
func (s *Step) place(rank int) *place {
	p := &place{Step: s, rank: rank, spool: s.Dir, root: s.Bundle, pid: os.Getpid()}
	if s.Conf.ContainerPath != "" {
		p.spool = p.expand(s.Conf.ContainerPath)
	}
	p.bundle = taskDir(p.spool, rank)
	if s.Conf.EnvFile != "" {
		p.envFile = filepath.Join(p.bundle, "environment")
	}
	return p
}

// pidFile has the number of the task's process, for the commands of its end.
const pidFile = "pid"

// run writes the task's bundle and becomes the runtime, or has it create and start the container
// and returns its exit code.
func (s *Step) run(number string, argv []string) (int, error) {
	rank, err := strconv.Atoi(number)
	if err != nil {
		return 1, fmt.Errorf("cannot run a container: rank %q is no number", number)
	}
	p := s.place(rank)
	p.argv = argv
	if err := p.writeBundle(number); err != nil {
		return 1, err
	}
	if s.BeginInBundle {
		if err := os.Chdir(p.bundle); err != nil {
			return 1, err
		}
	}
	if os.Getenv("SLURM_RESTART_COUNT") != "" { // its name is an earlier run's, whose step daemon may have been killed
		if err := p.endContainer(); err != nil {
			return 1, err
		}
	}
	if s.Conf.Run == "" {
		return p.createStart()
	}
	return 1, fmt.Errorf("cannot run /bin/sh: %w", syscall.Exec("/bin/sh", []string{"sh", "-c", p.expand(s.Conf.Run)}, s.Env))
}

// writeBundle writes the task's bundle and what the commands of its end must know.
func (p *place) writeBundle(number string) error {
	if err := os.MkdirAll(p.bundle, 0o700); err != nil {
		return fmt.Errorf("cannot make the container's folder: %w", err)
	}
	drop, err := excluder(p.Conf.EnvExclude)
	if err != nil {
		return err
	}
	env := slices.DeleteFunc(os.Environ(), drop)
	if !p.Conf.IgnoreConfig {
		if err := p.writeConfig(env); err != nil {
			return err
		}
	}
	if err := p.writeFile(p.envFile, envText(env, p.Conf.EnvFile)); err != nil {
		return err
	}
	return p.writeFile(filepath.Join(p.Dir, pidFile+"."+number), []byte(strconv.Itoa(p.pid)))
}

func (p *place) writeFile(path string, text []byte) error {
	if path == "" {
		return nil
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return fmt.Errorf("cannot write the container's folder: %w", err)
	}
	return nil
}

// writeConfig writes the task's config.json.
func (p *place) writeConfig(env []string) error {
	c, err := readConfig(p.Bundle)
	if err != nil {
		return err
	}
	if p.root, err = c.root(p.Bundle); err != nil {
		return err
	}
	ch := &changes{bundle: p.Bundle, args: p.argv, env: env, first: p.EnvFirst, terminal: p.rank == p.Terminal, noHooks: p.Conf.DisableHooks}
	switch {
	case p.Conf.MountSpoolDir != "":
		ch.mounts = append(ch.mounts, bind(p.spool, p.expand(p.Conf.MountSpoolDir)))
	case p.Spool == SpoolTask:
		ch.mounts = append(ch.mounts, bind(p.bundle, "/var/run/slurm/"))
	case p.Spool == SpoolStep:
		ch.mounts = append(ch.mounts, bind(p.spool, p.spool))
	}
	if p.Script != "" {
		const seen = "/tmp/slurm/startup"
		for name, path := range map[string]string{"stdout": p.Stdout, "stderr": p.Stderr} {
			if path != "" {
				ch.mounts = append(ch.mounts, bind(path, "/tmp/slurm/"+name))
			}
		}
		ch.mounts = append(ch.mounts, bind(p.Script, seen, "ro"))
		ch.args = append([]string{seen}, p.argv[1:]...)
	}
	text, err := c.apply(ch)
	if err != nil {
		return err
	}
	return p.writeFile(filepath.Join(p.bundle, "config.json"), text)
}

// envText is the file of variables. Lines hold none that has lines itself.
func envText(env []string, kind string) []byte {
	var out []byte
	for _, e := range env {
		switch {
		case kind == "null":
			out = append(append(out, e...), 0)
		case !strings.Contains(e, "\n"):
			out = append(append(out, e...), '\n')
		}
	}
	return out
}

// end asks the runtime for what is left of the container of a task that has ended, and has it
// killed and deleted. Each command is run once: what outlives them is a process of the step, which
// the step daemon kills.
func (s *Step) end() error {
	rank, err := strconv.Atoi(os.Getenv("SLURM_PROCID"))
	if err != nil {
		return fmt.Errorf("cannot end a container: SLURM_PROCID is no rank: %w", err)
	}
	p := s.place(rank)
	text, err := os.ReadFile(filepath.Join(s.Dir, pidFile+"."+strconv.Itoa(rank)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no runtime has run
	}
	if err != nil {
		return fmt.Errorf("cannot end a container: %w", err)
	}
	if p.pid, err = strconv.Atoi(string(text)); err != nil {
		return fmt.Errorf("cannot end a container: %w", err)
	}
	if !s.Conf.IgnoreConfig {
		if c, err := readConfig(s.Bundle); err == nil {
			p.root, _ = c.root(s.Bundle) // the bundle was changed meanwhile: "" says so
		}
	}
	err = p.endContainer()
	if s.Conf.ContainerPath != "" && !s.Conf.KeepFiles {
		err = errors.Join(err, os.RemoveAll(p.bundle))
		_ = os.Remove(p.spool) // the last task's does it
	}
	return err
}

func (p *place) endContainer() error {
	if p.Conf.Query == "" {
		return nil
	}
	out, err := p.command(p.Conf.Query)
	if errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if err != nil {
		return nil // the runtime knows no such container
	}
	var state struct {
		Status string
		Pid    int
	}
	if err := json.Unmarshal(out, &state); err != nil {
		return fmt.Errorf("cannot read the answer of RunTimeQuery: %w", err)
	}
	var killErr error
	if state.Status != "stopped" && p.Conf.Kill != "" {
		if _, killErr = p.command(p.Conf.Kill); killErr == nil {
			awaitEnd(state.Pid)
		}
	}
	if p.Conf.Delete == "" {
		return killErr
	}
	if _, err := p.command(p.Conf.Delete); err != nil { // else the container is gone, however it was killed
		return errors.Join(killErr, err)
	}
	return nil
}

// killPatience is how long a container may take to end by RunTimeKill, which may be no SIGKILL.
const killPatience = 2 * time.Second

// awaitEnd waits for the end of a container's process: many runtimes delete none that runs.
func awaitEnd(pid int) {
	pidfd, err := linux.PidfdOpen(pid)
	if err != nil {
		return // it has ended, or the runtime tells no number
	}
	defer unix.Close(pidfd)
	ctx, cancel := context.WithTimeout(context.Background(), killPatience)
	defer cancel()
	_ = linux.PidfdWait(ctx, pidfd) // RunTimeDelete reports what is wrong
}

const (
	// commandTimeout bounds each command of a task's end.
	commandTimeout = 10 * time.Second
	// answerMax bounds what a command prints, in bytes.
	answerMax = 1 << 20
)

// command runs one command, and returns what it prints. The error has the end of its stderr.
func (p *place) command(pattern string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	line := p.expand(pattern)
	out, said := new(limited), new(limited)
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", line)
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = p.Env, out, said, time.Second
	err := cmd.Run()
	switch {
	case err == nil:
		return out.kept.Bytes(), nil
	case ctx.Err() != nil:
		return nil, fmt.Errorf("cannot run %q: it did not end within %v: %w", line, commandTimeout, ctx.Err())
	}
	return nil, fmt.Errorf("cannot run %q: %w: %s", line, err, printable.Line(strings.TrimSpace(said.kept.String()), whyMax))
}

// limited keeps the beginning of what is written.
type limited struct{ kept bytes.Buffer }

func (l *limited) Write(b []byte) (int, error) {
	if l.kept.Len()+len(b) > answerMax {
		return 0, fmt.Errorf("it prints more than %d MiB", answerMax>>20)
	}
	return l.kept.Write(b)
}
