package report

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"stepd/api"
	"stepd/client"
	"stepd/client/terminal"
	"stepd/eventlog"
	"stepd/explain"
	"stepd/step"
)

// ExplainCommand is the verb explain.
func ExplainCommand(d *client.Dialer) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "explain JOB[.STEP]", Short: "say what happened to a step and why, or what it waits for", Args: cobra.ExactArgs(1),
		Long: `Say what happened to a step and why: from its record, its event log and, while
it runs, from what its processes do now. It shows the stage at which a launch
waits or has stopped, plugins and hooks, why tasks were not started, how they
ended and who sent the signal, memory, and for an MPI program how far each rank
has come and which ranks the others wait for.`,
		RunE: onRef(func(ref api.StepRef) error { return explainSteps(d, ref, asJSON) }),
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return c
}

func explainSteps(d *client.Dialer, ref api.StepRef, asJSON bool) error {
	recs, err := recordsNow(d, ref)
	if err != nil {
		return err
	}
	all := make([]*explain.Explanation, len(recs))
	for i, rec := range recs {
		events, err := eventsOf(d, rec.ID)
		if err != nil {
			return err
		}
		all[i] = explain.Explain(rec, events, time.Now())
	}
	switch {
	case asJSON && ref.StepID != nil && len(all) == 1:
		return client.PrintJSON("explanation", all[0])
	case asJSON:
		return client.PrintJSON("explanations", all)
	}
	style := explain.Style{Bold: terminal.Colours(os.Stdout)}
	if terminal.IsTerminal(os.Stdout) {
		style.Width, _ = terminal.ScreenSize(os.Stdout)
	}
	for i, x := range all {
		if i > 0 {
			fmt.Println()
		}
		if err := x.Write(os.Stdout, style); err != nil {
			return err
		}
	}
	return nil
}

// recordsNow are the records of a step, or of a job's steps, with what processes
// do now where a stepd answers: one that does not is why the user asks.
func recordsNow(d *client.Dialer, ref api.StepRef) (recs []*step.Record, err error) {
	recs, err = client.Ask(d, func(ctx context.Context, noded *api.Client) ([]*step.Record, error) {
		ctx, cancel := context.WithTimeout(ctx, statPatience)
		defer cancel()
		return noded.Stat(ctx, ref)
	})
	if code := api.CodeOf(err); code == api.Unavailable || code == api.DeadlineExceeded {
		unanswered := err
		recs, err = client.Ask(d, func(ctx context.Context, noded *api.Client) ([]*step.Record, error) { return noded.Show(ctx, ref) })
		if err == nil {
			terminal.Say("%s: what its processes do is not known", unanswered)
		}
	}
	return recs, err
}

// statPatience is how long a stepd may take to look at its processes.
const statPatience = 10 * time.Second

// eventsOf reads a step's event log; one that is gone, of an old step, holds nothing.
func eventsOf(d *client.Dialer, id step.ID) ([]eventlog.Event, error) {
	events, err := client.EventsOf(context.Background(), d.Client(), id)
	if api.CodeOf(err) == api.NotFound {
		return nil, nil
	}
	return events, err
}
