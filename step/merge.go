package step

// Merge takes over into noded's record what stepd has reported about the step, in a record
// of its own. Who the step is and whose, what it was given and where its processes are stays
// noded's word; how it does and how it ends is stepd's. A new field belongs here, or to the
// fields of noded that the test of Merge lists.
func (r *Record) Merge(told *Record) {
	r.Reason, r.ExitCode, r.Signal, r.Ended = told.Reason, told.ExitCode, told.Signal, told.Ended
	r.Aborted, r.Drain, r.PluginCrash = told.Aborted, told.Drain, told.PluginCrash
	r.OOM, r.HeldOpen = told.OOM, told.HeldOpen
	r.Survivors, r.SurvivorsTotal = told.Survivors, told.SurvivorsTotal
	r.Suspended, r.SuspendedBy, r.SuspendedSeconds = told.Suspended, told.SuspendedBy, told.SuspendedSeconds
	if told.Started != nil {
		r.Started = told.Started
	}
	if len(told.Tasks) == len(r.Tasks) {
		r.Tasks = told.Tasks
	}
	if !told.State.Final() {
		if s, err := r.State.Move(told.State); err == nil {
			r.State = s
		} // else stepd repeats an earlier state, in a Hello after noded's restart
		return
	}
	r.State = told.State
	r.Suspended, r.SuspendedBy = nil, nil // of a stepd that was killed
	r.mergeFigures(told)
}

// MergeStat is Merge of stepd's answer to a request for the figures of just now, which a
// running step's record in noded does not keep.
func (r *Record) MergeStat(told *Record) {
	r.Merge(told)
	r.mergeFigures(told)
	r.Host = told.Host
}

func (r *Record) mergeFigures(told *Record) {
	r.Usage, r.StdoutBytes, r.StderrBytes = told.Usage, told.StdoutBytes, told.StderrBytes
}
