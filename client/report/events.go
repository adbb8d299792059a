package report

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"stepd/client"
	"stepd/client/terminal"
	"stepd/eventlog"
	"stepd/internal/printable"
	"stepd/step"
)

// EventsCommand is the verb events.
func EventsCommand(d *client.Dialer) *cobra.Command {
	var follow, asJSON bool
	c := &cobra.Command{
		Use: "events [options] JOB.STEP", Short: "print a step's event log, one JSON object a line", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return eachEvent(d, args[0], follow, func(line []byte) error {
				if rest, ok := bytes.CutPrefix(line, []byte("{")); asJSON && ok {
					line = append(fmt.Appendf(nil, `{"schema":%d,`, step.Schema), rest...)
				}
				_, err := fmt.Printf("%s\n", line)
				return err
			})
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the step ends")
	c.Flags().BoolVar(&asJSON, "json", false, "with the number of the schema in each line")
	return c
}

// eachEvent hands every line of a step's log to f.
func eachEvent(d *client.Dialer, name string, follow bool, f func([]byte) error) error {
	id, err := step.ParseID(name)
	if err != nil {
		return err
	}
	for line, err := range d.Client().Events(context.Background(), id, follow) {
		if err != nil {
			return err
		}
		if err := f(line); err != nil {
			return err
		}
	}
	return nil
}

// TimelineCommand is the verb timeline.
func TimelineCommand(d *client.Dialer) *cobra.Command {
	var asJSON bool
	var svg string
	c := &cobra.Command{
		Use: "timeline [options] JOB.STEP", Short: "show where the time of a step went", Args: cobra.ExactArgs(1),
		Long: "Show where the time of a step went: a bar for each stage of the launch and of the end, and, set in below them, for each hook of a plugin; calls for several tasks share one bar, from the begin of the first to the end of the last. " +
			"Launch, tasks and end have scales of their own. What failed is red, what has not ended yellow, where there are colours.",
		RunE: func(_ *cobra.Command, args []string) error {
			var b eventlog.TimelineBuilder
			err := eachEvent(d, args[0], false, func(line []byte) error {
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
			switch {
			case asJSON:
				return client.PrintJSON("timeline", t)
			case svg == "-":
				_, err = io.WriteString(os.Stdout, t.SVG("step "+args[0]))
			case svg != "":
				if err := os.WriteFile(svg, []byte(t.SVG("step "+args[0])), 0o666); err != nil {
					return fmt.Errorf("cannot write the picture: %w", err)
				}
			default:
				columns, _ := terminal.ScreenSize(os.Stdout)
				_, err = io.WriteString(os.Stdout, t.Text("step "+args[0], cmp.Or(columns, 80), terminal.Colours(os.Stdout)))
			}
			return err
		},
	}
	c.Flags().StringVar(&svg, "svg", "", "draw it as a picture (SVG) into `FILE`; - is standard output")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	c.MarkFlagsMutuallyExclusive("svg", "json")
	return c
}

// at is "FILE:LINE", or the file as a whole.
func at(file string, line int) string {
	if line == 0 {
		return printable.Line(file, 400)
	}
	return fmt.Sprintf("%s:%d", printable.Line(file, 400), line)
}
