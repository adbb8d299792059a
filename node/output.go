package node

import (
	"cmp"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"stepd/api"
	"stepd/step"
)

// outputRoom bounds what the kept output of all steps may take of the spool: as many
// bytes, or four steps' output. One user may have all of it, until others need room.
const outputRoom = 64 << 20

// Output opens what stepd has left of a step's output; the caller closes it. The file is whole:
// stepd has renamed it.
func (n steps) Output(id step.ID) (output io.ReadCloser, size int64, err error) {
	rec, err := n.Step(id)
	if err != nil {
		return nil, 0, err
	}
	if !rec.State.Final() {
		return nil, 0, api.Errorf(api.FailedPrecondition, "step %s is %s: its stepd has its output", rec.ID, rec.State)
	}
	f, err := n.openFile(n.files.output(rec.ID))
	if errors.Is(err, os.ErrNotExist) {
		return nil, 0, api.Errorf(api.NotFound, "nothing is kept of the output of step %s", rec.ID)
	}
	if err != nil {
		return nil, 0, api.Errorf(api.Internal, "cannot open kept output: %v", err)
	}
	if size, err = f.size(); err != nil {
		f.Close()
		return nil, 0, api.Errorf(api.Internal, "cannot open kept output: %v", err)
	}
	return f, size, nil
}

// keptOutput is what is left of one step.
type keptOutput struct {
	name string
	uid  uint32 // the step's: the file is its
	size int64
	at   time.Time
}

// keepOutput is boundOutput, of a spool that may not answer: then the next step's end does it.
func (n *Node) keepOutput(id step.ID, uid uint32) {
	// The log has an errSpool.
	_ = n.spool.do(func() error {
		n.boundOutput(id, uid)
		return nil
	})
}

// boundOutput removes kept outputs where a step of uid that has just ended has left one,
// and all together are too large.
func (n *Node) boundOutput(id step.ID, uid uint32) {
	path := n.files.output(id)
	// A stepd that was killed while it wrote has left a part, which is of no use.
	if err := os.Remove(path + ".tmp"); err != nil && !errors.Is(err, os.ErrNotExist) {
		n.log.Warnf("cannot remove what step %s has left: %v", id, err)
	}
	// The file's owner is its user, when there are too many; no other user gets into the
	// directory.
	if err := os.Lchown(path, int(uid), -1); errors.Is(err, os.ErrNotExist) {
		return // nothing new
	} else if err != nil {
		n.log.Warnf("cannot give kept output to its user: %v", err)
	}
	entries, err := os.ReadDir(n.files.outputDir())
	if err != nil {
		n.log.Warnf("cannot read the kept outputs: %v", err)
		return
	}
	var all []keptOutput
	for _, e := range entries {
		if fi, err := e.Info(); err == nil {
			all = append(all, keptOutput{e.Name(), fi.Sys().(*syscall.Stat_t).Uid, fi.Size(), fi.ModTime()})
		}
	}
	for _, k := range surplus(all, max(outputRoom, 4*n.cfg.Site.ReplayBytes)) {
		if err := os.Remove(filepath.Join(n.files.outputDir(), k.name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			n.log.Warnf("cannot remove kept output: %v", err)
		}
	}
}

// surplus are the outputs beyond the room: each time the oldest of the user who has
// most, so that one user's steps do not push out others' output.
func surplus(all []keptOutput, room int64) (gone []keptOutput) {
	slices.SortFunc(all, func(a, b keptOutput) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.name, b.name)) })
	of := make(map[uint32][]keptOutput) // by user, the oldest first
	sum := make(map[uint32]int64)
	for _, k := range all {
		of[k.uid] = append(of[k.uid], k)
		sum[k.uid] += k.size
		room -= k.size
	}
	for room < 0 {
		most := all[0].uid
		for uid, n := range sum {
			if n > sum[most] || n == sum[most] && uid < most {
				most = uid
			}
		}
		k := of[most][0]
		of[most], sum[most], room = of[most][1:], sum[most]-k.size, room+k.size
		gone = append(gone, k)
	}
	return gone
}
