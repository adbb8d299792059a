package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"stepd/api"
	"stepd/step"
)

func eventsCommand(d *dialer) *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use: "events JOB.STEP", Short: "print a step's event log, one JSON object a line", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return eachEvent(d, args[0], follow, func(line []byte) error {
				_, err := fmt.Printf("%s\n", line)
				return err
			})
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the step ends")
	return c
}

// eachEvent hands every line of a step's log to f.
func eachEvent(d *dialer, name string, follow bool, f func([]byte) error) error {
	id, err := step.ParseID(name)
	if err != nil {
		return err
	}
	client, err := d.client()
	if err != nil {
		return err
	}
	stream, err := client.Events(context.Background(), &api.EventsRequest{
		Step: &api.StepRef{JobId: id.Job, StepId: &id.Step}, Follow: follow,
	})
	if err != nil {
		return err
	}
	for {
		line, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := f(line.Json); err != nil {
			return err
		}
	}
}

func timelineCommand(d *dialer) *cobra.Command {
	return &cobra.Command{
		Use: "timeline JOB.STEP", Short: "show where the time of a step went", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			var spans []span
			var base time.Time
			err := eachEvent(d, args[0], false, func(line []byte) error {
				var e step.Event
				if err := json.Unmarshal(line, &e); err != nil {
					return fmt.Errorf("cannot parse an event: %w", err)
				}
				if base.IsZero() {
					base = e.Time
				}
				spans = appendSpan(spans, base, &e)
				return nil
			})
			if err != nil {
				return err
			}
			return drawSpans(os.Stdout, spans)
		},
	}
}

// span is one bar: what, and from when to when after the request.
type span struct {
	name       string
	start, end time.Duration
}

// appendSpan adds what an event tells: the end of a stage or a hook, or a
// moment.
func appendSpan(spans []span, base time.Time, e *step.Event) []span {
	at := e.Time.Sub(base)
	switch e.Event {
	case step.EventStageEnd, step.EventHookEnd:
		if e.DurUS == nil {
			return spans
		}
		name := e.Phase
		if e.Event == step.EventHookEnd {
			name = fmt.Sprintf("  %s: %s", e.Plugin, strings.TrimPrefix(e.Hook, "slurm_spank_"))
			if e.Rank != nil {
				name += fmt.Sprintf(" (rank %d)", *e.Rank)
			}
		}
		return append(spans, span{name, at - time.Duration(*e.DurUS)*time.Microsecond, at})
	case step.EventAccepted:
		return append(spans, span{"noded", 0, at})
	case step.EventTaskExec, step.EventTaskExit:
		name := strings.Replace(e.Event, "_", " ", 1)
		if e.Rank != nil {
			name = fmt.Sprintf("%s (rank %d)", name, *e.Rank)
		}
		return append(spans, span{name, at, at})
	}
	return spans
}

const (
	nameWidth = 38
	barWidth  = 22
)

// drawSpans draws the bars on one scale, in 80 columns.
func drawSpans(w io.Writer, spans []span) error {
	// Hooks are told in batches, after their stage.
	slices.SortStableFunc(spans, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	var last time.Duration
	for _, s := range spans {
		last = max(last, s.end)
	}
	scale := func(d time.Duration) int {
		if last <= 0 {
			return 0
		}
		return min(barWidth-1, max(0, int(int64(d)*barWidth/int64(last))))
	}
	fmt.Fprintf(w, "%-*s %9s %8s\n", nameWidth, "", "at ms", "ms")
	for _, s := range spans {
		from, to := scale(s.start), scale(s.end)
		mark := "█"
		if s.start == s.end {
			mark = "·"
		}
		bar := strings.Repeat(" ", from) + strings.Repeat(mark, to-from+1)
		_, err := fmt.Fprintf(w, "%-*s %9.3f %8.3f %s\n", nameWidth, clean(s.name, nameWidth),
			ms(s.start), ms(s.end-s.start), bar)
		if err != nil {
			return err
		}
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
