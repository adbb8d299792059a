package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"stepd/api"
	"stepd/spank"
	"stepd/step"
)

// batchOptions are those of batch beyond run's.
type batchOptions struct {
	runOptions
	wait bool
	wrap string
}

func batchCommand(d *dialer) *cobra.Command {
	o := &batchOptions{}
	c := &cobra.Command{
		Use:         "batch [options] [SCRIPT [ARG...]]",
		Short:       "run a script as a job of its own, and do not wait for it",
		Long:        "batch runs SCRIPT (default: what stdin holds) as a job of its own. Lines of it that begin with\n#SBATCH or #STEP, before its first command, are options; the command line's overrule them.",
		Annotations: map[string]string{usesPlugins: spank.ContextAllocator.String()},
		RunE: func(c *cobra.Command, argv []string) error {
			client, err := d.client()
			if err != nil {
				return err
			}
			script, argv, err := o.script(argv)
			if err != nil {
				return err
			}
			if err := bindingFromEnv(c.Flags(), "SBATCH_"); err != nil {
				return err
			}
			if err := optionsFromEnv(c.Flags(), batchEnvOptions); err != nil {
				return err
			}
			if err := scriptOptions(c, d.plugins, script); err != nil {
				return err
			}
			code, err := batch(client, o, d.plugins, script, argv)
			if err == nil && code != 0 {
				return exitError(code)
			}
			return err
		},
	}
	o.bindJob(c)
	o.bindOutput(c, "none", "slurm-%j.out")
	c.Flags().BoolVarP(&o.wait, "wait", "W", false, "wait for the job's end and exit with its code")
	c.Flags().StringVar(&o.wrap, "wrap", "", "a command of the shell instead of a script")
	return c
}

// script reads the script, as the caller.
func (o *batchOptions) script(argv []string) ([]byte, []string, error) {
	if o.wrap != "" {
		if len(argv) > 0 {
			return nil, nil, errors.New("--wrap and a script exclude each other")
		}
		return []byte("#!/bin/sh\n" + o.wrap + "\n"), []string{"wrap"}, nil
	}
	in, name := os.Stdin, "sbatch" // the name that sbatch gives it
	if len(argv) > 0 {
		f, err := os.Open(argv[0])
		if err != nil {
			return nil, nil, fmt.Errorf("cannot read script: %w", err)
		}
		defer f.Close()
		in, name = f, argv[0]
	} else {
		argv = []string{name}
	}
	b, err := io.ReadAll(io.LimitReader(in, step.ScriptMax+1))
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("cannot read script %q: %w", name, err)
	case len(b) > step.ScriptMax:
		return nil, nil, fmt.Errorf("cannot submit script %q: more than %d bytes", name, step.ScriptMax)
	case !bytes.HasPrefix(b, []byte("#!")):
		return nil, nil, fmt.Errorf("cannot submit script %q: its first line does not begin with #! and the path of an interpreter", name)
	case bytes.IndexByte(b, 0) >= 0:
		return nil, nil, fmt.Errorf("cannot submit script %q: it holds a NUL byte", name)
	case bytes.Contains(b, []byte("\r\n")):
		return nil, nil, fmt.Errorf("cannot submit script %q: its lines end with CR LF: use dos2unix", name)
	}
	return b, argv, nil
}

// scriptOptions applies the #SBATCH lines that the command line does not
// overrule.
func scriptOptions(c *cobra.Command, p *plugins, script []byte) error {
	args, err := sbatchLines(script)
	if err != nil || len(args) == 0 {
		return err
	}
	fresh := &batchOptions{}
	of := &cobra.Command{Use: "batch", SilenceErrors: true, SilenceUsage: true}
	fresh.bindJob(of)
	fresh.bindOutput(of, "none", "slurm-%j.out")
	of.Flags().BoolVarP(&fresh.wait, "wait", "W", false, "")
	line := p.given
	p.given = nil
	for i, o := range p.options {
		if f := c.Flags().Lookup(o.Name); f != nil {
			if _, ours := f.Value.(*pluginFlag); ours {
				of.Flags().VarPF(&pluginFlag{p, i}, o.Name, "", "").NoOptDefVal = f.NoOptDefVal
			}
		}
	}
	if err := of.ParseFlags(args); err != nil {
		return fmt.Errorf("#SBATCH: %w", flagError(of.Flags(), err))
	}
	if err := contradictions(of.Flags()); err != nil {
		return fmt.Errorf("#SBATCH: %w", err)
	}
	if left := of.Flags().Args(); len(left) > 0 {
		return fmt.Errorf("#SBATCH: %q is no option", left[0])
	}
	p.given = append(p.given, line...) // the command line's are called last, and win
	for _, f := range setFlags(of) {
		own := c.Flags().Lookup(f.Name)
		if _, plugin := f.Value.(*pluginFlag); plugin || own == nil || own.Changed || overruled(c.Flags(), f.Name) {
			continue
		}
		if err := own.Value.Set(f.Value.String()); err != nil {
			return fmt.Errorf("#SBATCH: --%s: %w", f.Name, err)
		}
	}
	return nil
}

// sbatchLines collects the words of the #SBATCH and #STEP lines: they end at the first
// line that is neither empty nor a comment.
func sbatchLines(script []byte) ([]string, error) {
	var args []string
	lines := bufio.NewScanner(bytes.NewReader(script))
	lines.Buffer(nil, step.ScriptMax)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		rest, ok := strings.CutPrefix(line, "#SBATCH")
		if !ok {
			rest, ok = strings.CutPrefix(line, "#STEP")
		}
		switch {
		case ok && (rest == "" || rest[0] == ' ' || rest[0] == '\t'):
			words, err := splitWords(rest)
			if err != nil {
				return nil, fmt.Errorf("line %d of the script: %w", n, err)
			}
			args = append(args, words...)
		case line != "" && line[0] != '#':
			return args, nil
		}
	}
	return args, lines.Err()
}

// splitWords splits at blanks; quotes and backslashes keep them, and an
// unquoted # ends the line.
func splitWords(s string) ([]string, error) {
	var words []string
	var word strings.Builder
	in, quote := false, byte(0)
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == '\'':
			word.WriteByte(c)
		case c == '\\':
			if i++; i == len(s) {
				return nil, errors.New("it ends with a backslash")
			}
			word.WriteByte(s[i])
			in = true
		case quote != 0:
			word.WriteByte(c)
		case c == '"' || c == '\'':
			quote, in = c, true
		case c == ' ' || c == '\t':
			if in {
				words = append(words, word.String())
				word.Reset()
			}
			in = false
		case c == '#' && !in:
			return words, nil
		default:
			word.WriteByte(c)
			in = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("the quote %c is not closed", quote)
	}
	if in {
		words = append(words, word.String())
	}
	return words, nil
}

// batch submits the script.
func batch(client api.NodeClient, o *batchOptions, p *plugins, script []byte, argv []string) (int, error) {
	p.postOptEnv = []string{"SLURM_JOB_NAME=" + cmp.Or(o.name, nameOf(argv[0]))}
	if err := p.take(); err != nil {
		return 0, err
	}
	code, err := submit(client, o, p, script, argv)
	p.exit()
	return p.strictCode(code), err
}

func submit(client api.NodeClient, o *batchOptions, p *plugins, script []byte, argv []string) (int, error) {
	req, err := o.request(batchJob, append([]string{filepath.Base(argv[0])}, argv[1:]...), p)
	if err != nil {
		return 0, err
	}
	// Measured: a batch step has the options by its environment alone.
	req.Script, req.SpankOptions = script, nil
	p.tellTooLong() // stepd makes the script's environment of JobControl
	p.exitEnv = append(p.jobEnv(), "SLURM_JOB_NAME="+req.Name, "SLURM_SUBMIT_DIR="+req.Cwd, "SLURM_SUBMIT_HOST="+req.SubmitHost)
	own, err := o.clientEnv(p, int(req.Umask))
	if err != nil {
		return 0, err
	}
	for _, e := range own {
		if !strings.HasPrefix(e, "SRUN_") {
			p.exitEnv = append(p.exitEnv, e)
		}
	}
	req.Pack()
	doc, err := json.Marshal(req)
	if err != nil {
		return 0, fmt.Errorf("cannot encode the request: %w", err)
	}
	ctx := context.Background()
	reply, err := client.Run(ctx, &api.RunRequest{Request: doc})
	if err != nil {
		return 0, err
	}
	fmt.Printf("Submitted batch job %d\n", reply.JobId)
	if !o.wait {
		return 0, nil
	}
	l := &launch{client: client, node: reply.Node, id: step.ID{Job: reply.JobId, Step: reply.StepId}, opt: &o.runOptions, ntasks: 1}
	rec, err := l.wait()
	switch {
	case err != nil:
		return 0, err
	case rec.ExitCode == nil:
		say("error: batch job %d: %s, and its exit code is not known: %s", reply.JobId, rec.State, rec.Reason)
		return 1, nil
	case rec.State != step.Completed && rec.Reason != "":
		say("error: batch job %d: %s: %s", reply.JobId, rec.State, rec.Reason)
	}
	return *rec.ExitCode, nil
}
