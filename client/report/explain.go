package report

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"stepd/api"
	"stepd/client"
	"stepd/client/terminal"
	"stepd/eventlog"
	"stepd/explain"
	"stepd/internal/printable"
	"stepd/step"
)

// ExplainCommand is the verb explain.
func ExplainCommand(d *client.Dialer) *cobra.Command {
	var asJSON bool
	from := sources{d: d}
	c := &cobra.Command{
		Use: "explain [JOB[.STEP]]", Short: "say what happened to a step and why, or what it, or a request without a number, waits for",
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return explainRequests(&from, asJSON)
			}
			return onRef(func(ref api.StepRef) error { return explainSteps(&from, ref, asJSON) })(c, args)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	from.flag(c.Flags())
	return c
}

func explainSteps(from *sources, ref api.StepRef, asJSON bool) error {
	s, err := from.choose()
	if err != nil {
		return err
	}
	recs, err := s.records(ref)
	if err != nil {
		return err
	}
	all := make([]*explain.Explanation, len(recs))
	for i, rec := range recs {
		events, err := eventsOf(s, rec.ID)
		if err != nil {
			return err
		}
		all[i] = explain.Explain(rec, events, time.Now())
	}
	switch {
	case asJSON && ref.StepID != nil && len(all) == 1:
		return client.PrintJSON("explanation", all[0])
	case asJSON:
		return explainJob(os.Stdout, s, ref, all)
	}
	style := explain.Style{Bold: terminal.Colours(os.Stdout), Width: screenWidth()}
	for i, x := range all {
		if i > 0 {
			fmt.Println()
		}
		if err := x.Write(os.Stdout, style); err != nil {
			return err
		}
	}
	if ref.StepID == nil {
		return explainWaits(os.Stdout, s, ref.JobID, len(all), style.Width, time.Now())
	}
	return nil
}

// screenWidth is how wide the terminal is that is written to, 0 without one.
func screenWidth() (columns int) {
	if terminal.IsTerminal(os.Stdout) {
		columns, _ = terminal.ScreenSize(os.Stdout)
	}
	return columns
}

// explainRequests explains the caller's requests, for root all users' requests, that wait without a
// number.
func explainRequests(from *sources, asJSON bool) error {
	s, err := from.choose()
	if err != nil {
		return err
	}
	node, err := s.node()
	switch {
	case err != nil:
		return err
	case node == nil:
		return errors.New("explain: steps that wait under Slurm are in squeue; name a step, as in stepctl explain 12.0")
	}
	uid := uint32(os.Getuid())
	waits := slices.DeleteFunc(node.Waiting, func(r api.NodeWaiting) bool { return uid != 0 && r.UID != uid })
	if asJSON {
		return printExplanations(os.Stdout, nil, waits)
	}
	return writeRequests(os.Stdout, waits, screenWidth(), time.Now())
}

// writeRequests writes the user of each request and since when it waits, what for, and what to do.
func writeRequests(w io.Writer, waits []api.NodeWaiting, width int, now time.Time) error {
	var b strings.Builder
	line := liner(&b, width)
	if len(waits) == 0 {
		line("", "no request waits: stepctl explain JOB[.STEP] explains a step")
	}
	for i := range waits[:min(len(waits), waitsMax)] {
		r := &waits[i]
		line("", fmt.Sprintf("request %s of %s, %s: WAITING for %s, without a number yet", printable.Line(r.Name, 20), printable.Line(r.User, 20), Plural(r.NTasks, "task"), now.Sub(r.Since).Round(time.Second)))
		job := ""
		if r.JobID != nil {
			job = fmt.Sprintf(" %d", *r.JobID)
		}
		cause, rest := "for "+printable.Line(r.For, 0), ""
		if width >= 40 {
			cause, rest = printable.First(cause, width-len("  waits: "))
		}
		line("  ", "waits: "+cause)
		line("    ", "stepctl ps"+job+" shows who has it; Ctrl-C in its terminal gives up")
		if rest != "" {
			line("    ", rest)
		}
	}
	tellMore(&b, len(waits))
	_, err := io.WriteString(w, b.String())
	return err
}

// liner writes texts, indented, in lines of at most width columns; below 40 of any length.
func liner(b *strings.Builder, width int) func(indent, text string) {
	if width < 40 {
		width = math.MaxInt
	}
	return func(indent, text string) { b.WriteString(printable.Wrap(text, indent, indent, width) + "\n") }
}

// tellMore says how many requests that wait are not described.
func tellMore(b *strings.Builder, waits int) {
	if n := waits - waitsMax; n > 0 {
		fmt.Fprintf(b, "  %d more wait\n", n)
	}
}

// explainJob prints the document of a job: of its steps, and of what waits without a number.
func explainJob(w io.Writer, s source, ref api.StepRef, all []*explain.Explanation) error {
	if ref.StepID != nil {
		return printExplanations(w, all, nil)
	}
	waits, _, err := waitsOf(s, ref.JobID)
	if err != nil {
		return err
	}
	return printExplanations(w, all, waits)
}

// printExplanations prints a document of steps and of what waits; none are empty lists.
func printExplanations(w io.Writer, all []*explain.Explanation, waits []api.NodeWaiting) error {
	return client.PrintDocument(w, struct {
		Schema       int                    `json:"schema"`
		Explanations []*explain.Explanation `json:"explanations"`
		Waits        []api.NodeWaiting      `json:"waits"`
	}{step.Schema, append([]*explain.Explanation{}, all...), append([]api.NodeWaiting{}, waits...)})
}

// waitsOf are the requests of a job that wait, and the job, nil where the node has no such job.
func waitsOf(s source, job uint32) ([]api.NodeWaiting, *api.NodeJob, error) {
	node, err := s.node()
	if err != nil || node == nil {
		return nil, nil, err
	}
	waits := slices.DeleteFunc(node.Waiting, func(r api.NodeWaiting) bool { return r.JobID == nil || *r.JobID != job })
	if i := slices.IndexFunc(node.Jobs, func(j api.NodeJob) bool { return j.ID == job }); i >= 0 {
		return waits, &node.Jobs[i], nil
	}
	return waits, nil, nil
}

// explainWaits says what a job's steps wait for that have no number yet, and of a job without a step
// that it has none: its prolog may run.
func explainWaits(w io.Writer, s source, job uint32, steps, width int, now time.Time) error {
	waits, j, err := waitsOf(s, job)
	if err != nil {
		return err
	}
	var b strings.Builder
	line := liner(&b, width)
	if steps == 0 {
		fmt.Fprintf(&b, "job %d  has no step yet\n", job)
	}
	switch {
	case steps > 0:
	case j != nil && j.Doing == "prolog":
		text := "prolog: the job waits for its prolog"
		if j.Started != nil {
			text += ", which runs for " + now.Sub(*j.Started).Round(time.Second).String()
		}
		line("  ", text)
		line("    ", fmt.Sprintf("PrologEpilogTimeout in slurm.conf bounds it; stepctl cancel %d ends it", job))
	case len(waits) == 0:
		line("  ", fmt.Sprintf("stepctl run --jobid %d COMMAND starts one", job))
	}
	for i := range waits[:min(len(waits), waitsMax)] {
		r := &waits[i]
		line("  ", "waits: for "+printable.Line(r.For, 0))
		line("    ", fmt.Sprintf("stepctl ps %d shows who has them; %s, %s, waits for %s", job, printable.Line(r.Name, 20), Plural(r.NTasks, "task"), now.Sub(r.Since).Round(time.Second)))
	}
	tellMore(&b, len(waits))
	_, err = io.WriteString(w, b.String())
	return err
}

// waitsMax bounds the requests of a job that are described.
const waitsMax = 16

// eventsOf reads a step's event log; one that is gone, of an old step, holds nothing.
func eventsOf(s source, id step.ID) ([]eventlog.Event, error) {
	events, err := client.EventsOf(id, s.lines(id, false))
	if api.CodeOf(err) == api.NotFound || errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return events, err
}

// EventsCommand is the verb events.
func EventsCommand(d *client.Dialer) *cobra.Command {
	var follow, asJSON bool
	from := sources{d: d}
	c := &cobra.Command{
		Use: "events [options] JOB[.STEP]", Short: "print a step's event log, one JSON object a line", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := from.choose()
			if err != nil {
				return err
			}
			_, err = eachEvent(s, args[0], follow, func(line []byte) error {
				if rest, ok := bytes.CutPrefix(line, []byte("{")); asJSON && ok {
					line = append(fmt.Appendf(nil, `{"schema":%d,`, step.Schema), rest...)
				}
				_, err := fmt.Printf("%s\n", line)
				return err
			})
			return err
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the step ends")
	c.Flags().BoolVar(&asJSON, "json", false, "with the number of the schema in each line")
	from.flag(c.Flags())
	return c
}

// eachEvent hands every line of the log of the step that name means to f, and returns its id.
func eachEvent(s source, name string, follow bool, f func([]byte) error) (step.ID, error) {
	id, err := client.OneStep(name, s.known)
	if err != nil {
		return id, err
	}
	for line, err := range s.lines(id, follow) {
		if err == nil {
			err = f(line)
		}
		if err != nil {
			return id, err
		}
	}
	return id, nil
}

// head is what a timeline says of its step; a step of slurmd that has just begun has no record yet.
func head(s source, id step.ID) (eventlog.Head, error) {
	recs, err := s.known(api.Ref(id))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(recs) != 1 {
		return eventlog.HeadOf(&step.Record{ID: id, State: step.Starting}), nil
	}
	if err != nil {
		return eventlog.Head{}, err
	}
	return eventlog.HeadOf(recs[0]), nil
}

// TimelineCommand is the verb timeline.
func TimelineCommand(d *client.Dialer) *cobra.Command {
	var asJSON bool
	var svg string
	from := sources{d: d}
	c := &cobra.Command{
		Use: "timeline [options] JOB[.STEP]", Short: "show where the time of a step went", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			s, err := from.choose()
			if err != nil {
				return err
			}
			var b eventlog.TimelineBuilder
			id, err := eachEvent(s, args[0], false, func(line []byte) error {
				var e eventlog.Event
				if err := json.Unmarshal(line, &e); err != nil {
					return fmt.Errorf("cannot parse an event: %w", err)
				}
				b.Add(&e)
				return nil
			})
			if err != nil {
				return err
			}
			t := b.Done(time.Now())
			if t.Head, err = head(s, id); err != nil {
				return err
			}
			switch {
			case asJSON:
				return client.PrintJSON("timeline", t)
			case svg == "-":
				_, err = io.WriteString(os.Stdout, t.SVG())
			case svg != "":
				if err := os.WriteFile(svg, []byte(t.SVG()), 0o666); err != nil {
					return fmt.Errorf("cannot write the picture: %w", err)
				}
			default:
				columns, _ := terminal.ScreenSize(os.Stdout)
				_, err = io.WriteString(os.Stdout, t.Text(cmp.Or(columns, 80), terminal.Colours(os.Stdout)))
			}
			return err
		},
	}
	c.Flags().StringVar(&svg, "svg", "", "draw it as a picture (SVG) into `FILE`; - is standard output")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	from.flag(c.Flags())
	return c
}
