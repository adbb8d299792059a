package node

import (
	"os"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"stepd/api/stepapi"
	"stepd/internal/linux"
	"stepd/step"
)

// refind takes steps into the store that run and that it does not know: it was lost, or
// set aside. Their stepds say what they are; of those that have ended nothing is known
// any more. It is called before the store is read.
func (n *Node) refind() error {
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
		if _, err := n.store.step(id); err == nil {
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
		if err := n.store.restore(rec); err != nil {
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
		return nil // nobody serves it: sweep removes what was of a known job
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

// restore stores a step that was found running, and its job, whose numbers are spent
// then.
func (s *store) restore(rec *step.Record) error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		meta, jobs := tx.Bucket(bucketMeta), tx.Bucket(bucketJobs)
		job := jobRecord{ID: rec.ID.Job}
		if getJSON(jobs, jobKey(rec.ID.Job), &job) != nil { // its first step
			job = jobRecord{ID: rec.ID.Job, UID: rec.UID, User: rec.User, CPUs: rec.CPUs, NTasks: rec.NTasks, Implicit: true, Origin: step.OriginRun}
			if rec.ID.Step == step.BatchStep {
				job.Origin = step.OriginBatch
			}
		}
		if rec.ID.Step < step.BatchStep-16 {
			job.NextStep = max(job.NextStep, rec.ID.Step+1)
		}
		if err := putJSON(jobs, jobKey(job.ID), &job); err != nil {
			return err
		}
		if getNumber(meta, keyLastJob) < job.ID {
			if err := putNumber(meta, keyLastJob, job.ID); err != nil {
				return err
			}
		}
		return putJSON(tx.Bucket(bucketSteps), stepKey(rec.ID), rec)
	})
}
