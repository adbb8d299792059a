package site

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"

	"stepd/internal/printable"
	"stepd/slurmconf"
)

// Check is `noded --check-config`: it lists the keys that are not used, by class, then prints every
// mistake with file and line, errors last, and fails when there is one.
func Check(out io.Writer, o Options) error {
	s, err := Load(o)
	if err != nil {
		return err
	}
	return report(s, out, nil)
}

// Diagnose is `noded --check`: Check, and what the host has to say.
func Diagnose(out io.Writer, o Options) error {
	s, err := Load(o)
	if err != nil {
		return err
	}
	return report(s, out, examine(s))
}

// screen is the width of what Check prints, errors and warnings aside: they are a line each.
const screen = 80

// report prints the findings: what is to be mended comes last, where it is read.
func report(s *Site, out io.Writer, host []finding) error {
	var b strings.Builder
	conf := slices.Concat(s.problems, s.stackProblems())
	for _, class := range []slurmconf.Class{slurmconf.ClassController, slurmconf.ClassUnsupported, slurmconf.ClassUnused} {
		listClass(&b, class, conf)
	}
	wrong, sick := 0, 0
	for _, severity := range []slurmconf.Severity{severityOK, slurmconf.SeverityWarning, slurmconf.SeverityError} {
		for _, p := range conf {
			if p.Severity == severity {
				fmt.Fprintf(&b, "%s: %s\n", p.Severity, p)
			}
		}
		for _, f := range host {
			if f.severity == severity {
				fmt.Fprintln(&b, f)
			}
		}
	}
	for _, p := range conf {
		if p.Severity == slurmconf.SeverityError {
			wrong++
		}
	}
	for _, f := range host {
		if f.severity == slurmconf.SeverityError {
			sick++
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

// listClass lists the ignored keys of a class, file by file, with their lines.
func listClass(b *strings.Builder, class slurmconf.Class, found []slurmconf.Problem) {
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
		fmt.Fprintf(b, "  %s\n%s\n", printable.Line(file, 0), printable.Wrap(printable.Line(strings.Join(words, "  "), 0), "    ", "    ", screen))
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
