package site

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"stepd/internal/printable"
	"stepd/slurmconf"
)

// Check is `noded --check-config`: it says whether noded starts with the files, lists the keys that
// are not used, by class, and then every mistake with file and line, errors last. It fails when there
// is one. No line is wider than width columns (0 is 100), but for a word that is.
func Check(out io.Writer, o Options, width int) error {
	s, err := Load(o)
	if err != nil {
		return err
	}
	return report(s, out, nil, width)
}

// Diagnose is `noded --check`: Check, and what the host has to say.
func Diagnose(out io.Writer, o Options, width int) error {
	s, err := Load(o)
	if err != nil {
		return err
	}
	return report(s, out, examine(s), width)
}

// report prints the findings: what is to be mended comes last, where it is read.
func report(s *Site, out io.Writer, host []finding, width int) error {
	width = max(cmp.Or(width, 100), 40)
	conf := slices.Concat(s.problems, s.stackProblems())
	lines := make(map[slurmconf.Severity][]string)
	for _, p := range conf {
		if p.Class == "" {
			lines[p.Severity] = append(lines[p.Severity], fmt.Sprintf("%s: %s", p.Severity, p))
		}
	}
	wrong := len(lines[slurmconf.SeverityError])
	for _, f := range host {
		lines[f.severity] = append(lines[f.severity], f.String())
	}
	sick := len(lines[slurmconf.SeverityError]) - wrong
	var b strings.Builder
	headline(&b, s, conf, lines, wrong, width)
	for _, class := range []slurmconf.Class{slurmconf.ClassController, slurmconf.ClassUnsupported, slurmconf.ClassUnused} {
		listClass(&b, class, conf, width)
	}
	for _, severity := range []slurmconf.Severity{severityOK, slurmconf.SeverityWarning, slurmconf.SeverityError} {
		for _, line := range lines[severity] {
			b.WriteString(printable.Wrap(printable.Line(line, 0), "", "  ", width) + "\n")
		}
	}
	if _, err := io.WriteString(out, b.String()); err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	switch {
	case wrong > 0 && sick > 0:
		return mistaken(fmt.Sprintf("%s in the configuration, and %s on this host", mistakes(wrong), mistakes(sick)))
	case wrong > 0:
		return mistaken(mistakes(wrong) + " in the configuration")
	case sick > 0:
		return fmt.Errorf("%s on this host", mistakes(sick))
	}
	return nil
}

// headline says in three lines what was found, the first of what is to be mended, and what to do.
// wrong counts the mistakes in the files.
func headline(b *strings.Builder, s *Site, conf []slurmconf.Problem, lines map[slurmconf.Severity][]string, wrong, width int) {
	ignored := make(map[[2]string]bool)
	for _, p := range conf {
		if p.Class != "" {
			ignored[[2]string{p.File, p.Key}] = true
		}
	}
	errors, warnings := lines[slurmconf.SeverityError], lines[slurmconf.SeverityWarning]
	file := ", without a slurm.conf"
	if s.conf.File != "" {
		file = " in " + printable.Line(s.conf.File, 0)
	}
	b.WriteString(printable.Wrap(fmt.Sprintf("%s, %s, %s without effect%s", mistakes(len(errors)), plural(len(warnings), "warning"), plural(len(ignored), "key"), file), "", "  ", width) + "\n")
	if first := slices.Concat(errors, warnings); len(first) > 0 { // its file without the directory, which is above
		b.WriteString("  " + printable.Fit(printable.Line(strings.Replace(first[0], ": "+filepath.Dir(s.conf.File)+"/", ": ", 1), 0), width-2) + "\n")
	}
	do := "noded starts"
	switch {
	case wrong > 0:
		do = `noded does not start: mend what begins with "error:", at the end`
	case len(errors) > 0:
		do = `steps may fail: mend what begins with "error:", at the end`
	case len(warnings) > 0:
		do = `noded starts: look at what begins with "warning:", at the end`
	}
	b.WriteString(printable.Wrap(do, "  ", "  ", width) + "\n\n")
}

// listClass lists the ignored keys of a class, file by file, with their lines.
func listClass(b *strings.Builder, class slurmconf.Class, found []slurmconf.Problem, width int) {
	var files, keys []string // in the order in which they stand
	lines := make(map[[2]string][]string)
	n := 0
	for _, p := range found {
		if p.Class != class {
			continue
		}
		at := [2]string{p.File, p.Key}
		if lines[at] == nil {
			n++
		}
		lines[at] = append(lines[at], strconv.Itoa(p.Line))
		if !slices.Contains(files, p.File) {
			files = append(files, p.File)
		}
		if !slices.Contains(keys, p.Key) {
			keys = append(keys, p.Key)
		}
	}
	if n == 0 {
		return
	}
	fmt.Fprintf(b, "%s, %s:\n", class, plural(n, "key"))
	for _, file := range files {
		var words []string
		for _, key := range keys {
			if at := lines[[2]string{file, key}]; at != nil {
				more := ""
				if len(at) > linesShown {
					at, more = at[:linesShown], ",…"
				}
				words = append(words, fmt.Sprintf("%s:%s%s", key, strings.Join(at, ","), more))
			}
		}
		fmt.Fprintf(b, "  %s\n%s\n", printable.Line(file, 0), printable.Wrap(printable.Line(strings.Join(words, "  "), 0), "    ", "    ", width))
	}
}

// linesShown bounds the lines that are named of a key.
const linesShown = 3

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// CheckReload finds the mistakes for which noded would not begin anew: it then
// goes on with now, the site that it has.
func CheckReload(o Options, now *Site) error {
	s, err := Load(o)
	if err != nil {
		return err
	}
	if err := s.Mistakes(); err != nil {
		return err
	}
	if err := s.checkAddress(now); err != nil {
		return err
	}
	for _, p := range s.stackProblems() {
		if p.Severity == slurmconf.SeverityError {
			return fmt.Errorf("cannot use the plugin stack: %s", p)
		}
	}
	if _, _, err := programs(); err != nil {
		return err
	}
	return s.checkContainers()
}

// checkAddress finds that the address of the page of metrics cannot be listened at, unless
// now has its port already: noded itself listens there.
func (s *Site) checkAddress(now *Site) error {
	address := s.conf.Stepd.MetricsListen
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil // none, or a socket
	}
	if _, own, err := net.SplitHostPort(now.conf.Stepd.MetricsListen); err == nil && own == port {
		return nil
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", address)
	if err != nil {
		return fmt.Errorf("cannot listen at %q (MetricsListen): %w", address, err)
	}
	return l.Close()
}
