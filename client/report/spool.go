package report

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"time"

	"github.com/spf13/pflag"

	"stepd/api"
	"stepd/client"
	"stepd/client/terminal"
	"stepd/eventlog/archive"
	"stepd/slurmconf"
	"stepd/step"
)

// source is who knows a step: noded, or what slurmstepd has left in slurmd's spool.
type source interface {
	// records are a step's, or a job's, with what its processes do; known are those without.
	records(ref api.StepRef) ([]*step.Record, error)
	known(ref api.StepRef) ([]*step.Record, error)
	// node is the node's document, nil where slurmctld has what waits.
	node() (*api.Node, error)
	// lines are a step's events, as JSON; with follow until it ends.
	lines(id step.ID, follow bool) iter.Seq2[json.RawMessage, error]
}

// sources is where the verbs that look back on a step look.
type sources struct {
	d     *client.Dialer
	spool string // --spool
}

func (s *sources) flag(flags *pflag.FlagSet) {
	flags.StringVar(&s.spool, "spool", "", "read steps of slurmd from its spool `DIR` (default: SlurmdSpoolDir of slurm.conf, where no noded serves)")
}

// slurmConf is read where SLURM_CONF names no other file.
const slurmConf = "/etc/slurm/slurm.conf"

// choose is the archive that --spool names, else noded; where neither option nor environment
// names a noded and none serves, slurmd's spool if slurmstepd has steps in it.
func (s *sources) choose() (source, error) {
	if s.spool != "" && s.d.Socket != "" {
		return nil, errors.New("--spool and --socket exclude each other: a step is slurmd's or noded's")
	}
	if s.spool != "" {
		return spooled{archive.In(s.spool)}, nil
	}
	if _, named := s.d.Path(); named || s.d.Client().Reach(context.Background()) == nil {
		return asked{s.d}, nil
	}
	c, err := slurmdConf()
	if err != nil || c.SlurmdSpoolDir == "" {
		return asked{s.d}, nil // noded's absence is what there is to report
	}
	a := archive.In(c.SlurmdSpoolDir)
	if _, err := os.Stat(string(a)); err != nil {
		return asked{s.d}, nil
	}
	return spooled{a}, nil
}

// slurmdConf is what the node's slurmd reads, where it is readable.
func slurmdConf() (*slurmconf.Config, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("cannot find the host's name: %w", err)
	}
	return slurmconf.LoadSlurmd(cmp.Or(os.Getenv("SLURM_CONF"), slurmConf), host, "")
}

// asked is noded.
type asked struct{ d *client.Dialer }

// statPatience is how long a stepd may take to look at its processes.
const statPatience = 10 * time.Second

// records have what processes do now where a stepd answers: one that does not is why the user
// asks.
func (s asked) records(ref api.StepRef) (recs []*step.Record, err error) {
	recs, err = client.Ask(s.d, func(ctx context.Context, noded *api.Client) ([]*step.Record, error) {
		ctx, cancel := context.WithTimeout(ctx, statPatience)
		defer cancel()
		return noded.Stat(ctx, ref)
	})
	if code := api.CodeOf(err); code == api.Unavailable || code == api.DeadlineExceeded {
		unanswered := err
		if recs, err = s.known(ref); err == nil {
			terminal.Say("%s: what its processes do is not known", unanswered)
		}
	}
	return recs, err
}

func (s asked) node() (*api.Node, error) { return nodeOf(s.d) }

func (s asked) known(ref api.StepRef) ([]*step.Record, error) {
	return client.Ask(s.d, func(ctx context.Context, noded *api.Client) ([]*step.Record, error) { return noded.Show(ctx, ref) })
}

func (s asked) lines(id step.ID, follow bool) iter.Seq2[json.RawMessage, error] {
	return s.d.Client().Events(context.Background(), id, follow)
}

// spooled are the files of slurmd's steps.
type spooled struct{ archive archive.Archive }

func (s spooled) records(ref api.StepRef) ([]*step.Record, error) {
	recs, err := s.archive.Records(ref.JobID, ref.StepID)
	return recs, s.explain(err)
}

func (s spooled) node() (*api.Node, error) { return nil, nil }

func (s spooled) known(ref api.StepRef) ([]*step.Record, error) { return s.records(ref) }

func (s spooled) lines(id step.ID, follow bool) iter.Seq2[json.RawMessage, error] {
	return func(yield func(json.RawMessage, error) bool) {
		for line, err := range s.archive.Events(id, follow) {
			if !yield(line, s.explain(err)) {
				return
			}
		}
	}
}

// explain adds why a step's files cannot be read.
func (s spooled) explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w (a step's files belong to its user)", err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w (slurmstepd keeps the last KeepSteps steps of this node, and a record from the first third of a second on)", err)
	}
	return err
}
