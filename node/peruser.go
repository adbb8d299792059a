package node

// PerUser bounds what one user other than root may have of a node at a time.
type PerUser struct {
	// Steps are the steps that have not ended, and reservations and allocations: each costs
	// two processes of root's; also steps that wait for their share of a job. 0 is 1000.
	Steps int
	// Connections are those to noded's socket. 0 is 2048: one for each step that a
	// client waits for, and others.
	Connections int
	// RequestBytes bounds requests and replies that are under way, from the first byte
	// of a request until its answer is written, at least callBytes for each, less callFree of
	// each; as many again are for requests that wait for their share of a job, or for their
	// launch, and for batch jobs. 0 is 64 MiB.
	RequestBytes int
	// ReplayBytes are what the stepds of the user's steps may keep of output, in all. 0
	// is 256 MiB.
	ReplayBytes int64
}

func defaultPerUser() PerUser {
	return PerUser{Steps: 1000, Connections: 2048, RequestBytes: 64 << 20, ReplayBytes: 256 << 20}
}

func (p *PerUser) complete() {
	d := defaultPerUser()
	setDefault(&p.Steps, d.Steps)
	setDefault(&p.Connections, d.Connections)
	setDefault(&p.RequestBytes, d.RequestBytes)
	setDefault(&p.ReplayBytes, d.ReplayBytes)
}

// keepReplay is how much of want a step of uid may keep of its output.
func (r *registry) keepReplay(uid uint32, want int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if uid != 0 {
		want = max(0, min(want, r.perUser.ReplayBytes-r.replay[uid]))
	}
	r.replay[uid] += want
	return want
}

// dropReplay undoes keepReplay. r.mu is held.
func (r *registry) dropReplay(uid uint32, bytes int64) {
	if r.replay[uid] -= bytes; r.replay[uid] <= 0 {
		delete(r.replay, uid)
	}
}
