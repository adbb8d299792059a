package client

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"slices"
	"strings"
	"text/template"
	"time"

	"stepd/api"
	"stepd/client/options"
	"stepd/client/plugins"
	"stepd/client/terminal"
	"stepd/eventlog"
	"stepd/explain"
	"stepd/internal/printable"
	"stepd/srunopt"
	"stepd/step"
)

// admitted asks for what req describes, by ask. Where that has to wait, and may, inTurn says
// what for and asks again.
func admitted[R any](o *options.Run, req *step.Request, ask func(*api.RunRequest) (R, error)) (reply R, err error) {
	patience, err := o.Immediate.Seconds()
	if err != nil {
		return reply, err
	}
	asked := *req
	send := func() (R, error) { return ask(&api.RunRequest{Request: &asked}) }
	reply, err = send()
	what := waitsFor(err)
	if patience == nil && req.Job != nil { // as srun's steps wait in a job
		patience = new(srunopt.WaitForever)
	}
	if what == "" || patience == nil || *patience == 0 {
		return reply, err
	}
	if !o.Quiet {
		terminal.Say("waiting for %s", what)
	}
	asked.ImmediateS = patience
	if req.Job == nil { // nothing of it is left in a noded that is gone
		return send()
	}
	return reconnecting(send)
}

// reconnecting asks for a step of a job, and again while noded is gone: the job, and the
// steps that are waited for, go on.
func reconnecting[R any](ask func() (R, error)) (R, error) {
	for gone := (time.Time{}); ; {
		began := time.Now()
		reply, err := ask()
		if api.CodeOf(err) != api.Unavailable {
			return reply, err
		}
		if gone.IsZero() || time.Since(began) > longerThanTry {
			gone = began
		}
		if time.Since(gone) > reconnectFor {
			return reply, err
		}
		// Only trying shows when a socket is served again.
		time.Sleep(200 * time.Millisecond)
	}
}

// waitsFor is what a request that was refused could wait for, "" if it could not.
func waitsFor(err error) string {
	if e, ok := api.AsError(err); ok {
		return e.Waits
	}
	return ""
}

// withinStep reports whether this is a command of a step of the job: it would wait for its
// own step's end. The interactive step holds nothing that anybody would wait for.
func withinStep(job *uint32) bool {
	id := os.Getenv("SLURM_STEP_ID")
	return job != nil && id != "" && id != fmt.Sprint(step.InteractiveStep) && os.Getenv("SLURM_JOB_ID") == fmt.Sprint(*job)
}

// outsideStep is the environment of a command of a step as a new job has it, which has
// nothing to do with that step: neither its number nor its binding.
func outsideStep(env []string) []string {
	of := []string{"SLURM_STEP_ID", "SLURM_STEPID"}
	if id, _ := options.LookupIn(env, of[0]); id != "" {
		of = append(of, options.BindingVariables("SLURM_")...)
	}
	return slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.Contains(of, name)
	})
}

// reconnectFor is how long a noded that is gone is waited for.
const reconnectFor = 60 * time.Second

// longerThanTry is longer than a call that found no noded: one that takes longer was served.
const longerThanTry = api.RestartMax + time.Second

// errNotBack says that noded has stayed away.
var errNotBack = errors.New("noded did not come back")

// sayGone reports that noded does not answer.
func sayGone() { terminal.Say("noded is gone: waiting for it; the step goes on") }

// waiter is the part of a Client that waits for the end of steps.
type waiter interface {
	Wait(ctx context.Context, ref api.StepRef) ([]*step.Record, error)
}

// awaitRecord asks noded for the end of a step, and again where noded goes away meanwhile,
// of which it tells by gone each time; it is errNotBack where noded stays away.
func awaitRecord(ctx context.Context, client waiter, id step.ID, gone func()) (*step.Record, error) {
	since := time.Time{}
	for {
		began := time.Now()
		recs, err := client.Wait(ctx, api.Ref(id))
		if err == nil {
			if len(recs) != 1 {
				return nil, fmt.Errorf("noded told %d records of step %s", len(recs), id)
			}
			return recs[0], nil
		}
		if api.CodeOf(err) != api.Unavailable {
			return nil, err
		}
		// A call that has lasted longer than a connection takes to fail was heard by noded,
		// which has gone anew.
		if since.IsZero() || time.Since(began) > callTimeout {
			since = time.Now()
			gone()
		}
		if time.Since(since) > reconnectFor {
			return nil, fmt.Errorf("%w within %v; step %s goes on: %s", errNotBack, reconnectFor, id, err)
		}
		// Only trying shows when a socket is served again.
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// lastWait is how long noded may take to notice the end of a step whose stepd is gone.
const lastWait = 10 * time.Second

// last is the last record of a step that is about to end.
func (d *Dialer) last(id step.ID) (*step.Record, error) {
	_, err := Ask(d, func(ctx context.Context, client *api.Client) ([]*step.Record, error) {
		ctx, cancel := context.WithTimeout(ctx, lastWait)
		defer cancel()
		return client.Wait(ctx, api.Ref(id))
	})
	switch {
	case api.CodeOf(err) == api.DeadlineExceeded:
		return nil, fmt.Errorf("noded has not learnt of its end within %v", lastWait)
	case err != nil:
		return nil, err
	}
	return d.record(id)
}

// record asks noded for one step.
func (d *Dialer) record(id step.ID) (*step.Record, error) {
	recs, err := Ask(d, func(ctx context.Context, client *api.Client) ([]*step.Record, error) {
		return client.Show(ctx, api.Ref(id))
	})
	if err == nil && len(recs) != 1 {
		err = fmt.Errorf("noded told %d records of one step of job %d", len(recs), id.Job)
	}
	if err != nil {
		return nil, err
	}
	return recs[0], nil
}

// OneStep is the step that a verb about one step means by name: JOB.STEP, or JOB where the job has
// one step. of are a job's steps.
func OneStep(name string, of func(api.StepRef) ([]*step.Record, error)) (step.ID, error) {
	ref, err := ParseRef(name)
	if err != nil {
		return step.ID{}, err
	}
	if ref.StepID != nil {
		return step.ID{Job: ref.JobID, Step: *ref.StepID}, nil
	}
	recs, err := of(ref)
	switch {
	case err != nil:
		return step.ID{}, err
	case len(recs) == 0:
		return step.ID{}, fmt.Errorf("job %d has no step yet", ref.JobID)
	case len(recs) > 1:
		names := make([]string, len(recs))
		for i, rec := range recs {
			names[i] = rec.ID.Name()
		}
		return step.ID{}, fmt.Errorf("job %d has %d steps: name one of %s", ref.JobID, len(recs), printable.Line(strings.Join(names, ", "), 200))
	}
	return recs[0].ID, nil
}

// oneStep is OneStep by noded's records.
func (d *Dialer) oneStep(name string) (step.ID, error) {
	return OneStep(name, func(ref api.StepRef) ([]*step.Record, error) {
		return Ask(d, func(ctx context.Context, noded *api.Client) ([]*step.Record, error) { return noded.Show(ctx, ref) })
	})
}

// Ask is Call for a question that has an answer.
func Ask[R any](d *Dialer, f func(context.Context, *api.Client) (R, error)) (reply R, err error) {
	err = d.Call(func(ctx context.Context, client *api.Client) error {
		reply, err = f(ctx, client)
		return err
	})
	return reply, err
}

// Stream yields what list does. noded may take the bound for calls that are answered at once for
// each value, and not for all of them: thousands of ended steps take longer, and so may the reader.
func Stream[T any](d *Dialer, list func(context.Context, *api.Client) iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		client := d.Client()
		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		late := time.AfterFunc(callTimeout, func() { cancel(fmt.Errorf("noded has not answered for %v", callTimeout)) })
		defer late.Stop()
		for value, err := range list(ctx, client) {
			late.Stop()
			if err != nil && ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			if !yield(value, err) {
				return
			}
			late.Reset(callTimeout)
		}
	}
}

// PrintList writes one document, {"schema":1, key: [...]}, as its values come. After an error of
// theirs the document has no end.
func PrintList[T any](w io.Writer, key string, values iter.Seq2[T, error]) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "{\"schema\":%d,%q:[", step.Schema, key) // out keeps its error for Flush
	first := true
	for value, err := range values {
		if err != nil {
			return err
		}
		b, err := json.Marshal(value)
		if err != nil {
			return err
		}
		if !first {
			b = append([]byte{','}, b...)
		}
		first = false
		if _, err := out.Write(b); err != nil {
			return err
		}
	}
	fmt.Fprint(out, "]}\n")
	return out.Flush()
}

// PrintJSON writes one document, {"schema":1, key: value}.
func PrintJSON(key string, value any) error {
	b, err := json.Marshal(value)
	if err != nil {
		return err
	}
	_, err = fmt.Printf("{\"schema\":%d,%q:%s}\n", step.Schema, key, b)
	return err
}

// PrintDocument writes one document that has its own number of the schema.
func PrintDocument(w io.Writer, doc any) error {
	b, err := json.Marshal(doc)
	if err != nil {
		return fmt.Errorf("cannot encode the document: %w", err)
	}
	_, err = fmt.Fprintf(w, "%s\n", b)
	return err
}

// Show writes a document for people, as a text/template of the folder layouts has it.
func Show(w io.Writer, layouts fs.FS, layout string, doc any) error {
	t, err := template.New(layout).Funcs(template.FuncMap{
		"line":      func(room int, text string) string { return printable.Line(text, room) },
		"text":      func(text string) string { return text }, // of a pointer, too
		"words":     words,
		"join":      strings.Join,
		"at":        At,
		"required":  plugins.RequiredWord,
		"option":    plugins.OptionWord,
		"gres":      srunopt.FormatAllocs,
		"mb":        srunopt.FormatMB,
		"bytesInMB": func(bytes uint64) uint64 { return bytes >> 20 },
		"step":      func(job, number uint32) string { return step.ID{Job: job, Step: number}.Name() },
		"time":      func(t time.Time) string { return t.Format(time.RFC3339) },
	}).ParseFS(layouts, "layouts/"+layout)
	if err != nil {
		return err
	}
	b := bufio.NewWriter(w)
	return errors.Join(t.Execute(b, doc), b.Flush())
}

// words are texts, and lists of them, with two blanks between; the empty ones are left out.
func words(of ...any) string {
	var all []string
	for _, one := range of {
		list, many := one.([]string)
		if text := fmt.Sprint(one); !many && text != "" {
			list = []string{text}
		}
		all = append(all, list...)
	}
	return strings.Join(all, "  ")
}

// At is a place in a file; line 0 is the whole of it.
func At(file string, line int) string {
	if line == 0 {
		return printable.Line(file, 400)
	}
	return fmt.Sprintf("%s:%d", printable.Line(file, 400), line)
}

// StateWord is the state as people read it: a suspended step is
// SUSPENDED, as in squeue(1).
func StateWord(rec *step.Record) string {
	if rec.Suspended != nil && !rec.State.Final() {
		return "SUSPENDED"
	}
	return string(rec.State)
}

// slowLaunch tells at which stage a launch is, and in which hook.
func (l *launch) slowLaunch() (done func()) {
	if l.screen != nil {
		return func() {}
	}
	return terminal.ShowSlow(l.opt.Quiet, func(since time.Duration) (string, bool) {
		text, answered := l.launchStage()
		if !answered {
			return fmt.Sprintf("step %s: waiting for noded for %s", l.id, plugins.Whole(since)), false
		}
		return text, text == ""
	})
}

// launchStage is where the launch stands, in one line, "" once it is over. It is false where
// noded does not answer.
func (l *launch) launchStage() (words string, answered bool) {
	l.mu.Lock()
	state := l.state
	l.mu.Unlock()
	if state != "" && state != step.Pending && state != step.Starting && state != step.Running {
		return "", true
	}
	rec, events := l.look()
	if rec == nil {
		return "", false
	}
	return cmp.Or(launchWords(rec, events, time.Now()), prologWords(rec, time.Now())), true
}

// look asks noded what the step does; nil where it does not answer at once. The event
// log, which is long with many tasks, is read only where the record names no hook.
func (l *launch) look() (*step.Record, []eventlog.Event) {
	ctx, cancel := context.WithTimeout(context.Background(), terminal.WaitingEvery)
	defer cancel()
	recs, err := l.client.Stat(ctx, api.Ref(l.id))
	if err != nil || len(recs) != 1 {
		return nil, nil
	}
	rec := recs[0]
	if inHook(rec) || rec.State == step.Running {
		return rec, nil
	}
	events, _ := EventsOf(l.id, l.client.Events(ctx, l.id, false)) // what was read says where the launch stands
	return rec, events
}

// EventsOf are the events that may explain something of a step's log, which lines read. With
// an error they are the events before it.
func EventsOf(id step.ID, lines iter.Seq2[json.RawMessage, error]) (events []eventlog.Event, err error) {
	for doc, err := range lines {
		var e eventlog.Event
		if err == nil {
			if err = json.Unmarshal(doc, &e); err != nil {
				err = fmt.Errorf("cannot parse an event of step %s: %w", id, err)
			}
		}
		if err != nil {
			return events, err
		}
		events = keep(events, &e)
	}
	return events, nil
}

// inHook reports whether the record names a plugin's hook that runs.
func inHook(rec *step.Record) bool {
	return rec.Host != nil && rec.Host.Hook != "" ||
		slices.ContainsFunc(rec.Tasks, func(t step.Task) bool { return t.Doing != nil && t.Doing.Hook != "" })
}

// launchWords is what a launch does, in one line; "" of one that is over.
func launchWords(rec *step.Record, events []eventlog.Event, now time.Time) string {
	if rec.State != step.Pending && rec.State != step.Starting {
		return ""
	}
	words := "step " + rec.ID.Name() + ": "
	if h := rec.Host; h != nil && h.Hook != "" {
		return words + fmt.Sprintf("plugin %q: %s for %s", h.Plugin, h.Hook, plugins.Whole(h.HookTime))
	}
	for i := range rec.Tasks {
		if d := rec.Tasks[i].Doing; d != nil && d.Hook != "" {
			return words + fmt.Sprintf("plugin %q: %s for %s, first of task %d", d.Plugin, d.Hook, plugins.Whole(d.HookTime), rec.Tasks[i].Rank)
		}
	}
	x := explain.Explain(rec, events, now)
	if x.Stage == nil {
		return words + strings.ToLower(string(rec.State))
	}
	return words + fmt.Sprintf("%s for %s", explain.StageWords(x.Stage.Name), plugins.Whole(now.Sub(x.Stage.Begun)))
}

// prologWords describe a step that runs and none of whose tasks has reached its command:
// they are in their TaskProlog, which nothing need bound; "" of any other. Once one has,
// its output has the terminal.
func prologWords(rec *step.Record, now time.Time) string {
	var ranks []int
	for i := range rec.Tasks {
		switch t := &rec.Tasks[i]; {
		case t.State != step.TaskStarting:
			return ""
		case t.Doing != nil && t.Doing.Stage == eventlog.PhaseTaskProlog:
			ranks = append(ranks, t.Rank)
		}
	}
	if rec.State != step.Running || rec.Started == nil || len(ranks) == 0 {
		return ""
	}
	return fmt.Sprintf("step %s: TaskProlog of %s runs for %s", rec.ID.Name(), options.Tasks(ranks), plugins.Whole(now.Sub(*rec.Started)))
}

// keep adds an event that may explain something: a step of a thousand tasks has a
// hundred thousand that do not. A hook that has returned well takes its start back,
// which comes right before its end.
func keep(events []eventlog.Event, e *eventlog.Event) []eventlog.Event {
	switch e.Event {
	case eventlog.EventTaskFork, eventlog.EventTaskExec, eventlog.EventUsage:
		return events
	case eventlog.EventHookEnd:
		last := len(events) - 1
		if e.RC != nil && *e.RC >= 0 && last >= 0 && events[last].Event == eventlog.EventHookStart &&
			events[last].Plugin == e.Plugin && events[last].Hook == e.Hook {
			return events[:last]
		}
	}
	return append(events, *e)
}
