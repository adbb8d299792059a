package site

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/internal/child"
	"stepd/internal/linux"
	"stepd/node"
	"stepd/spank"
	"stepd/spank/lint"
	"stepd/step"
	"stepd/step/launch"
)

const (
	// burstQuiet without an event ends a burst of them: an editor, a package
	// manager and cp do several things to a file.
	burstQuiet = 100 * time.Millisecond
	// burstMax bounds a burst that does not end.
	burstMax = time.Second
)

// plugstackEvents are what may change the stack. Not IN_MODIFY: who writes is
// waited for.
const plugstackEvents = unix.IN_CLOSE_WRITE | unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF

// Plugstack keeps an eye on the plugin stack: it checks it at the start and
// whenever one of its files or directories has changed, reports each finding
// once, and has the stack ready for the node document.
type Plugstack struct {
	config  lint.Config
	log     *logrus.Logger
	changed chan struct{} // has a word where the stack may have changed

	mu     sync.Mutex
	report *lint.Report    // guarded by mu; nil before the first check
	told   map[string]bool // guarded by mu: the findings that stand
	events *linux.Inotify  // guarded by mu: of the watch that is under way
	closed bool            // guarded by mu
	wg     sync.WaitGroup
}

// WatchPlugstack checks the stack and watches it from now on. Where the kernel
// gives no watch, that is a fallback, and the stack is checked on
// request.
func WatchPlugstack(config lint.Config, log *logrus.Logger) (*Plugstack, []node.Fallback) {
	p := &Plugstack{config: config, log: log, told: map[string]bool{}, changed: make(chan struct{}, 1)}
	report := p.current()
	events, err := p.watch(report)
	if err != nil {
		why := fmt.Sprintf("%v; it is checked when node status asks for it", err)
		log.Warnf("fallback: the plugin stack is not watched: %s", why)
		return p, []node.Fallback{{What: "plugin stack watch", Why: why}}
	}
	p.wg.Go(func() { p.follow(report, events) })
	return p, nil
}

// Close ends the watch.
func (p *Plugstack) Close() {
	p.mu.Lock()
	p.closed = true
	if p.events != nil {
		p.events.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// current is the report as of now: the stack is checked again if something has
// changed.
func (p *Plugstack) current() *lint.Report {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.report == nil || p.report.Stale() {
		p.report = lint.Check(p.config)
		p.tell()
		select {
		case p.changed <- struct{}{}:
		default: // it has one
		}
	}
	return p.report
}

// tell logs the findings that are new. p.mu is held.
func (p *Plugstack) tell() {
	stand := map[string]bool{}
	for _, f := range p.report.Findings {
		line := fmt.Sprintf("plugstack: %s: %s", f.Where(), f.What())
		if !p.told[line] && !stand[line] {
			if f.Severity == spank.SeverityError {
				p.log.Error(line)
			} else {
				p.log.Warn(line)
			}
		}
		stand[line] = true
	}
	if len(stand) == 0 && len(p.told) > 0 {
		p.log.Info("plugstack is clean again")
	}
	p.told = stand
}

// watch watches all that the report rests on.
func (p *Plugstack) watch(r *lint.Report) (*linux.Inotify, error) {
	events, err := linux.NewInotify()
	if err != nil {
		return nil, err
	}
	for _, dir := range r.Directories() {
		// One that is gone since makes the report stale.
		if err := events.Watch(dir, plugstackEvents|unix.IN_ONLYDIR); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
			events.Close()
			return nil, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		events.Close()
	}
	p.events = events
	return events, nil
}

// follow checks again after each burst of events, until close. With a new report
// the watches are made anew: the directories may be others by the same names.
func (p *Plugstack) follow(r *lint.Report, events *linux.Inotify) {
	for {
		// What changed between the check and the watches is not told any more.
		if !r.Stale() {
			if err := events.Wait(time.Time{}); err != nil {
				p.lost(err)
				return
			}
		}
		settle(events)
		now := p.current()
		if now == r {
			continue
		}
		events.Close()
		var err error
		r = now
		if events, err = p.watch(r); err != nil {
			p.lost(err)
			return
		}
	}
}

// settle waits for the end of a burst.
func settle(events *linux.Inotify) {
	end := time.Now().Add(burstMax)
	for time.Now().Before(end) {
		until := time.Now().Add(burstQuiet)
		if until.After(end) {
			until = end
		}
		if events.Wait(until) != nil {
			return
		}
	}
}

// lost says that the watch has ended, unless we have ended it.
func (p *Plugstack) lost(err error) {
	if !errors.Is(err, os.ErrClosed) {
		p.log.Warnf("the plugin stack is no longer watched, and checked when node status asks for it: %v", err)
	}
}

// document lists the stack for the node document: a line for each plugin with
// what there is to say about it, and one for each finding about no plugin.
func (p *Plugstack) document(context.Context) []node.Plugin {
	r := p.current()
	out := make([]node.Plugin, len(r.Plugins))
	problems := make([][]string, len(r.Plugins))
	var rest []node.Plugin
	for _, f := range r.Findings {
		at := pluginOf(r, f)
		if at < 0 {
			rest = append(rest, node.Plugin{Path: f.File, File: f.File, Line: f.Line, State: string(f.Severity), Problem: f.What(), Hooks: []string{}})
			continue
		}
		problems[at] = append(problems[at], f.What())
	}
	for i, d := range r.Plugins {
		out[i] = node.Plugin{
			Path: d.Path, File: d.File, Line: d.Line, Required: d.Required, State: string(d.State),
			Problem: strings.Join(problems[i], ". "), Release: d.Release, Hooks: d.Hooks,
		}
	}
	return append(out, rest...)
}

// pluginOf finds the plugin that a finding is about; a file may be included
// more than once.
func pluginOf(r *lint.Report, f lint.Finding) int {
	for i, d := range r.Plugins {
		if d.File == f.File && d.Line == f.Line {
			return i
		}
	}
	return -1
}

// stackID names the plugin stack as it is now, at the price of a stat for each
// file: the stack is read again where one of them has changed.
type stackID struct {
	file string
	dirs []string

	mu   sync.Mutex
	at   string   // guarded by mu: how the sources looked
	from []string // guarded by mu: all files that count
	id   string   // guarded by mu
	sum  string   // guarded by mu: the digest of the stack's files
}

// ID implements scripts.Config.StackID.
func (s *stackID) ID() (id, digest string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.from != nil && look(s.from) == s.at {
		return s.id, s.sum, nil
	}
	for range stackReads {
		stack, err := spank.ReadStack(s.file, s.dirs)
		if err != nil {
			s.from = nil
			return "", "", err
		}
		from := slices.Clone(stack.Sources)
		for _, p := range stack.Plugins {
			from = append(from, p.Path)
		}
		at := look(from)
		// What changed between the reading and the looking shows in a second one.
		again, err := spank.ReadStack(s.file, s.dirs)
		if err != nil || again.Digest != stack.Digest || describe(again) != describe(stack) {
			s.from = nil
			continue
		}
		s.at, s.from, s.id, s.sum = at, append([]string{}, from...), "", stack.Digest
		if len(stack.Plugins) > 0 {
			sum := sha256.Sum256([]byte(describe(stack) + at))
			s.id = hex.EncodeToString(sum[:])
		}
		return s.id, s.sum, nil
	}
	return "", "", fmt.Errorf("cannot read plugin stack %q: it changes all the time", s.file)
}

// stackReads bounds how often a stack is read that changes meanwhile.
const stackReads = 10

// describe is the stack's plugins and their arguments.
func describe(stack spank.Stack) string {
	var b strings.Builder
	for _, p := range stack.Plugins {
		fmt.Fprintf(&b, "%v %q %q\n", p.Required, p.Path, p.Args)
	}
	return b.String()
}

// look is the part of stat(2) of files that tells two states of them apart.
func look(paths []string) string {
	var b strings.Builder
	for _, path := range paths {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			fmt.Fprintf(&b, "%v\n", err)
			continue
		}
		fmt.Fprintf(&b, "%d %d %d %v %v\n", st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim)
	}
	return b.String()
}

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
	id, _, _ := n.Scripts().StackID() // what is wrong with the stack is said below
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
		HookTimeout: time.Duration(conf.HookTimeoutS) * time.Second, StopTimeout: s.conf.UnkillableStepTimeout, Log: d.hear,
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
	case launch.LogWarning:
		d.log.Warn(r.Line())
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
