package task

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// lookMax bounds the processes that are looked at when a step is ended: before
// SIGTERM, which must not be late.
const lookMax = 64

// progress notes how far a rank has come in its MPI start-up: what the MPI plugin
// says. Once the step's end has begun it stays as it was: ranks that are being
// killed tell nothing about why.
func (s *Step) progress(rank int, p step.MPIProgress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.progressKept {
		return
	}
	if i, ok := s.placeOf(rank); ok {
		s.rec.Tasks[i].MPI = &p
		s.awaitStall()
	}
}

const (
	// stallAfter is how long no rank comes further until noded is told how far they are:
	// should this process be killed, that is what explain has of a start that hangs.
	stallAfter = time.Second
	// stallPause is the least between two such words, for programs that fence now and
	// then.
	stallPause = 10 * time.Second
)

// awaitStall begins anew to wait. The caller holds mu.
func (s *Step) awaitStall() {
	wait := max(stallAfter, time.Until(s.stallTold.Add(stallPause)))
	if s.stall == nil {
		s.stall = time.AfterFunc(wait, s.tellStalled)
		return
	}
	s.stall.Reset(wait)
}

func (s *Step) tellStalled() {
	s.mu.Lock()
	over := s.progressKept
	s.stallTold = time.Now()
	s.mu.Unlock()
	if !over {
		s.d.Audience.Progress(s.Record())
	}
}

// placeOf is where a rank is in the record, which is in the order of ranks.
func (s *Step) placeOf(rank int) (place int, here bool) {
	lo, hi := 0, len(s.rec.Tasks)
	for lo < hi {
		mid := (lo + hi) / 2
		if s.rec.Tasks[mid].Rank < rank {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, lo < len(s.rec.Tasks) && s.rec.Tasks[lo].Rank == rank
}

// settleProgress is called when the step's end begins, before anything is sent to
// the tasks: it keeps how far they have come, and looks at those that others wait
// for.
func (s *Step) settleProgress() {
	s.mu.Lock()
	if s.progressKept {
		s.mu.Unlock()
		return
	}
	s.progressKept = true
	if s.stall != nil {
		s.stall.Stop()
	}
	var behind []int
	if s.d.MPI != nil {
		behind = laggards(s.rec.Tasks)
	}
	s.mu.Unlock()
	if len(behind) > lookMax {
		behind = behind[:lookMax]
	}
	looks := s.look(behind)
	s.mu.Lock()
	defer s.mu.Unlock()
	for place, d := range looks {
		s.rec.Tasks[place].Doing = d
	}
}

// laggards are the places of tasks that run and have not come as far as others,
// or that wait for nothing while others wait.
func laggards(tasks []step.Task) (places []int) {
	best, waits := 0, false
	for i := range tasks {
		best = max(best, tasks[i].MPI.Depth())
		waits = waits || tasks[i].MPI.Waits()
	}
	for i := range tasks {
		t := &tasks[i]
		if t.Status != nil || t.PID == nil || t.MPI.Finalized() || t.MPI.Waits() {
			continue
		}
		if waits || t.MPI.Depth() < best {
			places = append(places, i)
		}
	}
	return places
}

// look tells what the processes of tasks do, by place; one that has ended, and
// whose number may be another's, is left out.
func (s *Step) look(places []int) map[int]*step.Doing {
	if len(places) == 0 {
		return nil
	}
	h := s.setUpHost()
	looks := make(map[int]*step.Doing, len(places))
	s.mu.Lock()
	for _, place := range places {
		if t := &s.rec.Tasks[place]; t.PID != nil && t.Status == nil {
			looks[place] = &step.Doing{PID: *t.PID}
		}
	}
	s.mu.Unlock()
	for place, d := range looks {
		if !lookAt(d) {
			delete(looks, place)
			continue
		}
		if h != nil {
			inHook(d, h, h.Where(place))
		}
	}
	alive := make(map[int]bool, len(looks))
	s.eachPidfd(func(place, pidfd int) {
		if _, asked := looks[place]; asked {
			fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
			n, err := unix.Poll(fds, 0)
			alive[place] = err == nil && n == 0
		}
	})
	for place := range looks {
		if !alive[place] {
			delete(looks, place)
		}
	}
	return looks
}

// lookAt reads what /proc tells of a process without waiting for it: not its
// command line, for which the kernel needs the process's memory.
func lookAt(d *step.Doing) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.PID))
	if err != nil {
		return false
	}
	// "12 (name) S ...": the name may hold anything.
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open || len(b) < end+3 {
		return false
	}
	d.Command, d.State = strings.ToValidUTF8(string(b[open+1:end]), "?"), string(b[end+2:end+3])
	if w, err := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", d.PID)); err == nil && string(w) != "0" {
		d.Wchan = string(w)
	}
	return true
}

// inHook adds which hook of a plugin the process is in, or which stage.
func inHook(d *step.Doing, h Host, p step.HostPlace) {
	var now unix.Timespec
	switch {
	case p.AtExec:
	case p.InHook() && unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) == nil:
		d.Plugin, d.Hook = h.PluginName(p.Plugin), p.Hook
		d.HookTime = max(0, time.Duration(now.Nano()-int64(p.SinceNS)))
	default:
		d.Stage = p.Stage
	}
}

// lookNow adds what all processes of the step do just now to a record of it.
func (s *Step) lookNow(rec *step.Record) {
	if rec.State.Final() {
		return
	}
	if h := s.setUpHost(); h != nil && !s.hostIsGone() {
		d := &step.Doing{PID: h.PID()}
		if lookAt(d) {
			inHook(d, h, h.Where(-1))
			rec.Host = d
		}
	}
	places := make([]int, len(rec.Tasks))
	for i := range places {
		places[i] = i
	}
	for place, d := range s.look(places) {
		rec.Tasks[place].Doing = d
	}
}

// tellProgress writes how far the ranks had come into the event log of a step that
// did not end well, and takes it out of the record of one that did. The caller
// holds mu.
func (s *Step) tellProgress(state step.State) (events []step.Event) {
	if s.d.MPI == nil {
		return nil
	}
	if state == step.Completed {
		for i := range s.rec.Tasks {
			s.rec.Tasks[i].MPI, s.rec.Tasks[i].Doing = nil, nil
		}
		return nil
	}
	for _, g := range step.GroupProgress(s.rec.Tasks) {
		if len(events) == lookMax {
			break
		}
		events = append(events, step.Event{
			Time: s.d.Now(), Event: step.EventMPI, Ranks: step.FormatCPUList(g.Ranks), MPI: g.MPI,
		})
	}
	return events
}
