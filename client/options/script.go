package options

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"stepd/client/plugins"
	"stepd/srunopt"
)

// Lines says which of the options that count were given by a line of the
// script: "--time" is at "job.sh:3".
type Lines map[string]string

// Locate puts the line's place before an error that begins with its option.
func (l Lines) Locate(err error) error {
	if err == nil {
		return nil
	}
	option, _, _ := strings.Cut(err.Error(), ":")
	option, _, _ = strings.Cut(option, " ")
	option, _, _ = strings.Cut(option, "=")
	if at, ok := l[option]; ok {
		return fmt.Errorf("%s: #SBATCH: %w", at, err)
	}
	return err
}

// FromScript applies the #SBATCH lines of the script name that the command line
// does not overrule. An error names the line; there is one for each wrong line.
func FromScript(c *cobra.Command, p *plugins.Host, name string, script []byte) (Lines, error) {
	lines, err := sbatchLines(name, script)
	if err != nil || len(lines) == 0 {
		return nil, err
	}
	of := &cobra.Command{Use: "batch", SilenceErrors: true, SilenceUsage: true}
	new(Batch).Bind(of)
	restore := p.ScriptFlags(c.Flags(), of.Flags())
	given := make(Lines)
	var wrong []error // all lines at once: a script is not mended one line a run
	for _, l := range lines {
		before := make(map[string]string)
		for _, f := range setFlags(of) {
			before[f.Name] = f.Value.String()
		}
		if err := of.ParseFlags(l.words); err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %s: %w", l.at, l.mark, FlagError("stepctl batch", of.Flags(), err)))
			continue
		}
		if left := of.Flags().Args(); len(left) > 0 {
			wrong = append(wrong, fmt.Errorf("%s: %s: %q is no option", l.at, l.mark, left[0]))
			continue
		}
		for _, f := range setFlags(of) {
			if was, ok := before[f.Name]; !ok || was != f.Value.String() {
				given["--"+f.Name] = l.at
			}
		}
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	if err := contradictions(of.Flags()); err != nil {
		return nil, given.Locate(err)
	}
	restore()
	for _, f := range setFlags(of) {
		own := c.Flags().Lookup(f.Name)
		if plugins.IsFlag(f) || own == nil || own.Changed || overruled(c.Flags(), f.Name) {
			delete(given, "--"+f.Name)
			continue
		}
		if err := own.Value.Set(f.Value.String()); err != nil {
			return nil, fmt.Errorf("%s: #SBATCH: --%s: %w", given["--"+f.Name], f.Name, err)
		}
		own.Changed = true
	}
	return given, nil
}

// scriptLine is one #SBATCH or #STEP line.
type scriptLine struct {
	at    string // "job.sh:3"
	mark  string // "#SBATCH"
	words []string
}

// sbatchLines collects the #SBATCH and #STEP lines: they end at the first line that is
// neither empty nor a comment.
func sbatchLines(name string, script []byte) (found []scriptLine, err error) {
	lines := bufio.NewScanner(bytes.NewReader(script))
	lines.Buffer(nil, srunopt.ScriptMax)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		mark := "#SBATCH"
		rest, ok := strings.CutPrefix(line, mark)
		if !ok {
			mark = "#STEP"
			rest, ok = strings.CutPrefix(line, mark)
		}
		switch {
		case ok && (rest == "" || rest[0] == ' ' || rest[0] == '\t'):
			at := fmt.Sprintf("%s:%d", name, n)
			words, err := SplitWords(rest)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", at, mark, err)
			}
			if len(words) > 0 {
				found = append(found, scriptLine{at, mark, words})
			}
		case line != "" && line[0] != '#':
			return found, nil
		}
	}
	return found, lines.Err()
}

// SplitWords splits at blanks; quotes and backslashes keep them, and an
// unquoted # ends the line.
func SplitWords(s string) ([]string, error) {
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

// Batch are the options of batch beyond run's.
type Batch struct {
	Run
	Wait     bool   // for the job's end
	Parsable bool   // print the job's number alone
	Wrap     string // a command of the shell instead of a script
	// Lines are where the script gives options.
	Lines Lines
}

// Bind binds what the lines of a script may say, too.
func (o *Batch) Bind(c *cobra.Command) {
	o.BindJob(c)
	o.bindOutput(c, "none", "slurm-%j.out")
	f := c.Flags()
	f.BoolVarP(&o.Wait, "wait", "W", false, "wait for the job's end and exit with its code")
	f.Bool("no-requeue", false, "accepted: a job is never run again")
	f.StringVar(&o.exportFile, "export-file", "", "variables for the job over this environment: a file, or the number of a descriptor, with NAME=VALUE and a NUL each")
	f.BoolVar(&o.Parsable, "parsable", false, "print the job's number alone")
}

// Script reads the script, as the caller.
func (o *Batch) Script(argv []string) ([]byte, []string, error) {
	if o.Wrap != "" {
		if len(argv) > 0 {
			return nil, nil, errors.New("--wrap and a script exclude each other")
		}
		return []byte("#!/bin/sh\n" + o.Wrap + "\n"), []string{"wrap"}, nil
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
	b, err := io.ReadAll(io.LimitReader(in, srunopt.ScriptMax+1))
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("cannot read script %q: %w", name, err)
	case len(b) > srunopt.ScriptMax:
		return nil, nil, fmt.Errorf("cannot submit script %q: more than %d bytes", name, srunopt.ScriptMax)
	case !bytes.HasPrefix(b, []byte("#!")):
		return nil, nil, fmt.Errorf("cannot submit script %q: its first line does not begin with #! and the path of an interpreter", name)
	case bytes.IndexByte(b, 0) >= 0:
		return nil, nil, fmt.Errorf("cannot submit script %q: it holds a NUL byte", name)
	case bytes.Contains(b, []byte("\r\n")):
		return nil, nil, fmt.Errorf("cannot submit script %q: its lines end with CR LF: use dos2unix", name)
	}
	return b, argv, nil
}
