package site

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/internal/child"
	"stepd/node"
	"stepd/spank"
	"stepd/step"
	"stepd/step/launch"
)

// Slurmd is the slurmd context: the plugins' slurm_spank_init at noded's start
// and slurm_spank_slurmd_exit at its stop, in a spankhost that lives between
// the two. nil is a stack without plugins.
type Slurmd struct {
	session *spank.Session
	log     *logrus.Logger
	end     func()         // ends the host, hook or not
	watch   sync.WaitGroup // of the host's end
	leaving chan struct{}  // closed when its end is wanted
}

// StartSlurmd calls slurm_spank_init of every plugin. The error is a required
// plugin's: then noded does not start. An optional one that takes the host down
// is left out.
func StartSlurmd(s *Site, log *logrus.Logger, n *node.Node) (*Slurmd, error) {
	conf := s.spank()
	id, _ := n.Scripts().StackID() // what is wrong with the stack is said below
	stack, err := spank.StackOf(conf)
	if err != nil {
		return nil, err
	}
	stack.Problems = nil // the check of the stack has told them
	all := len(stack.Plugins)
	for len(stack.Plugins) > 0 {
		d, err := openSlurmd(s, conf, stack, log)
		if err == nil {
			if len(stack.Plugins) == all && d.session.Whole() {
				n.Scripts().LearnStack(id, d.session.Hooks())
			}
			d.watch.Go(func() { d.follow(n) })
			return d, nil
		}
		hook, ok := errors.AsType[*launch.HookError](err)
		if !ok || hook.RC != nil || hook.Required || hook.Path == "" {
			return nil, fmt.Errorf("cannot start with the plugin stack: %w", err)
		}
		log.Errorf("%v; the plugin is optional: starting without it", err)
		id = "" // the stack that is loaded is not the one that is written
		stack.Plugins = slices.DeleteFunc(stack.Plugins, func(p spank.Plugin) bool { return p.Path == hook.Path })
	}
	return nil, nil
}

func openSlurmd(s *Site, conf step.SpankConf, stack spank.Stack, log *logrus.Logger) (*Slurmd, error) {
	_, spankhost, err := programs()
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancelCause(context.Background())
	d := &Slurmd{
		log: log, leaving: make(chan struct{}),
		end: func() { end(fmt.Errorf("noded does not wait longer than %v for it", slurmdExitMax)) },
	}
	files := [3]*os.File{nil, os.Stdout, os.Stderr}
	if _, ok := log.Formatter.(*logrus.JSONFormatter); ok {
		out, err := pluginOutput(log)
		if err != nil {
			end(nil)
			return nil, err
		}
		defer out.Close()
		files[1], files[2] = out, out
	}
	var env []string
	if s.conf.File != "" {
		env = append(env, "SLURM_CONF="+s.conf.File)
	}
	session, problems, err := spank.Open(ctx, spank.SessionConfig{
		Program: spankhost, Context: spank.ContextSlurmd, Stack: stack, AllowReleases: conf.AllowReleases,
		Daemon: child.Environ(), Env: env, NodeName: s.conf.Node.Name,
		Files:       files,
		HookTimeout: time.Duration(conf.HookTimeoutS) * time.Second, Log: d.hear,
	})
	for _, p := range problems {
		log.Warn(p)
	}
	if err == nil {
		d.session = session
		if _, err = session.Init(); err != nil {
			err = errors.Join(err, session.Close())
		}
	}
	if err != nil {
		d.end()
		return nil, err
	}
	return d, nil
}

// pluginOutput makes lines of a JSON log of what plugins print. The caller closes it.
func pluginOutput(log *logrus.Logger) (*os.File, error) {
	ours, theirs, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot make a pipe for what plugins print: %w", err)
	}
	go func() { // ends with the host and what it has started, at the latest with noded
		defer ours.Close()
		lines := bufio.NewReaderSize(ours, 64<<10)
		for {
			line, err := lines.ReadSlice('\n')
			if text := strings.TrimRight(string(line), "\n"); text != "" {
				log.WithField("source", "plugin").Info(strings.ToValidUTF8(text, "?"))
			}
			if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
				return
			}
		}
	}()
	return theirs, nil
}

// hear logs the plugins' messages.
func (d *Slurmd) hear(r launch.HostRecord) {
	switch r.Level {
	case launch.LogError, launch.LogSpank:
		d.log.Error(r.Line())
	case launch.LogInfo:
		d.log.Info(r.Line())
	default:
		d.log.Debug(r.Line())
	}
}

// follow reports an end of the host that was not asked for. It is not started
// again: what the plugins had kept in it is gone.
func (d *Slurmd) follow(n *node.Node) {
	select {
	case <-d.leaving:
		return
	case <-d.session.Done():
	}
	why := d.session.Ending().Error()
	d.log.Errorf("the plugins' slurmd context has ended: %s; slurm_spank_slurmd_exit will not be called", why)
	n.AddFallback(node.Fallback{What: "plugins in slurmd context", Why: why})
}

// slurmdExitMax bounds slurm_spank_slurmd_exit where HookTimeout does not:
// noded's stop must come to an end.
const slurmdExitMax = 10 * time.Second

// Stop calls slurm_spank_slurmd_exit and ends the host.
func (d *Slurmd) Stop() {
	if d == nil {
		return
	}
	close(d.leaving)
	d.watch.Wait()
	defer time.AfterFunc(slurmdExitMax, d.end).Stop()
	if d.session.Ending() == nil {
		if err := d.session.Hook("slurm_spank_slurmd_exit"); err != nil {
			d.log.Errorf("%v", err)
		}
	}
	if err := d.session.Close(); err != nil {
		d.log.Errorf("%v", err)
	}
	d.end()
}
