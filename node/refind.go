package node

import (
	"context"
	"os"
	"strings"
	"time"

	"stepd/api/stepapi"
	"stepd/internal/linux"
	"stepd/step"
)

// refind takes steps into the store that run and that it does not know: it was lost, or
// set aside. Their stepds say what they are; steps that have ended are not known any
// more. It is called before the store is read.
func (n *Node) refind(ctx context.Context) error {
	entries, err := os.ReadDir(n.files.stepsDir())
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".sock")
		id, err := step.ParseID(name)
		if !ok || err != nil {
			continue
		}
		if _, err := n.store.Step(id); err == nil {
			continue
		}
		rec := n.askStepd(id)
		if rec == nil {
			continue
		}
		// It lives, and so it is of this boot.
		rec.BootID = n.boot
		if rec.StepdStart, err = linux.StartTime(rec.StepdPID); err != nil {
			continue // it has ended since
		}
		if err := n.store.Restore(rec, n.groupOf(ctx, rec)); err != nil {
			return err
		}
		n.log.WithField("step", id.String()).Warnf("found a running step of user %q that the state does not have: it is taken back", rec.User)
	}
	return nil
}

// askStepd returns what the stepd behind a socket says of its step, nil where none of
// root's answers.
func (n *Node) askStepd(id step.ID) *step.Record {
	conn, err := stepapi.DialDir(n.files.stepsDir(), n.files.socketName(id))
	if err != nil {
		return nil // it has no server: sweep removes what was of a known job
	}
	defer conn.Close()
	if peer, err := conn.Peer(); err != nil || peer.Uid != uint32(os.Geteuid()) {
		return nil
	}
	timer := time.AfterFunc(helloMax, func() { conn.Close() })
	defer timer.Stop()
	m, _, err := conn.Recv()
	if err != nil || m.Version != stepapi.Version || m.Record == nil || m.Record.ID != id || m.Record.State.Final() {
		return nil
	}
	return m.Record
}

// nobodyGroup is the kernel's word for a group that is none (overflowgid).
const nobodyGroup = 65534

// groupOf is the group of a job whose record is lost: its user's. It is never root's by
// mistake.
func (n *Node) groupOf(ctx context.Context, rec *step.Record) uint32 {
	ctx, cancel := context.WithTimeout(ctx, helloMax)
	defer cancel()
	user, err := n.cfg.Users.ByUID(ctx, rec.UID)
	if err != nil {
		n.log.WithField("step", rec.ID.String()).Errorf("the group of its job is lost, and group %d stands for it: %v", nobodyGroup, err)
		return nobodyGroup
	}
	return user.GID
}

// endExternWith ends the extern step of a job that is not held and that no step leads, as one
// that was found again is, when the others that were found have ended.
func (n *Node) endExternWith(j *job, others []*follower) {
	extern := n.reg.follower(step.ID{Job: j.ID, Step: step.ExternStep})
	if extern == nil {
		return
	}
	n.work.Go(func() {
		for _, f := range others {
			if f == extern {
				continue
			}
			select {
			case <-f.ended:
			case <-n.stopping:
				return
			}
		}
		n.cancelLater(extern, jobEnded)
	})
}
