// Package top is the verb top: it looks at steps again and again and shows what they use, as
// tables, as JSON, or on a screen with keys. watch and rates are in top.go, the picture, a
// pure function of looks and keys, in model.go, the terminal in screen.go.
package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"stepd/api"
	"stepd/client"
	"stepd/client/terminal"
	"stepd/step"
)

// topOptions are the options of top.
type topOptions struct {
	delay       float64
	batch, json bool
	iterations  int
	sort        string
	tasks       bool
}

// TopCommand is the verb top.
func TopCommand(d *client.Dialer) *cobra.Command {
	o := &topOptions{}
	c := &cobra.Command{
		Use: "top [options] [JOB[.STEP]...]", Short: "watch what steps and their tasks use",
		RunE: func(_ *cobra.Command, args []string) error {
			if o.delay < 0.1 || o.delay > 3600 {
				return fmt.Errorf("--delay=%v: want seconds, 0.1 to 3600", o.delay)
			}
			if !slices.Contains(TopFields(), o.sort) {
				return fmt.Errorf("--sort=%s: want %s", o.sort, strings.Join(TopFields(), ", "))
			}
			w, err := newWatch(d, args)
			if err != nil {
				return err
			}
			return runTop(w, o)
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.Float64VarP(&o.delay, "delay", "d", 2, "seconds between two looks")
	f.BoolVarP(&o.batch, "batch", "b", false, "print tables one behind the other, without keys")
	f.IntVarP(&o.iterations, "iterations", "n", 0, "end after so many looks (default: with --batch and --json 1, else none)")
	f.StringVar(&o.sort, "sort", "cpu", "order of the steps: "+strings.Join(TopFields(), ", "))
	f.BoolVarP(&o.tasks, "tasks", "t", false, "show the tasks of all steps")
	f.BoolVar(&o.json, "json", false, "one JSON document for each look")
	return c
}

// TopFields are what steps can be ordered by.
func TopFields() []string { return []string{"cpu", "memory", "io", "time", "step"} }

// topWatch looks at steps again and again.
type topWatch struct {
	d    *client.Dialer
	refs []api.StepRef // of these alone; none: of all
	last map[step.ID]*step.Record
	at   time.Time // of the last look
}

func newWatch(d *client.Dialer, args []string) (*topWatch, error) {
	w := &topWatch{d: d}
	for _, a := range args {
		ref, err := client.ParseRef(a)
		if err != nil {
			return nil, err
		}
		w.refs = append(w.refs, ref)
	}
	return w, nil
}

// topLook is what one look has shown.
type topLook struct {
	Node     json.RawMessage `json:"node"`
	Time     time.Time       `json:"time"`
	Interval *float64        `json:"interval_s"` // null: it is the first
	Steps    []topStep       `json:"steps"`

	node api.Node
}

// topStep is a step with its rates; nil is not known.
type topStep struct {
	*step.Record
	CPUPercent *float64   `json:"cpu_percent"`
	ReadRate   *float64   `json:"read_rate"`
	WriteRate  *float64   `json:"write_rate"`
	TaskRates  []topRates `json:"task_rates"` // in the order of tasks
}

// topRates are the rates of one task.
type topRates struct {
	Rank       int      `json:"rank"`
	CPUPercent *float64 `json:"cpu_percent"`
	ReadRate   *float64 `json:"read_rate"`
	WriteRate  *float64 `json:"write_rate"`
}

// look asks noded for all that a screen shows.
func (w *topWatch) look() (*topLook, error) {
	l := &topLook{Steps: []topStep{}}
	var recs []*step.Record
	err := w.d.Call(func(ctx context.Context, client *api.Client) (err error) {
		if l.Node, err = client.Node(ctx); err != nil {
			return err
		}
		if err := json.Unmarshal(l.Node, &l.node); err != nil {
			return fmt.Errorf("cannot parse noded's document: %w", err)
		}
		recs, err = w.records(ctx, client)
		return err
	})
	if err != nil {
		return nil, err
	}
	l.Time = time.Now()
	var since time.Duration
	if !w.at.IsZero() {
		since = l.Time.Sub(w.at)
		l.Interval = new(since.Seconds())
	}
	now := make(map[step.ID]*step.Record, len(recs))
	for _, rec := range recs {
		now[rec.ID] = rec
		l.Steps = append(l.Steps, ratesOf(rec, w.last[rec.ID], since))
	}
	w.last, w.at = now, l.Time
	return l, nil
}

// records are the records of running steps, with their present usage: a job at a
// time. A step that ends meanwhile, or belongs to another user, has what ps shows of it.
func (w *topWatch) records(ctx context.Context, client *api.Client) (recs []*step.Record, err error) {
	used := map[step.ID]*step.Record{}
	asked := map[uint32]bool{}
	own := uint32(os.Getuid())
	for rec, err := range client.List(ctx, false) {
		if err != nil {
			return nil, err
		}
		if !w.wanted(rec.ID) {
			continue
		}
		recs = append(recs, rec)
		if asked[rec.ID.Job] || own != 0 && rec.UID != own {
			continue
		}
		asked[rec.ID.Job] = true
		now, err := client.Stat(ctx, api.StepRef{JobID: rec.ID.Job})
		if err != nil {
			continue // it has ended
		}
		for _, rec := range now {
			used[rec.ID] = rec
		}
	}
	for i, rec := range recs {
		if u := used[rec.ID]; u != nil {
			recs[i] = u
		}
	}
	return recs, nil
}

func (w *topWatch) wanted(id step.ID) bool {
	return len(w.refs) == 0 || slices.ContainsFunc(w.refs, func(ref api.StepRef) bool {
		return ref.JobID == id.Job && (ref.StepID == nil || *ref.StepID == id.Step)
	})
}

// ratesOf are the rates of a step since its record of the last look.
func ratesOf(rec, before *step.Record, since time.Duration) topStep {
	s := topStep{Record: rec, TaskRates: []topRates{}}
	if before == nil {
		before = &step.Record{}
	}
	if rec.Usage != nil && before.Usage != nil {
		s.CPUPercent, s.ReadRate, s.WriteRate = rates(&rec.Usage.Used, &before.Usage.Used, since)
	}
	past := map[int]*step.Used{}
	for i := range before.Tasks {
		past[before.Tasks[i].Rank] = before.Tasks[i].Usage
	}
	for i := range rec.Tasks {
		t := &rec.Tasks[i]
		r := topRates{Rank: t.Rank}
		if p := past[t.Rank]; t.Usage != nil && p != nil {
			r.CPUPercent, r.ReadRate, r.WriteRate = rates(t.Usage, p, since)
		}
		s.TaskRates = append(s.TaskRates, r)
	}
	return s
}

func rates(now, before *step.Used, since time.Duration) (cpu, read, write *float64) {
	if since <= 0 {
		return nil, nil, nil
	}
	per := func(now, before, factor float64) *float64 {
		return new(max(0, (now-before)*factor/since.Seconds())) // a sum shrinks when a process ends
	}
	if now.CPUSeconds != nil && before.CPUSeconds != nil {
		cpu = per(*now.CPUSeconds, *before.CPUSeconds, 100)
	}
	if now.ReadBytes != nil && before.ReadBytes != nil {
		read = per(float64(*now.ReadBytes), float64(*before.ReadBytes), 1)
	}
	if now.WrittenBytes != nil && before.WrittenBytes != nil {
		write = per(float64(*now.WrittenBytes), float64(*before.WrittenBytes), 1)
	}
	return cpu, read, write
}

// runTop shows looks as tables, as documents, or on the screen.
func runTop(w *topWatch, o *topOptions) error {
	if o.batch || o.json || !terminal.IsTerminal(os.Stdout) || !terminal.IsTerminal(os.Stdin) || os.Getenv("TERM") == "dumb" {
		if !o.batch && !o.json && o.iterations == 0 {
			terminal.Say("this is no terminal: one look (--batch says so)")
		}
		return printLooks(w, o)
	}
	return topScreen(w, o)
}

func printLooks(w *topWatch, o *topOptions) error {
	for n := 1; ; n++ {
		l, err := w.look()
		if err != nil {
			return err
		}
		if o.json {
			err = printTopJSON(l)
		} else {
			columns, _ := terminal.ScreenSize(os.Stdout)
			m := newTopModel(o)
			m.set(l)
			_, err = fmt.Println(strings.Join(m.table(max(columns, 80)), "\n"))
		}
		if err != nil {
			return err
		}
		if n >= max(o.iterations, 1) {
			return nil
		}
		time.Sleep(time.Duration(o.delay * float64(time.Second)))
	}
}

func printTopJSON(l *topLook) error {
	return client.PrintDocument(os.Stdout, struct {
		Schema int `json:"schema"`
		*topLook
	}{step.Schema, l})
}

// errQuit ends the screen.
var errQuit = errors.New("quit")
