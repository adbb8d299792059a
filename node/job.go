package node

import (
	"context"

	"stepd/step"
)

// job is a running job. The registry's lock guards what changes of it.
type job struct {
	jobRecord
	cpus []int
	// running counts what may still use the job's CPUs: steps whose result is
	// not known, and the client of an allocation; present also those that are
	// being cleaned up.
	running, present int
	// open jobs take further steps.
	open bool
	// shut: the job's end has begun.
	shut bool
	// ended is closed when nothing is left of the job.
	ended chan struct{}
}

func newJob(rec jobRecord, cpus []int, n int) *job {
	return &job{jobRecord: rec, cpus: cpus, running: n, present: n, ended: make(chan struct{})}
}

// jobRecord is a running job in the store.
type jobRecord struct {
	ID   uint32 `json:"id"`
	UID  uint32 `json:"uid"`
	User string `json:"user"`
	CPUs string `json:"cpus"`
	// NextStep is the number of the job's next step.
	NextStep uint32 `json:"next_step"`
	// Implicit jobs were made for their first step, and end with it.
	Implicit bool `json:"implicit"`
	// Origin is what made the job; "" in the records of an older noded is a run.
	Origin step.JobOrigin `json:"origin,omitempty"`
	Name   string         `json:"name,omitempty"`
	NTasks int            `json:"ntasks,omitempty"`
	// Holder is the client of an allocation.
	Holder *holder `json:"holder,omitempty"`
}

// firstStep is the number of the step that the job was made for.
func (j *jobRecord) firstStep() uint32 {
	if j.Origin == step.OriginBatch {
		return step.BatchStep
	}
	return 0
}

// leads tells whether the job was made for the step, and ends with it.
func (j *jobRecord) leads(id step.ID) bool { return j.Implicit && id.Step == j.firstStep() }

// jobDoc is one running job in the node document.
type jobDoc struct {
	ID     uint32         `json:"job_id"`
	UID    uint32         `json:"uid"`
	User   string         `json:"user"`
	Name   string         `json:"name"`
	Origin step.JobOrigin `json:"origin"`
	CPUs   string         `json:"cpus"`
	Steps  []uint32       `json:"steps"`
}

func (j *job) doc() jobDoc {
	d := jobDoc{
		ID: j.ID, UID: j.UID, User: j.User, Name: j.Name, Origin: j.Origin,
		CPUs: step.FormatCPUList(j.cpus), Steps: []uint32{},
	}
	if d.Origin == "" {
		d.Origin = step.OriginRun
	}
	return d
}

// endJob removes what a job had, after its last step. nil is no job.
func (n *Node) endJob(j *job) {
	if j == nil {
		return
	}
	log := n.log.WithField("job", j.ID)
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.UnkillableTimeout)
	defer cancel()
	if err := n.cfg.Containers.Delete(ctx, j.ID); err != nil {
		log.Errorf("%v", err)
	}
	if err := n.cfg.Tracker.EndJob(j.ID); err != nil {
		log.Errorf("%v", err)
	}
	if err := n.removeScript(&j.jobRecord); err != nil {
		log.Errorf("%v", err)
	}
	// The store last: until then a restarted noded does this again.
	if err := n.store.endJob(j.ID); err != nil {
		log.Errorf("%v", err)
	}
	n.reg.gone(j)
	close(j.ended)
}
