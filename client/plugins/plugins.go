// Package plugins is the client's side of SPANK: a spankhost that runs as the caller, the
// plugins' options as flags, and what the plugins make of the environment. Host is its type,
// and Load the first function to call. The name service is asked through spankhost, too
// (Lookup).
package plugins

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"stepd/api"
	"stepd/client/terminal"
	"stepd/internal/manual"
	"stepd/spank"
	"stepd/srunopt"
	"stepd/step"
	"stepd/step/launch"
)

// Host is the client's side of SPANK: a spankhost that runs as the caller,
// in local context for run and in allocator context for alloc and batch. Where
// the stack is empty there is none, and every method does nothing.
type Host struct {
	Session *spank.Session // nil where the stack is empty
	context spank.Context
	Options []spank.Option // what the plugins offer
	given   []given        // on the command line, in its order
	// values are what the remote side gets: the last one of each option.
	values map[int][]byte // nil: none

	Node       string // this node's name
	Cluster    string // this cluster's name
	MPIDefault string // MpiDefault
	// MemoryUnlimited is why --mem is not enforced here, "" where it is.
	MemoryUnlimited string
	Shell           string   // what run is given to be an allocation's shell, "" for one here
	Env             []string // environ, as plugins have left it
	jobControl      [][]byte
	Unset           [][]byte // names that plugins have taken out of the job control environment
	PostOptEnv      []string // what environ has besides, at slurm_spank_init_post_opt
	ExitEnv         []string // what environ has besides, at slurm_spank_exit
	told            bool     // how the host has ended
	exited          *int     // the command's exit code, where a plugin has called exit
	strict          bool     // SpankStrict
	warned          sync.Map // what Warn was told
	// Ends is the step whose end the command's is, nil: none. Over says that it has ended.
	Ends *step.ID
	Over bool
}

// given is one use of an option.
type given struct {
	option int
	value  []byte // nil: none
}

// Load reads the node's plugin stack as the caller, loads it and calls
// slurm_spank_init. ctx bounds the questions to noded alone; hold is given the session, so
// that a signal ends it. An error was printed already where exitError says so.
func Load(ctx context.Context, client *api.Client, c spank.Context, job uint32, hold func(*spank.Session)) (*Host, error) {
	p := &Host{context: c, values: make(map[int][]byte), Env: os.Environ()}
	conf, stack, err := NodeStack(ctx, client, job)
	if err != nil {
		return nil, err
	}
	p.Node, p.Cluster, p.strict, p.MPIDefault, p.Shell = conf.Node, conf.Cluster, conf.SpankStrict, conf.MPIDefault, conf.InteractiveStep
	p.MemoryUnlimited = conf.MemoryUnlimited
	if len(stack.Plugins) == 0 {
		return p, nil
	}
	var problems []string
	p.Session, problems, err = Open(context.Background(), conf, spank.SessionConfig{
		Context: c, Stack: stack, Env: p.Env, Files: [3]*os.File{os.Stdin, os.Stdout, os.Stderr},
		HookTimeout: time.Duration(conf.HookTimeoutS) * time.Second, Log: p.hear,
	})
	if c != spank.ContextLocal { // in local context stepd says the same
		for _, line := range problems {
			terminal.Say("%s", line)
		}
	}
	hold(p.Session)
	if err == nil {
		fast := p.Slow(false)
		p.Options, err = p.Session.Init()
		fast()
	}
	if err != nil {
		return nil, p.failed(err, "Plug-in initialization failed", "Failed to initialize plugin stack")
	}
	return p, nil
}

// Offered loads the plugins as loadPlugins does, for the names of their options alone:
// it prints nothing, and each hook may take as long as patience. It is nil where nothing can
// be loaded; the caller closes it.
func Offered(ctx context.Context, client *api.Client, c spank.Context, patience time.Duration) *Host {
	conf, stack, err := NodeStack(ctx, client, 0)
	if err != nil || len(stack.Plugins) == 0 {
		return nil
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	defer null.Close()
	p := &Host{context: c, values: make(map[int][]byte)}
	p.Session, _, err = Open(ctx, conf, spank.SessionConfig{
		Context: c, Stack: stack, Env: os.Environ(), Files: [3]*os.File{null, null, null}, HookTimeout: patience,
	})
	if err == nil {
		p.Options, err = p.Session.Init()
	}
	if err != nil {
		p.Options = nil
	}
	return p
}

// Open starts a spankhost that runs as the caller, as the node's configuration has it; the
// rest is in cfg.
func Open(ctx context.Context, conf *api.ConfigReply, cfg spank.SessionConfig) (s *spank.Session, problems []string, err error) {
	if cfg.Program, err = Beside("spankhost"); err != nil {
		return nil, nil, err
	}
	cfg.AllowReleases, cfg.NodeName = conf.AllowReleases, conf.Node
	cfg.User = step.User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	return spank.Open(ctx, cfg)
}

// Warn reports whether a warning is to be printed: it was not yet, in this command. A plugin
// that fails on this side fails on the node as well, which says the same.
func (p *Host) Warn(text string) bool {
	_, told := p.warned.LoadOrStore(text, true)
	return !told
}

// hear prints what plugins say, as srun does (spank-behaviour §6).
func (p *Host) hear(r launch.HostRecord) {
	switch r.Level {
	case launch.LogError:
		terminal.Say("error: %s", r.Text)
	case launch.LogWarning:
		if p.Warn(r.Text) {
			terminal.Say("warning: %s", r.Text)
		}
	case launch.LogSpank:
		terminal.SayLine(r.Text)
	case launch.LogInfo:
		terminal.Say("%s", r.Text)
	}
}

// failed ends the host and words a failure in srun's or salloc's words; the
// hook's own were said by the host, unless it has not lived to say them. A plugin that
// has called exit(n) ends the command with n, as it would end srun itself.
func (p *Host) failed(err error, local, allocator string) error {
	p.Close() // its last words come first
	p.tell(err)
	if p.exited != nil {
		code := *p.exited
		if hook, ok := errors.AsType[*launch.HookError](err); ok && hook.Required && p.strict {
			code = max(1, code)
		}
		return terminal.ExitError(code)
	}
	words := local
	if p.context == spank.ContextAllocator {
		words = allocator
	}
	terminal.Say("error: %s", words)
	return terminal.ExitError(1)
}

// tell reports how the host has ended, once.
func (p *Host) tell(err error) {
	if p.told || Returned(err) {
		return
	}
	p.told = true
	terminal.Say("error: %v", err)
	if hook, ok := errors.AsType[*launch.HookError](err); ok {
		p.exited = hook.Exit
	}
}

// Returned reports whether an error is only what a hook has returned.
func Returned(err error) bool {
	hook, ok := errors.AsType[*launch.HookError](err)
	return ok && hook.RC != nil
}

// pluginFlag is an option of a plugin, as a flag of the command.
type pluginFlag struct {
	p *Host
	i int
}

// noArg stands for "given without an argument": no argument can hold a NUL.
const noArg = "\x00"

func (f *pluginFlag) String() string { return "" }

// Type has no meaning: help writes the option as the plugin does.
func (f *pluginFlag) Type() string { return "" }

func (f *pluginFlag) Set(text string) error {
	o := f.p.Options[f.i]
	g := given{option: f.i}
	if text != noArg {
		if o.HasArg == 0 {
			return errors.New("it takes no argument")
		}
		g.value = []byte(text)
	}
	f.p.given = append(f.p.given, g)
	return nil
}

// ScriptFlags makes flags of script of the plugins' options that are flags of own, the command
// line's. restore puts what the command line has given behind what the script gives: it is
// called last, and wins.
func (p *Host) ScriptFlags(own, script *pflag.FlagSet) (restore func()) {
	line := p.given
	p.given = nil
	for i, o := range p.Options {
		if f := own.Lookup(o.Name); f != nil && IsFlag(f) {
			script.VarPF(&pluginFlag{p, i}, o.Name, "", "").NoOptDefVal = f.NoOptDefVal
		}
	}
	return func() { p.given = append(p.given, line...) }
}

// IsFlag reports whether a flag is an option of a plugin.
func IsFlag(f *pflag.Flag) bool {
	_, plugin := f.Value.(*pluginFlag)
	return plugin
}

// AddFlags makes the plugins' options flags of the command; each plugin's are a
// section of its help.
func (p *Host) AddFlags(c *cobra.Command) {
	own := c.Flags()
	for i, o := range p.Options {
		if own.Lookup(o.Name) != nil || c.InheritedFlags().Lookup(o.Name) != nil || o.Name == "help" {
			terminal.Say("error: Ignoring conflicting option %q in plugin %q", o.Name, o.Plugin)
			continue
		}
		f := &pflag.Flag{Name: o.Name, Usage: o.Usage, Value: &pluginFlag{p, i}, Annotations: map[string][]string{
			manual.OwnGroup: {fmt.Sprintf("Options of plugin %s (%s)", o.Plugin, o.File)},
			manual.Written:  {OptionWord(o.Name, o.ArgInfo, o.HasArg)},
		}}
		if o.HasArg != 1 {
			f.NoOptDefVal = noArg
		}
		own.AddFlag(f)
	}
}

// OptionWord is how an option is written: "--name", "--name=ARG", "--name[=ARG]".
func OptionWord(name, info string, hasArg int) string {
	info = cmp.Or(info, "ARG")
	switch hasArg {
	case 0:
		return "--" + name
	case 1:
		return "--" + name + "=" + info
	}
	return "--" + name + "[=" + info + "]"
}

// Take calls the options back: the environment's, in the stack's order, then
// the command line's, in its own; then slurm_spank_init_post_opt.
func (p *Host) Take() error {
	if p.Session == nil {
		return nil
	}
	for i, o := range p.Options {
		text, ok := os.LookupEnv(srunopt.JobEnvPrefix + srunopt.OptionVariable(o.Plugin, o.Name))
		if !ok {
			continue
		}
		if err := p.give(i, []byte(text)); err != nil {
			return err
		}
		if o.HasArg == 0 || (o.HasArg == 2 && text == noValue) {
			p.values[i] = nil
		}
	}
	for _, g := range p.given {
		if err := p.give(g.option, g.value); err != nil {
			return err
		}
	}
	if err := p.Session.PostOpt(p.PostOptEnv); err != nil {
		if p.context == spank.ContextAllocator {
			p.Exit() // measured: salloc and sbatch call it then
		}
		return p.failed(err, "Plugin stack post-option processing failed.", "Plugin stack post-option processing failed")
	}
	return p.readState()
}

// noValue is how the outer command writes a flag into its job's environment.
const noValue = "(null)"

func (p *Host) give(i int, v []byte) error {
	o := p.Options[i]
	p.values[i] = v
	err := p.Session.Give(o, v)
	if hook, ok := errors.AsType[*launch.HookError](err); ok && hook.Exit != nil {
		return p.failed(err, "", "")
	}
	if !Returned(err) {
		return err
	}
	if p.context == spank.ContextAllocator {
		p.Exit() // measured: so do salloc and sbatch, and not srun
	}
	terminal.Say("error: Invalid --%s argument: %.1024s", o.Name, v) // in srun's words
	return terminal.ExitError(1)
}

func (p *Host) readState() error {
	env, jc, unset, err := p.Session.State()
	if err != nil {
		return err
	}
	given := make(map[string]bool)
	for _, o := range p.SpankOptions() {
		given[srunopt.OptionVariable(o.Plugin, o.Name)] = true
	}
	// The host has set them there; they go by optionEnv.
	p.Env = slices.DeleteFunc(env, func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return given[name]
	})
	p.jobControl, p.Unset = jc, unset
	return nil
}

// LocalUserInit calls slurm_spank_local_user_init: the step has its number.
func (p *Host) LocalUserInit(j spank.LocalJob) error {
	if p.Session == nil {
		return nil
	}
	if err := p.Session.LocalUserInit(j); err != nil {
		p.Exit() // where it lives
		return p.failed(err, "Failure in local plugin stack", "")
	}
	return p.readState()
}

// SpankOptions are what the request carries to the callbacks of the remote side.
func (p *Host) SpankOptions() []step.SpankOption {
	var out []step.SpankOption
	for i, o := range p.Options {
		if v, ok := p.values[i]; ok {
			out = append(out, step.SpankOption{Plugin: o.Plugin, Name: o.Name, Value: v})
		}
	}
	return out
}

// OptionEnv is the form that options have in the job's environment: so a batch
// step gets them, and every step a second time, as measured.
func (p *Host) OptionEnv() []string {
	var env []string
	for _, o := range p.SpankOptions() {
		env = append(env, srunopt.OptionVariable(o.Plugin, o.Name)+"="+string(o.Value))
	}
	return env
}

// ShortOptionEnv is that for a program that is started here: what is too long
// for one is left out, as jobEnv tells.
func (p *Host) ShortOptionEnv() []string {
	return slices.DeleteFunc(p.OptionEnv(), func(e string) bool { return len(e) > step.VariableMax })
}

// Control is the job control environment with the options in it.
func (p *Host) Control() [][]byte {
	out := append([][]byte(nil), p.jobControl...)
	for _, o := range p.SpankOptions() {
		text := noValue
		if o.Value != nil {
			text = string(o.Value)
		}
		out = append(out, []byte(srunopt.OptionVariable(o.Plugin, o.Name)+"="+text))
	}
	return out
}

// JobEnv is how the commands of the job see it, but for what no program could
// be started with: the plugins alone get that.
func (p *Host) JobEnv() []string {
	var env []string
	for _, e := range p.Control() {
		if e := srunopt.JobEnvPrefix + string(e); len(e) <= step.VariableMax {
			env = append(env, e)
		}
	}
	return env
}

// WarnTooLong reports what jobEnv leaves out.
func (p *Host) WarnTooLong() {
	for _, e := range p.Control() {
		name, value, _ := strings.Cut(srunopt.JobEnvPrefix+string(e), "=")
		if len(name)+1+len(value) > step.VariableMax {
			terminal.Say("the value of %s has %d bytes, more than a program can be started with: the job's commands do not see it", name, len(value))
		}
	}
}

// Around calls the options back, does what the verb is for, and calls slurm_spank_exit. It
// returns the command's exit code.
func (p *Host) Around(client *api.Client, verb func() (int, error)) (int, error) {
	if err := p.Take(); err != nil {
		return 0, err
	}
	code, err := verb()
	return p.End(client, code, err)
}

// End calls slurm_spank_exit after the verb, and returns what the command ends with: where a plugin
// has called exit(n), n. A required plugin that fails there changes nothing else (failure table) but
// with SpankStrict: then the code is not 0, nor is the code of the step that the command stands for.
func (p *Host) End(client *api.Client, code int, err error) (int, error) {
	failed := p.Exit()
	if p.exited != nil {
		code = *p.exited
	}
	if failed == nil || !p.strict || err != nil {
		return code, err
	}
	if p.Ends != nil {
		ctx := context.Background()
		// noded takes no longer a one: files, and functions of C++, have longer names.
		reason := failed.Error()
		reason = strings.ToValidUTF8(reason[:min(len(reason), srunopt.NameMax)], "")
		if p.Over {
			_, err = client.Wait(ctx, api.Ref(*p.Ends)) // noded may not have its result yet
		}
		_, cerr := client.Cancel(ctx, &api.CancelRequest{StepRef: api.Ref(*p.Ends), Reason: reason, Failed: true})
		err = cmp.Or(err, cerr)
		if err != nil {
			terminal.Say("error: cannot fail step %s: %s", p.Ends, err)
		}
	}
	return max(1, code), nil
}

// Exit calls slurm_spank_exit, and returns the failure of a required plugin.
func (p *Host) Exit() *launch.HookError {
	if p == nil || p.Session == nil {
		return nil
	}
	err := p.Session.Ending()
	if err == nil {
		err = p.Session.Exit(p.ExitEnv)
	}
	if err != nil {
		p.tell(err)
	}
	p.told = true
	if hook, ok := errors.AsType[*launch.HookError](err); ok && hook.Required {
		return hook
	}
	return nil
}

// Close ends the host.
func (p *Host) Close() {
	if p != nil && p.Session != nil {
		p.Session.Close()
		p.Session = nil
	}
}

// DryRunOptions tells with each plugin of the stack the options that it would be given.
func (p *Host) DryRunOptions(stack []api.DryPlugin) {
	for i, o := range p.Options {
		v, ok := p.values[i]
		if !ok {
			continue
		}
		word := "--" + o.Name
		if v != nil {
			word += "=" + string(v)
		}
		for j := range stack {
			if filepath.Base(stack[j].Path) == o.File {
				stack[j].Options = append(stack[j].Options, word)
				break
			}
		}
	}
}

// RequiredWord is plugstack.conf's own for a plugin.
func RequiredWord(required bool) string {
	if required {
		return "required"
	}
	return "optional"
}

// Slow shows which hook of which plugin runs on this side, where it takes long.
func (p *Host) Slow(quiet bool) (done func()) {
	s := p.Session // p.close takes it away
	if s == nil {
		return func() {}
	}
	return terminal.ShowSlow(quiet, func(time.Duration) (text string, over bool) {
		if plugin, hook, since, in := s.Doing(); in {
			text = fmt.Sprintf("plugin %q: %s for %s, on this side", plugin, hook, Whole(since))
		}
		return text, false
	})
}

// Whole is a duration in seconds.
func Whole(d time.Duration) string { return d.Truncate(time.Second).String() }

// stackTries bounds how often the node's stack is read until it is the node's.
// noded waits for a writer at each of them.
const stackTries = 10

// NodeStack reads the node's plugin stack as the caller. The kernel does not
// report to a user that a process is writing a file; it reports it to noded, whose digest of
// a stack that it has read whole must equal ours: the digest that noded has published, or, where
// the files have changed since, the one that it takes for this call.
//
// A running job keeps the stack with which it began: job is the one that a step is to be of, 0 is
// none.
func NodeStack(ctx context.Context, client *api.Client, job uint32) (*api.ConfigReply, spank.Stack, error) {
	var none spank.Stack
	if conf, err := client.Published(); err == nil {
		if stack, kept, err := readStack(conf, job); kept || err == nil && stack.Digest == conf.PlugstackDigest {
			return conf, stack, err
		}
	}
	for range stackTries {
		conf, err := client.Config(ctx)
		if err != nil {
			return nil, none, err
		}
		stack, kept, err := readStack(conf, job)
		if conf.PlugstackError != "" && !kept {
			return nil, none, errors.New(conf.PlugstackError)
		}
		if err == nil && !kept && stack.Digest != conf.PlugstackDigest {
			continue
		}
		return conf, stack, err
	}
	return nil, none, errors.New("cannot read the node's plugin stack: what is read here is not what noded reads; it is being changed, or this process sees other files than noded")
}

// readStack reads the stack that the configuration names, or the one that the job has kept.
func readStack(conf *api.ConfigReply, job uint32) (stack spank.Stack, kept bool, err error) {
	read := step.SpankConf{Plugstack: conf.Plugstack, PluginDirs: conf.PluginDirs, RequireSafe: conf.RequireSafe}
	for _, j := range conf.JobStacks {
		if j.JobID == job {
			read.Kept, kept = j.File, true
		}
	}
	stack, err = spank.StackOf(read)
	return stack, kept, err
}
