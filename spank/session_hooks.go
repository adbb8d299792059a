package spank

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/internal/wire"
	"stepd/srunopt"
	"stepd/step"
)

// Option is an option that a plugin of the stack offers.
type Option struct {
	plugin, option uint32

	// File is the base name of the plugin's file, Plugin its plugin_name.
	File, Plugin string
	Name         string
	// ArgInfo names the argument in --help, Usage describes the option.
	ArgInfo, Usage string
	// HasArg is 0 for none, 1 for a required one, 2 for an optional one
	// (getopt_long(3)).
	HasArg int
}

// Init calls init() and slurm_spank_init of every plugin, and returns the options that
// they offer in this context. In job_script context it calls init() alone.
func (s *Session) Init() ([]Option, error) {
	var options []Option
	err := s.watched(func() error {
		return s.host.initStack(func(r *reply) error {
			if r.kind != repOption {
				return fmt.Errorf("internal error: spankhost answered init by record %d", r.kind)
			}
			o := Option{plugin: r.body.U32(), option: r.body.U32(), HasArg: int(r.body.i32())}
			o.Name, o.ArgInfo, o.Usage = r.body.str(), r.body.str(), r.body.str()
			if r.body.Err != nil || int(o.plugin) >= len(s.host.loaded) {
				return fmt.Errorf("internal error: spankhost told an option of plugin %d: %v", o.plugin, r.body.Err)
			}
			o.File, o.Plugin = s.host.PluginName(int(o.plugin)), s.host.loaded[o.plugin].Name
			options = append(options, o)
			return nil
		})
	})
	return options, err
}

// Give calls an option's callback: the user has given it. value is nil where
// it was given without one. A negative return is a *launch.HookError.
func (s *Session) Give(o Option, value []byte) error {
	if len(value) > srunopt.OptionMax {
		return fmt.Errorf("the value of --%s has %d bytes: the limit is %d", o.Name, len(value), srunopt.OptionMax)
	}
	if bytes.IndexByte(value, 0) >= 0 {
		return fmt.Errorf("the value of --%s holds a NUL byte", o.Name)
	}
	var w writer
	w.U32(o.plugin)
	w.U32(o.option)
	w.U32(flag(value != nil))
	var fds []int
	if value != nil {
		f, err := memfd("spank-option", value)
		if err != nil {
			return err
		}
		defer f.Close()
		fds = append(fds, int(f.Fd()))
	}
	return s.watched(func() error { return s.host.do(cmdOption, w.B, fds, nil) })
}

// PostOpt calls slurm_spank_init_post_opt of every plugin. env is set in their
// environ before.
func (s *Session) PostOpt(env []string) error {
	return s.send(cmdPostOpt, environ(env))
}

// send gives a command with what belongs to it.
func (s *Session) send(cmd uint32, w *writer) error {
	f, err := memfd("spank-command", w.B)
	if err != nil {
		return err
	}
	defer f.Close()
	return s.watched(func() error { return s.host.do(cmd, nil, []int{int(f.Fd())}, nil) })
}

// environ holds variables to set in the plugins' environ.
func environ(env []string) *writer {
	w := &writer{}
	w.tlvStrs(tagHostEnv, env)
	return w
}

// LocalJob is what slurm_spank_local_user_init can learn of the job and step.
type LocalJob struct {
	ID         step.ID
	NNodes     int
	TotalTasks int
	Argv       []string
	// Env is set in the plugins' environ before: SLURM_JOB_ID and its kin.
	Env []string
	// Spec is the step as noded has reserved it, for slurm_load_job; with nil
	// slurm_load_job has fewer fields.
	Spec *step.Spec
}

// LocalUserInit calls slurm_spank_local_user_init of every plugin.
func (s *Session) LocalUserInit(j LocalJob) error {
	w := &writer{}
	w.tlvU32(tagJobID, j.ID.Job)
	w.tlvU32(tagStepID, j.ID.Step)
	w.tlvU32(tagNNodes, uint32(j.NNodes))
	w.tlvU32(tagTotalTasks, uint32(j.TotalTasks))
	if s := j.Spec; s != nil {
		putJob(w, s)
		w.tlvStr(tagUser, s.User.Name)
		w.tlvStr(tagCwd, s.Cwd)
	}
	w.tlvStrs(tagArg, j.Argv)
	w.tlvStrs(tagHostEnv, j.Env)
	return s.send(cmdLocalUserInit, w)
}

// Hook calls one of slurm_spank_job_prolog, slurm_spank_job_epilog (job_script
// context) and slurm_spank_slurmd_exit (slurmd context) of every plugin.
func (s *Session) Hook(name string) error {
	for _, n := range []uint32{hookJobProlog, hookJobEpilog, hookSlurmdExit} {
		if hookNames[n] == name {
			var w writer
			w.U32(n)
			return s.watched(func() error { return s.host.do(cmdHook, w.B, nil, nil) })
		}
	}
	return fmt.Errorf("internal error: %q is no hook of a session", name)
}

// Exit calls slurm_spank_exit of every plugin, where this context has it, and ends the host
// as Close does. env is set in the plugins' environ before.
func (s *Session) Exit(env []string) error {
	f, err := memfd("spank-command", environ(env).B)
	if err != nil {
		return err
	}
	defer f.Close()
	return s.exit(int(f.Fd()))
}

// stateMax bounds what State reads: environ and the job control environment,
// which plugins may have made as long as they liked.
const stateMax = configMax

// State returns the plugins' environ and the job control environment as they
// are now, and the names that plugins have unset in the latter.
func (s *Session) State() (env []string, jobControl, unset [][]byte, err error) {
	err = s.watched(func() error {
		return s.host.do(cmdState, nil, nil, func(r *reply) (err error) {
			if r.kind != repState || len(r.fds) != 1 {
				return fmt.Errorf("internal error: spankhost answered state by record %d with %d descriptors", r.kind, len(r.fds))
			}
			f := os.NewFile(uintptr(r.fds[0]), "spank-state")
			r.fds = nil
			defer f.Close()
			b, err := readAll(f)
			if err == nil {
				env, jobControl, unset, err = parseState(b)
			}
			return err
		})
	})
	return env, jobControl, unset, err
}

// readAll reads a memfd of the host's. It is the user's process that wrote it.
func readAll(f *os.File) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("cannot read the plugins' environment: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > stateMax {
		return nil, fmt.Errorf("cannot read the plugins' environment: %d bytes, and %d is the limit", st.Size, stateMax)
	}
	b, err := io.ReadAll(io.NewSectionReader(f, 0, st.Size))
	if err != nil {
		return nil, fmt.Errorf("cannot read the plugins' environment: %w", err)
	}
	return b, nil
}

// parseState decodes the blob of REP_STATE. What is no NAME=VALUE in environ
// is left out: putenv(3) lets anything in.
func parseState(b []byte) (env []string, jobControl, unset [][]byte, err error) {
	r := reader{Reader: wire.Reader{B: b}}
	for len(r.B) > 0 && r.Err == nil {
		tag := r.U32() & 0xffff // the upper half are the flags
		item := reader{Reader: wire.Reader{B: r.Take(int(min(r.U32(), stateMax+1)))}}
		if r.Err != nil {
			break
		}
		text := item.Take(int(min(item.U32(), stateMax+1)))
		if item.Err != nil || len(item.B) > 0 {
			return nil, nil, nil, errors.New("the plugins' environment is malformed")
		}
		at := bytes.IndexByte(text, '=')
		if at <= 0 || bytes.IndexByte(text, 0) >= 0 {
			continue
		}
		switch tag {
		case tagHostEnv:
			env = append(env, string(text))
		case tagJobControl:
			jobControl = append(jobControl, bytes.Clone(text))
		case tagEnvUnset:
			unset = append(unset, bytes.Clone(text[:at]))
		default:
			return nil, nil, nil, fmt.Errorf("the plugins' environment has an item of kind %d", tag)
		}
	}
	return env, jobControl, unset, r.Err
}

// noValue is how a flag is written in the job control environment, as measured.
const noValue = "(null)"

// putScriptOptions hands over the options that the job control environment holds.
func putScriptOptions(w *writer, jobControl [][]byte) error {
	n := 0
	for _, e := range jobControl {
		opt, ok := strings.CutPrefix(string(e), srunopt.OptionPrefix)
		if !ok {
			continue
		}
		if n++; n > srunopt.OptionsMax {
			return fmt.Errorf("cannot take the job's options: there are more than %d", srunopt.OptionsMax)
		}
		name, value, _ := strings.Cut(opt, "=")
		if value == noValue {
			putOption(w, "", name, nil)
		} else {
			putOption(w, "", name, append([]byte{}, value...))
		}
	}
	return nil
}
