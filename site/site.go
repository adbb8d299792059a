// Package site says what a site's files mean for its node: it reads them with the command
// line (Load), finds the mistakes in them and on the host (Check, Diagnose), wires a node.Config
// with the mechanisms that they choose (Site.Config), and runs what of the plugin stack, the log and
// the page of metrics is noded's own.
//
// It does not parse the files, which is package slurmconf's part, and it serves no request.
// Begin with Load and Site.Config.
package site

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/eventlog"
	"stepd/internal/linux"
	"stepd/metrics"
	"stepd/mpi"
	"stepd/node"
	"stepd/slurmconf"
	"stepd/srunopt"
	"stepd/step"
	"stepd/step/launch"
	"stepd/task"
	"stepd/task/affinity"
)

const (
	defaultFile = "/etc/stepd/slurm.conf"
	defaultRun  = "/run/stepd"
)

// Options are the parts of the command line that change what the files say.
type Options struct {
	File      string // -f; "" is $SLURM_CONF, else the default
	RunDir    string // "" is the default
	SpoolDir  string // "" is what the files say
	LogFormat string // "text" or "json"
	Node      string // the node's name in the files; "" is the host's
	Verbose   bool
}

// Site is what the command line and the site's files say.
type Site struct {
	conf     *slurmconf.Config
	problems []slurmconf.Problem
	// Run and Spool are the directories, absolute.
	Run, Spool string
	hostname   string // as the kernel has it, with a domain or without
	// drain are the reasons to drain the node at start.
	drain []string
}

// confFile is the file to read: -f, else $SLURM_CONF, which must exist, else
// our default where that exists, else none. Never /etc/slurm by itself.
func confFile(flag string) (string, error) {
	file := flag
	if file == "" {
		file = os.Getenv("SLURM_CONF")
	}
	if file == "" {
		if _, err := os.Stat(defaultFile); errors.Is(err, os.ErrNotExist) {
			return "", nil
		}
		file = defaultFile
	}
	if _, err := os.Stat(file); err != nil {
		return "", fmt.Errorf("cannot read configuration: %w", err)
	}
	return filepath.Abs(file)
}

// Load reads the files and puts the flags over them. What is
// wrong in the files is in problems.
func Load(o Options) (*Site, error) {
	file, err := confFile(o.File)
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("cannot read the host's name: %w", err)
	}
	conf, problems, err := slurmconf.LoadAs(file, host, o.Node, mpi.Names()...)
	if err != nil {
		return nil, err
	}
	if file == "" {
		problems = append(problems, unread(filepath.Dir(defaultFile))...)
	}
	s := &Site{conf: conf, problems: problems, Run: defaultRun, Spool: conf.SpoolDir, hostname: host}
	s.checkValues()
	for _, d := range []struct {
		flag string
		dir  *string
	}{{o.RunDir, &s.Run}, {o.SpoolDir, &s.Spool}} {
		if d.flag != "" {
			*d.dir = d.flag
		}
		if *d.dir, err = filepath.Abs(*d.dir); err != nil {
			return nil, fmt.Errorf("cannot use directory %q: %w", d.flag, err)
		}
	}
	s.checkHidden()
	return s, nil
}

// unread reports files that are not read, since there is no slurm.conf beside
// them.
func unread(dir string) (problems []slurmconf.Problem) {
	for _, name := range []string{"stepd.conf", "cgroup.conf", "gres.conf", "job_container.conf", "mpi.conf", "plugstack.conf"} {
		file := filepath.Join(dir, name)
		if _, err := os.Stat(file); err == nil {
			problems = append(problems, slurmconf.Problem{
				Severity: slurmconf.SeverityWarning, File: file,
				Text:   "not read: there is no slurm.conf beside it",
				Remedy: "make one, which may be empty",
			})
		}
	}
	return problems
}

// checkValues finds what only noded knows: values that other nodes may have,
// and this one has not.
func (s *Site) checkValues() {
	devices, missing := s.conf.CheckDevices()
	s.problems = append(s.problems, devices...)
	s.drain = append(slices.Clone(s.conf.DrainReasons), missing...)
	s.checkProgram("UnkillableStepProgram", s.conf.UnkillableStepProgram)
	if self, err := os.Executable(); err == nil && s.conf.MpiDefault == mpi.PMIx {
		if _, err := program(self, "pmixhost"); err != nil {
			s.problems = append(s.problems, slurmconf.Problem{
				Severity: slurmconf.SeverityWarning, File: s.conf.File,
				Text:   fmt.Sprintf("MpiDefault=%s cannot serve: %v", s.conf.MpiDefault, err),
				Remedy: "build with libpmix-dev installed, or write another one: every step must name one else",
			})
		}
	}
}

// checkProgram warns of a program that could not be run when it is needed.
func (s *Site) checkProgram(key, path string) {
	if path == "" {
		return
	}
	info, err := os.Stat(path)
	if err == nil && info.Mode().IsRegular() && info.Mode()&0o100 != 0 {
		return
	}
	why := "not an executable file"
	if err != nil {
		why = err.Error()
	}
	s.problems = append(s.problems, slurmconf.Problem{
		Severity: slurmconf.SeverityWarning, File: s.conf.File,
		Text: fmt.Sprintf("%s=%q cannot be run: %s", key, path, why), Remedy: "install it, or remove the key",
	})
}

// warn logs what is doubtful and has a meaning all the same.
func (s *Site) Warn(log *logrus.Logger) {
	for _, p := range s.problems {
		if p.Severity == slurmconf.SeverityWarning {
			log.Warn(p)
		}
	}
}

// Mistakes are the problems that noded does not start with: a node that does
// something else than its file says is worse than none.
func (s *Site) Mistakes() error {
	var found []slurmconf.Problem
	for _, p := range s.problems {
		if p.Severity == slurmconf.SeverityError {
			found = append(found, p)
		}
	}
	switch len(found) {
	case 0:
		return nil
	case 1:
		return mistaken(fmt.Sprintf("cannot use configuration: %s", found[0]))
	}
	return mistaken(fmt.Sprintf("cannot use configuration: %s (and %d more: noded --check lists them)", found[0], len(found)-1))
}

// MistakenExit is noded's exit code for a configuration with a mistake, EX_CONFIG of sysexits.h:
// noded.service is not started again after it, since the files stay as they are.
const MistakenExit = 78

// MistakenError says that the configuration has mistakes.
type MistakenError struct{ text string }

func (e *MistakenError) Error() string { return e.text }

func mistaken(text string) error { return &MistakenError{text} }

// ExitCode is noded's exit code for an error.
func ExitCode(err error) int {
	if _, mistaken := errors.AsType[*MistakenError](err); mistaken {
		return MistakenExit
	}
	return 1
}

// mistakes counts them: "1 mistake", "3 mistakes".
func mistakes(n int) string {
	if n == 1 {
		return "1 mistake"
	}
	return fmt.Sprintf("%d mistakes", n)
}

// LogTo moves the log where the site wants it, and sets its level. The file is
// nil for stderr.
func (s *Site) LogTo(log *logrus.Logger, o Options) (*os.File, error) {
	var f *os.File
	if s.conf.SlurmdLogFile != "" {
		var err error
		if f, err = openLogFile(s.conf.SlurmdLogFile); err != nil {
			return nil, err
		}
		log.Infof("the log goes on in %q (SlurmdLogFile)", s.conf.SlurmdLogFile)
		log.SetOutput(f)
	}
	if !o.Verbose {
		log.SetLevel(levelOf(s.conf.SlurmdDebug))
	}
	return f, nil
}

// NewLog makes the log, on stderr.
func NewLog(o Options) (*logrus.Logger, error) {
	log := logrus.New()
	log.SetOutput(os.Stderr)
	switch o.LogFormat {
	case "text":
		log.SetFormatter(&logrus.TextFormatter{DisableColors: true, FullTimestamp: true, TimestampFormat: eventlog.LogTime})
	case "json":
		log.SetFormatter(&logrus.JSONFormatter{TimestampFormat: eventlog.LogTime})
	default:
		return nil, fmt.Errorf("cannot log as %q: --log-format is text or json", o.LogFormat)
	}
	if o.Verbose {
		log.SetLevel(logrus.DebugLevel)
	}
	return log, nil
}

// openLogFile opens SlurmdLogFile for appending: an existing log is never
// truncated, and an existing link is root's own.
func openLogFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open log (SlurmdLogFile): %w", err)
	}
	return f, nil
}

var logLevels = map[string]logrus.Level{
	"quiet": logrus.PanicLevel, "fatal": logrus.FatalLevel, "error": logrus.ErrorLevel, "info": logrus.InfoLevel, "verbose": logrus.InfoLevel,
}

// levelOf maps a word of SlurmdDebug to the log's levels.
func levelOf(debug string) logrus.Level {
	if level, known := logLevels[debug]; known {
		return level
	}
	return logrus.DebugLevel // debug to debug5
}

const (
	// slowAfter is how long something may take in silence that asks file systems.
	slowAfter = 2 * time.Second
	// slowEvery is how often it is reported again.
	slowEvery = 30 * time.Second
)

// Told does f, and says so in the log and to systemd as long as f does not end: a
// file system whose server is gone holds each caller, and an
// administrator must not have to guess which.
func Told(log *logrus.Logger, what, remedy string, f func() error) error {
	return toldEvery(log, what, remedy, slowAfter, slowEvery, f)
}

func toldEvery(log *logrus.Logger, what, remedy string, after, every time.Duration, f func() error) error {
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		began := time.Now()
		timer := time.NewTimer(after)
		defer timer.Stop()
		for said := false; ; said = true {
			select {
			case <-done:
				if said {
					log.Infof("%s has answered after %v", what, time.Since(began).Round(time.Second))
				}
				return
			case <-timer.C:
				log.Errorf("%s has not answered for %v: %s", what, time.Since(began).Round(time.Second), remedy)
				// An error could only say that no service manager listens.
				_, _ = daemon.SdNotify(false, fmt.Sprintf("STATUS=waiting for %s", what))
				timer.Reset(every)
			}
		}
	}()
	err := f()
	close(done)
	<-ended
	return err
}

// MetricsPage is the page of metrics; nil where the site wants none.
type MetricsPage struct {
	Metrics *metrics.Metrics
	address string // "IP:PORT", or "unix"
	run     string
	server  *metrics.Server
}

// NewPage returns nil where the site wants no page.
func NewPage(s *Site) *MetricsPage {
	if s.conf.Stepd.MetricsListen == "" {
		return nil
	}
	return &MetricsPage{Metrics: metrics.New(), address: s.conf.Stepd.MetricsListen, run: s.Run}
}

// Serve listens, and serves until Close; on nil it does nothing.
func (p *MetricsPage) Serve(n *node.Node, log *logrus.Logger) error {
	if p == nil {
		return nil
	}
	l, err := p.listen()
	if err != nil {
		return fmt.Errorf("cannot serve metrics at %q (MetricsListen): %w", p.address, err)
	}
	p.Metrics.Watch(n)
	p.server = p.Metrics.Serve(l, n.NotReady, func(err error) { log.Error(err) })
	log.Infof("serving metrics at %s", l.Addr())
	return nil
}

// metricsSocket is the page's name in the run directory, which noded has locked.
const metricsSocket = "metrics.sock"

func (p *MetricsPage) listen() (net.Listener, error) {
	if p.address != "unix" {
		return new(net.ListenConfig).Listen(context.Background(), "tcp", p.address)
	}
	// By a descriptor: a socket's path holds 108 bytes.
	dir, err := os.OpenFile(p.run, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if err := unix.Unlinkat(int(dir.Fd()), metricsSocket, 0); err != nil && err != unix.ENOENT {
		return nil, err
	}
	l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), metricsSocket))
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // its name is a descriptor's
	// Connecting needs the right to write.
	if err := unix.Fchmodat(int(dir.Fd()), metricsSocket, 0o600, 0); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Close ends Serve; it may be called on nil.
func (p *MetricsPage) Close() {
	if p == nil || p.server == nil {
		return
	}
	p.server.Close()
	if p.address == "unix" {
		_ = os.Remove(filepath.Join(p.run, metricsSocket)) // the next noded replaces it
	}
}

// preview returns what the tasks of a step would see, by the same plan as stepd's.
func (s *Site) preview(spec *step.Spec, d *api.DryRun) error {
	plan, err := task.MakePlan(spec)
	if err != nil {
		return err
	}
	env := map[string]string{}
	lists := [][]string{plan.Env, plan.CommonEnv}
	if len(plan.TaskEnv) > 0 {
		lists = append(lists, plan.TaskEnv[0])
	}
	for _, list := range lists {
		for _, e := range list {
			name, value, _ := strings.Cut(e, "=")
			env[name] = value
		}
	}
	for name, value := range env {
		if limit, ok := strings.CutPrefix(name, srunopt.LimitPrefix); ok {
			if l, known := resourceLimit(limit, value); known {
				d.ResourceLimits = append(d.ResourceLimits, l)
			}
			continue // it is gone before the exec
		}
		d.TaskEnv = append(d.TaskEnv, name+"="+value)
	}
	slices.Sort(d.TaskEnv)
	slices.SortFunc(d.ResourceLimits, func(a, b api.ResourceLimit) int { return cmp.Compare(a.Name, b.Name) })
	d.Mounts = append(d.Mounts, s.mountWords(spec)...)
	return nil
}

// mountWords are what the job's container does to the tasks' view of the files.
func (s *Site) mountWords(spec *step.Spec) (out []string) {
	if spec.Container == "none" {
		return nil
	}
	c := s.conf.Container
	for _, dir := range hiddenDirs(s.conf) {
		out = append(out, dir+": the job's own, below "+c.BasePath)
	}
	if c.InitScript != "" {
		out = append(out, "what "+c.InitScript+" mounts")
	}
	if spec.Container == "linux" && c.PIDNamespace {
		out = append(out, "/proc: the job's own pid namespace's")
	}
	if c.EntireStepInNS {
		out = append(out, "plugins see the same from their first hook on")
	}
	return out
}

// resourceLimit is what becomes of a limit that a client passes on: no more than the
// hard one, which tasks have from noded.
func resourceLimit(name, value string) (l api.ResourceLimit, known bool) {
	at := slices.IndexFunc(linux.ResourceLimits, func(l linux.ResourceLimit) bool { return l.Name == name })
	var have unix.Rlimit
	if at < 0 || unix.Getrlimit(linux.ResourceLimits[at].Number, &have) != nil {
		return l, false
	}
	l.Name = name
	if value != "-1" {
		asked, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return l, false
		}
		l.Asked = &asked
	}
	if have.Max != unix.RLIM_INFINITY {
		l.Hard = new(have.Max)
	}
	l.Gets = l.Asked
	if l.Hard != nil && (l.Asked == nil || *l.Asked > *l.Hard) {
		l.Gets, l.Lower = l.Hard, true
	}
	return l, true
}

// binding says where each task would run, by the same plan as stepd's.
func binding(spec *step.Spec) ([]string, error) {
	if spec.Affinity == nil {
		return []string{"the tasks are not bound: TaskPlugin has no task/affinity"}, nil
	}
	in, err := affinity.InputOf(spec, os.DirFS("/sys"))
	if err != nil {
		return nil, err
	}
	plan, err := affinity.MakePlan(in)
	if err != nil {
		return nil, err
	}
	return bindingWords(plan, spec.LocalTasks()), nil
}

// bindingWords has one line for neighbours that are bound alike.
func bindingWords(plan *affinity.Plan, ntasks int) []string {
	memory := make(map[int]string)
	for _, m := range plan.Mem {
		memory[m.LocalID] = memoryWords(m)
	}
	at := func(rank int) string {
		s := "any CPU of the step"
		if plan.CPUs != nil {
			s = "CPUs " + plan.CPUs[rank].String()
		}
		return s + memory[launch.AllRanks] + memory[rank]
	}
	var lines []string
	for from := 0; from < ntasks; {
		to := from
		for to+1 < ntasks && at(to+1) == at(from) {
			to++
		}
		who := fmt.Sprintf("task %d", from)
		if to > from {
			who = fmt.Sprintf("tasks %d-%d", from, to)
		}
		lines = append(lines, who+": "+at(from))
		from = to + 1
	}
	return append(lines, plan.Notes...)
}

func memoryWords(m launch.MemPolicy) string {
	nodes := affinity.CPUSet(m.Nodes).String()
	switch m.Mode {
	case launch.MemPreferred:
		return ", memory of node " + nodes + " first"
	case launch.MemBound:
		return ", memory of node " + nodes + " only"
	case launch.MemLocal:
		return ", memory of its own node"
	}
	return ""
}
