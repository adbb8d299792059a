package node

import (
	"cmp"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"stepd/api"
	"stepd/step"
)

// outputRoom bounds what the kept output of all steps may take of the spool: as many
// bytes, or that of four steps.
const outputRoom = 64 << 20

// Output streams what stepd has left of a step's output.
func (s *service) Output(in *api.StepRef, out api.Node_OutputServer) error {
	if in == nil || in.StepId == nil {
		return status.Error(codes.InvalidArgument, "step: output is that of one step, JOB.STEP")
	}
	recs, err := s.own(out.Context(), in)
	if err != nil {
		return err
	}
	rec := recs[0]
	if !rec.State.Final() {
		return status.Errorf(codes.FailedPrecondition, "step %s is %s: its stepd has its output", rec.ID, rec.State)
	}
	f, err := s.n.files.open(s.n.files.output(rec.ID), os.O_RDONLY)
	if errors.Is(err, os.ErrNotExist) {
		return status.Errorf(codes.NotFound, "nothing is kept of the output of step %s", rec.ID)
	}
	if err != nil {
		return status.Errorf(codes.Internal, "cannot open kept output: %v", err)
	}
	defer f.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := f.Read(buf)
		if n > 0 {
			if err := out.Send(&api.OutputPiece{Data: buf[:n]}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return status.Errorf(codes.Internal, "cannot read kept output: %v", err)
		}
	}
}

// boundOutput removes the oldest of the kept outputs where a step that has just ended
// has left one, and all together are too large.
func (n *Node) boundOutput(id step.ID) {
	// A stepd that was killed while it wrote has left a part, which is of no use.
	if err := os.Remove(n.files.output(id) + ".tmp"); err != nil && !errors.Is(err, os.ErrNotExist) {
		n.log.Warnf("cannot remove what step %s has left: %v", id, err)
	}
	if _, err := os.Lstat(n.files.output(id)); err != nil {
		return // nothing new
	}
	entries, err := os.ReadDir(n.files.outputDir())
	if err != nil {
		n.log.Warnf("cannot read the kept outputs: %v", err)
		return
	}
	type kept struct {
		name string
		size int64
		at   time.Time
	}
	var all []kept
	room := max(outputRoom, 4*n.cfg.ReplayBytes)
	for _, e := range entries {
		if fi, err := e.Info(); err == nil {
			all = append(all, kept{e.Name(), fi.Size(), fi.ModTime()})
		}
	}
	slices.SortFunc(all, func(a, b kept) int { return cmp.Or(b.at.Compare(a.at), cmp.Compare(a.name, b.name)) })
	for _, k := range all {
		if room -= k.size; room >= 0 {
			continue
		}
		if err := os.Remove(filepath.Join(n.files.outputDir(), k.name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			n.log.Warnf("cannot remove kept output: %v", err)
		}
	}
}
