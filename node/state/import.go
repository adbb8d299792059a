package state

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"stepd/node/store"
	"stepd/step"
)

// oldStateName is the state of the last release, a bbolt database in the spool. It is
// imported once and kept as oldStateName + ".imported".
const oldStateName = "state.db"

// oldState is what of it goes on. Its keys are big-endian numbers of jobs and steps.
type oldState struct {
	lastJob uint32
	jobs    map[uint32]json.RawMessage
	control map[uint32]json.RawMessage
	steps   map[step.ID]*step.Record
	held    map[step.ID]json.RawMessage
	drain   json.RawMessage
	crashes json.RawMessage
	// several are jobs and steps of several nodes, waiting batch jobs that wait.
	several, waiting []string
}

// importState takes over the state of the last release, where the spool has one. It refuses
// what this release does not do: batch jobs that wait, and steps of several nodes.
func importState(spool string, s *State) error {
	path := filepath.Join(spool, oldStateName)
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	old, err := readOldState(path)
	if err != nil {
		return fmt.Errorf("cannot import the state of the last release %q: %w: mend it with that release, or move the file away: then steps that run are found again, and what had ended is forgotten", path, err)
	}
	if err := old.refusal(path); err != nil {
		return err
	}
	if err := s.all.Record(old.store); err != nil {
		return fmt.Errorf("cannot import the state of the last release %q: %w", path, err)
	}
	if err := os.Rename(path, path+".imported"); err != nil {
		return fmt.Errorf("cannot put the imported state of the last release aside: %w", err)
	}
	return nil
}

// refusal returns why the state cannot be taken over.
func (old *oldState) refusal(path string) error {
	var why []string
	if len(old.waiting) > 0 {
		why = append(why, "batch jobs that wait: "+strings.Join(old.waiting, ", "))
	}
	if len(old.several) > 0 {
		why = append(why, "steps and jobs of several nodes: "+strings.Join(old.several, ", "))
	}
	if len(why) == 0 {
		return nil
	}
	return fmt.Errorf("cannot import the state of the last release %q: it has %s: finish or cancel them with that release, or move the file away", path, strings.Join(why, "; and "))
}

// readOldState reads the database without changing it. What bbolt panics about, and a file
// that is shorter than it should be, is an error.
func readOldState(path string) (old *oldState, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("it is damaged: %v", r)
		}
	}()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	defer db.Close()
	old = &oldState{jobs: map[uint32]json.RawMessage{}, control: map[uint32]json.RawMessage{}, steps: map[step.ID]*step.Record{}, held: map[step.ID]json.RawMessage{}}
	return old, db.View(old.read)
}

func (old *oldState) read(tx *bbolt.Tx) error {
	each := func(bucket string, f func(id step.ID, v []byte) error) error {
		b := tx.Bucket([]byte(bucket))
		if b == nil {
			return nil // an older release's
		}
		return b.ForEach(func(k, v []byte) error {
			var id step.ID
			if len(k) != 4 && len(k) != 8 {
				return fmt.Errorf("a key of %q has %d bytes", bucket, len(k))
			}
			if id.Job = binary.BigEndian.Uint32(k); len(k) == 8 {
				id.Step = binary.BigEndian.Uint32(k[4:])
			}
			return f(id, v)
		})
	}
	if meta := tx.Bucket([]byte("meta")); meta != nil {
		if last := meta.Get([]byte("last_job")); len(last) == 4 {
			old.lastJob = binary.BigEndian.Uint32(last)
		}
		old.drain, old.crashes = slices.Clone(meta.Get([]byte("drain"))), slices.Clone(meta.Get([]byte("crashes")))
	}
	raw := func(m map[uint32]json.RawMessage) func(step.ID, []byte) error {
		return func(id step.ID, v []byte) error {
			m[id.Job] = slices.Clone(v)
			return nil
		}
	}
	return errors.Join(
		each("jobs", raw(old.jobs)),
		each("control", raw(old.control)),
		each("held", func(id step.ID, v []byte) error { old.held[id] = slices.Clone(v); return nil }),
		each("steps", func(id step.ID, v []byte) error {
			rec := new(step.Record)
			old.steps[id] = rec
			return json.Unmarshal(v, rec)
		}),
		each("heads", func(id step.ID, _ []byte) error {
			old.several = append(old.several, "step "+id.Name())
			return nil
		}),
		each("lent", func(id step.ID, _ []byte) error {
			old.several = append(old.several, fmt.Sprint(id.Job))
			return nil
		}),
		each("queue", old.queued),
		old.parts(),
	)
}

// queued takes a batch job, which is in the queue until it has ended for good.
func (old *oldState) queued(id step.ID, v []byte) error {
	var q struct {
		Started bool `json:"started"`
		Again   bool `json:"again"`
	}
	if err := json.Unmarshal(v, &q); err != nil {
		return fmt.Errorf("batch job %d: %w", id.Job, err)
	}
	if !q.Started || q.Again {
		old.waiting = append(old.waiting, fmt.Sprint(id.Job))
	}
	return nil
}

// parts finds the jobs that run on several nodes.
func (old *oldState) parts() error {
	for _, id := range slices.Sorted(maps.Keys(old.jobs)) {
		var j struct {
			Nodes []string `json:"nodes"`
			Head  string   `json:"head"`
		}
		if err := json.Unmarshal(old.jobs[id], &j); err != nil {
			return fmt.Errorf("job %d: %w", id, err)
		}
		if len(j.Nodes) > 1 || j.Head != "" {
			old.several = append(old.several, fmt.Sprint(id))
		}
	}
	return nil
}

// store stores it anew. Ended steps count as ended now.
func (old *oldState) store(tx *store.Tx) error {
	var errs []error
	put := func(kind, key string, value any) { errs = append(errs, tx.Put(kind, key, value)) }
	errs = append(errs, spend(tx, old.lastJob))
	for job, v := range old.jobs {
		put(kindJob, jobKey(job), v)
	}
	for job, v := range old.control {
		put(kindControl, jobKey(job), v)
	}
	for id, v := range old.held {
		put(kindHeld, stepKey(id), v)
	}
	for id, rec := range old.steps {
		put(kindStep, stepKey(id), rec)
		if rec.State.Final() {
			put(kindEnded, stepKey(id), Uptime{})
		}
		if id.Step == step.BatchStep {
			errs = append(errs, old.putBatch(tx, id, rec))
		}
	}
	if old.drain != nil {
		put(kindDrain, keyAll, old.drain)
	}
	if old.crashes != nil {
		put(kindCrashes, keyAll, old.crashes)
	}
	return errors.Join(errs...)
}

func (old *oldState) putBatch(tx *store.Tx, id step.ID, rec *step.Record) error {
	b := batchRecord{Step: *rec}
	if v, ok := old.jobs[id.Job]; ok {
		b.Job = new(Job)
		if err := json.Unmarshal(v, b.Job); err != nil {
			return err
		}
		if c, ok := old.control[id.Job]; ok {
			if err := json.Unmarshal(c, &b.Control); err != nil {
				return err
			}
		}
	}
	return tx.Put(kindBatch, jobKey(id.Job), &b)
}
