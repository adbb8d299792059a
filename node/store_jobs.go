package node

import (
	"encoding/json"
	"errors"
	"fmt"

	"go.etcd.io/bbolt"

	"stepd/step"
)

// jobs returns the running jobs.
func (s *store) jobs() ([]jobRecord, error) {
	var jobs []jobRecord
	err := s.view(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketJobs).ForEach(func(k, v []byte) error {
			var j jobRecord
			if err := json.Unmarshal(v, &j); err != nil {
				return fmt.Errorf("job %x: %w", k, err)
			}
			jobs = append(jobs, j)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read jobs: %w", err)
	}
	return jobs, nil
}

// endJob forgets a job that has ended. Its number never comes again.
func (s *store) endJob(job uint32) error {
	err := s.update(func(tx *bbolt.Tx) error {
		return errors.Join(tx.Bucket(bucketControl).Delete(jobKey(job)), tx.Bucket(bucketJobs).Delete(jobKey(job)))
	})
	if err != nil {
		return fmt.Errorf("cannot store the end of job %d: %w", job, err)
	}
	return nil
}

// jobControl returns the job control environment of a running job.
func (s *store) jobControl(job uint32) (control [][]byte, err error) {
	err = s.view(func(tx *bbolt.Tx) error { return getJSON(tx.Bucket(bucketControl), jobKey(job), &control) })
	if err != nil && !errors.Is(err, errUnknown) {
		return nil, fmt.Errorf("cannot read the job control environment of job %d: %w", job, err)
	}
	return control, nil
}

// setJobControl replaces it.
func (s *store) setJobControl(job uint32, control [][]byte) error {
	err := s.update(func(tx *bbolt.Tx) error { return putJSON(tx.Bucket(bucketControl), jobKey(job), control) })
	if err != nil {
		return fmt.Errorf("cannot store the job control environment of job %d: %w", job, err)
	}
	return nil
}

// setSuspended says that the job is suspended; nil is that it is not.
func (s *store) setSuspended(job uint32, rec *suspendRecord) error {
	set := func(tx *bbolt.Tx, rec *suspendRecord) (was *suspendRecord, err error) {
		var j jobRecord
		jobs := tx.Bucket(bucketJobs)
		if err := getJSON(jobs, jobKey(job), &j); err != nil {
			return nil, err
		}
		was, j.Suspended = j.Suspended, rec
		return was, putJSON(jobs, jobKey(job), &j)
	}
	var was *suspendRecord
	err := s.updateOr(func(tx *bbolt.Tx) error {
		_, err := set(tx, was)
		return err
	}, func(tx *bbolt.Tx) (err error) {
		was, err = set(tx, rec)
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot store that job %d is suspended, or not: %w", job, err)
	}
	return nil
}

// setNames stores the names that the job's programs have published.
func (s *store) setNames(job uint32, names []published) error {
	err := s.update(func(tx *bbolt.Tx) error {
		var j jobRecord
		jobs := tx.Bucket(bucketJobs)
		if err := getJSON(jobs, jobKey(job), &j); err != nil {
			return err
		}
		j.Names = names
		return putJSON(jobs, jobKey(job), &j)
	})
	if err != nil {
		return fmt.Errorf("cannot store the published names of job %d: %w", job, err)
	}
	return nil
}

// setPrologued says that the job's prolog has run.
func (s *store) setPrologued(job uint32) error {
	err := s.update(func(tx *bbolt.Tx) error {
		var j jobRecord
		jobs := tx.Bucket(bucketJobs)
		if err := getJSON(jobs, jobKey(job), &j); err != nil {
			return err
		}
		j.Prologued = true
		return putJSON(jobs, jobKey(job), &j)
	})
	if err != nil {
		return fmt.Errorf("cannot store the prolog of job %d: %w", job, err)
	}
	return nil
}

// crashes returns the plugins that have crashed of late.
func (s *store) crashes() (map[string]crashRecord, error) {
	m := make(map[string]crashRecord)
	err := s.view(func(tx *bbolt.Tx) error { return getJSON(tx.Bucket(bucketMeta), keyCrashes, &m) })
	if err != nil && !errors.Is(err, errUnknown) {
		return nil, fmt.Errorf("cannot read the plugins' crashes: %w", err)
	}
	return m, nil
}

func (s *store) setCrashes(m map[string]crashRecord) error {
	doc, err := json.Marshal(m) // the map is changed again
	if err == nil {
		err = s.update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketMeta).Put(keyCrashes, doc) })
	}
	if err != nil {
		return fmt.Errorf("cannot store the plugins' crashes: %w", err)
	}
	return nil
}

// held returns the steps of which processes are left that do not die.
func (s *store) held() (map[step.ID]*heldRecord, error) {
	m := make(map[step.ID]*heldRecord)
	err := s.view(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketHeld).ForEach(func(k, v []byte) error {
			h := new(heldRecord)
			if err := json.Unmarshal(v, h); err != nil {
				return fmt.Errorf("step %x: %w", k, err)
			}
			m[h.Rec.ID] = h
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read the steps that are not killed yet: %w", err)
	}
	return m, nil
}

func (s *store) putHeld(h *heldRecord) error {
	doc, err := json.Marshal(h) // it is changed again
	if err == nil {
		key := stepKey(h.Rec.ID)
		err = s.update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketHeld).Put(key, doc) })
	}
	if err != nil {
		return fmt.Errorf("cannot store what is left of step %s: %w", h.Rec.ID, err)
	}
	return nil
}

func (s *store) dropHeld(id step.ID) error {
	err := s.update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketHeld).Delete(stepKey(id)) })
	if err != nil {
		return fmt.Errorf("cannot forget what was left of step %s: %w", id, err)
	}
	return nil
}

// nextID is the number that the request's step would get now.
func (s *store) nextID(req *step.Request) (id step.ID, err error) {
	err = s.view(func(tx *bbolt.Tx) error {
		if req.Job == nil {
			id.Job = getNumber(tx.Bucket(bucketMeta), keyLastJob) + 1
			if len(req.Script) > 0 {
				id.Step = step.BatchStep
			}
			return nil
		}
		var j jobRecord
		id.Job = *req.Job
		if err := getJSON(tx.Bucket(bucketJobs), jobKey(id.Job), &j); err != nil {
			return err
		}
		id.Step = j.NextStep
		return nil
	})
	if err != nil {
		return id, fmt.Errorf("cannot tell the step's number: %w", err)
	}
	return id, nil
}
