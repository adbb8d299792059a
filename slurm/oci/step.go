package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"stepd/internal/printable"
	"stepd/internal/rmtree"
	"stepd/step/launch"
)

// Step is what the tasks of a step must know of their containers: the step daemon leaves it in
// the step's folder.
type Step struct {
	Conf             Conf
	Bundle           string // as the user has named it, absolute
	Node, User, Cwd  string
	UID, Job, StepID uint32
	// Dir is the step's folder.
	Dir string
	// Env is the commands' environment: slurmd's, of which Prepare drops what RunTimeEnvExclude
	// keeps from the user.
	Env []string
	// Terminal is the rank whose streams are a terminal, -1 for none.
	Terminal int
	// Script, Stdout and Stderr are a batch job's files, "" for none.
	Script, Stdout, Stderr string
	// EnvFirst and BeginInBundle are what 22.05 does: the bundle's variables come before the
	// task's, which count, and a command begins in the task's bundle.
	EnvFirst, BeginInBundle bool
	// Spool is what a container sees of the step's folder.
	Spool Spool
	// Speaker begins messages to the user.
	Speaker string
}

// Spool is what a container sees of the step's folder, unless MountSpoolDir says where.
type Spool int

const (
	SpoolNone Spool = iota // nothing: 22.05
	SpoolTask              // the task's folder as /var/run/slurm/
	SpoolStep              // the step's folder, where it is: from 26.05 on
)

// settings is the file in the step's folder that has the Step.
const settings = "step.json"

func taskDir(dir string, rank int) string { return filepath.Join(dir, "task-"+strconv.Itoa(rank)) }

// Prepare makes the folder, with one for each of the ranks; Remove takes it back. Both run as
// root: nothing in the folder is the user's before it is complete.
func (s *Step) Prepare(ranks []int, gid uint32) error {
	drop, err := excluder(s.Conf.RunEnvExclude)
	if err != nil {
		return err
	}
	s.Env = slices.DeleteFunc(s.Env, drop)
	text, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("cannot write the containers' settings: %w", err)
	}
	if err := s.Remove(); err != nil { // of a job that was requeued, or a daemon that was killed
		return err
	}
	if err := os.Mkdir(s.Dir, 0o700); err != nil {
		return fmt.Errorf("cannot make the containers' folder: %w", err)
	}
	paths := []string{filepath.Join(s.Dir, settings), filepath.Join(s.Dir, endScript)}
	err = errors.Join(os.WriteFile(paths[0], text, 0o600), os.WriteFile(paths[1], s.endText(), 0o700))
	for _, rank := range ranks {
		dir := taskDir(s.Dir, rank)
		paths = append(paths, dir)
		err = errors.Join(err, os.Mkdir(dir, 0o700))
	}
	for _, path := range append(paths, s.Dir) { // the folder last
		err = errors.Join(err, os.Chown(path, int(s.UID), int(gid)))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cannot make the containers' folder: %w", err), s.Remove())
	}
	return nil
}

// Remove removes the step's folder, whatever its user has made there.
func (s *Step) Remove() error { return Remove(s.Dir) }

// removePatience bounds the removal of a folder that its user has filled.
const removePatience = time.Minute

// Remove removes a step's folder.
func Remove(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), removePatience)
	defer cancel()
	if err := rmtree.RemovePath(ctx, dir); err != nil {
		return fmt.Errorf("cannot remove the containers' folder: %w", err)
	}
	return nil
}

// Command is the command line of a part of Main, as a program of the step daemon's.
func (s *Step) Command(program, part string) []string { return []string{program, Mode, part, s.Dir} }

// endScript is the script behind each task, in the step's folder.
const endScript = "end"

// endTimeoutS bounds the script behind a task, in seconds: it bounds each of its commands.
const endTimeoutS = 45

func (s *Step) endText() []byte {
	program, err := os.Executable()
	if err != nil {
		program = "slurmstepd" // it is then not found, which the log has
	}
	return []byte("#!/bin/sh\nexec " + quoted(s.Command(program, partEnd)) + "\n")
}

// Plugin has the tasks become the runtime: it is a task plugin of the step.
type Plugin struct {
	*Step
	Program string   // the step daemon's
	Ranks   []int    // this node's
	Argv    []string // the Spec's
}

func (*Plugin) Name() string                 { return "oci" }
func (*Plugin) PreSetuid() error             { return nil }
func (*Plugin) PreLaunchPriv(int, int) error { return nil }
func (*Plugin) PostTerm(launch.TaskEnd)      {}
func (*Plugin) PostStep() error              { return nil }

// PreLaunch puts the runtime in the place of each task's program.
func (p *Plugin) PreLaunch(l *launch.Launch) error {
	if l.TaskArgv == nil {
		l.TaskArgv = make([][]string, len(p.Ranks))
	}
	for id, rank := range p.Ranks {
		argv := l.TaskArgv[id]
		if argv == nil {
			argv = p.Argv
		}
		l.TaskArgv[id] = append(append(p.Command(p.Program, partRun), strconv.Itoa(rank)), argv...)
	}
	if p.Conf.Query != "" || p.Conf.ContainerPath != "" {
		l.Scripts = append(l.Scripts, launch.TaskScript{Epilog: true, Label: "oci.conf", Path: filepath.Join(p.Dir, endScript), TimeoutS: endTimeoutS})
	}
	return nil
}

// CheckError is why a bundle is none.
type CheckError struct {
	Code syscall.Errno // what srun is to print
	Text string
}

func (e *CheckError) Error() string { return "cannot run the step: --container: " + e.Text }

// Unwrap is the number.
func (e *CheckError) Unwrap() error { return e.Code }

// whyMax bounds what a bundle's check says, in columns: the process is the user's, who may have it
// say anything.
const whyMax = 500

// Check has a process of the user's look whether the bundle is one, and returns a *CheckError
// where it is none. The process ends with ctx: a file system that hangs holds up nothing. It waits
// for a child, which nothing else in the program may do then.
func (s *Step) Check(ctx context.Context, program string, gid uint32, groups []uint32) error {
	args := s.Command(program, partCheck)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	said := new(limited)
	cmd.Stderr, cmd.Env, cmd.Dir = said, []string{}, "/"
	cmd.WaitDelay = time.Second // the user may have had it fork, by ptrace(2): stderr is then held open
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: s.UID, Gid: gid, Groups: groups}}
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 {
		_, why, _ := strings.Cut(strings.TrimSpace(said.kept.String()), "error: ")
		return &CheckError{syscall.Errno(exit.ExitCode()), printable.Line(why, whyMax)}
	}
	return &CheckError{syscall.EINVAL, fmt.Sprintf("the check of the bundle: %v", err)}
}
