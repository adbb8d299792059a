// Package fakestepd is a stepd for tests of noded: it speaks the protocol of
// stepapi and runs no task. A test binary becomes one by calling Main when its
// argv[0] says "stepd: [J.S]"; tests import it, and nothing else does.
//
// The first word of the step's command says what it does:
//
//	exit CODE      run, end by itself with CODE
//	wait           run until it is cancelled or signalled
//	fifo PATH      run until a code can be read from PATH
//	die CODE       exit without a result
//	linger         send a result and never exit
//	silent         say nothing, for ever
//	deaf           have run since yesterday, and take no connection, for ever
//	greet N        end with code 7 at the Nth connection, and answer no Stat
//	foreign        speak another version of the protocol, for ever
//	quarantined    end at once; the reason is the plugins to leave out
//	unkillable     end with code 1, and a process that does not die
//	drain WORD...  end with code 1, and a reason to drain the node
//	script         end at once; the reason is about the batch script
//	env NAME       end at once; the reason is NAME=VALUE of the step's environment
package fakestepd

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"stepd/api/stepapi"
	"stepd/eventlog"
	"stepd/srunopt"
	"stepd/step"
)

// Is reports whether this process was started as a stepd.
func Is() bool {
	return strings.HasPrefix(os.Args[0], "stepd: [") || (len(os.Args) == 3 && os.Args[1] == "spank")
}

// Main is the whole life of the fake. It does not return.
func Main() {
	life := run
	if len(os.Args) == 3 && os.Args[1] == "spank" {
		life = jobScript
	}
	if err := life(); err != nil {
		fmt.Fprintln(os.Stderr, "fakestepd:", err)
		syscall.Exit(99)
	}
	syscall.Exit(0) // os.Exit would wait a second for the race detector
}

// fake is one step.
type fake struct {
	spec step.Spec
	mu   sync.Mutex
	rec  step.Record // guarded by mu
	log  *os.File
	// ending gets the raw status that ends the step.
	ending chan step.ExitStatus
	server *stepapi.Server
	met    atomic.Int32 // connections
}

func run() error {
	f := &fake{ending: make(chan step.ExitStatus, 16), log: os.NewFile(stepapi.FDEvents, "events")}
	if err := json.NewDecoder(os.NewFile(stepapi.FDSpec, "spec")).Decode(&f.spec); err != nil {
		return err
	}
	if err := srunopt.ValidateSpec(&f.spec); err != nil {
		return err
	}
	argv := f.spec.Argv
	if f.spec.ID.Step == step.BatchStep {
		// The script's text is the command; its name is in "script".
		text, err := os.ReadFile(argv[0])
		if err != nil {
			return err
		}
		argv = append(strings.Fields(strings.TrimPrefix(string(text), "#!")), argv...)
	}
	switch argv[0] {
	case "silent":
		select {}
	case "foreign":
		control, err := stepapi.FromFD(stepapi.FDControl, "control")
		if err == nil {
			err = control.Send(&stepapi.Msg{Type: stepapi.TypeHello, Version: stepapi.Version + 1})
		}
		if err != nil {
			return err
		}
		select {}
	case "die":
		code, err := strconv.Atoi(argv[1])
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "time=now level=error msg=\"dying with %d\" step=x\n", code)
		syscall.Exit(code)
	}
	// A child that outlives a killed stepd unless a noded looks for it. Its
	// command line reports whose it is.
	child := exec.Command("/bin/sleep", "1000")
	if err := child.Start(); err != nil {
		return err
	}
	pid := child.Process.Pid
	now := time.Now()
	if argv[0] == "deaf" {
		now = now.AddDate(0, 0, -1)
	}
	f.rec = step.Record{
		ID: f.spec.ID, IDName: f.spec.ID.Name(), State: step.Running, NTasks: f.spec.NTasks, Started: &now, StepdPID: os.Getpid(),
		Tasks: []step.Task{{State: step.TaskRunning, PID: &pid}},
	}
	for i := 1; i < f.spec.NTasks; i++ {
		f.rec.Tasks = append(f.rec.Tasks, step.Task{Rank: i, LocalID: i, State: step.TaskRunning})
	}
	err := f.serve(argv)
	_ = child.Process.Kill() // it may be dead already
	_ = child.Wait()         // ends by the kill
	return err
}

func (f *fake) serve(argv []string) error {
	l, err := net.FileListener(os.NewFile(stepapi.FDListen, "listen"))
	if err != nil {
		return err
	}
	ul := l.(*net.UnixListener)
	ul.SetUnlinkOnClose(false)
	control, err := stepapi.FromFD(stepapi.FDControl, "control")
	if err != nil {
		return err
	}
	server := stepapi.NewServer(f.spec.ID, f.spec.User.UID, f)
	f.server = server
	server.Add(control, stepapi.RoleNoded, true)
	if argv[0] != "deaf" {
		server.Serve(ul)
	}
	rec := f.copy()
	server.Tell(&stepapi.Msg{Type: stepapi.TypeState, State: step.Running, Record: &rec})
	f.event(eventlog.Event{Time: time.Now(), Event: eventlog.EventState, State: step.Running})

	status, err := f.await(argv)
	if err != nil {
		return err
	}
	f.end(status)
	for r := range f.spec.NTasks {
		server.Tell(&stepapi.Msg{Type: stepapi.TypeTaskExit, Ranks: []int{r}, Status: &status})
	}
	rec = f.copy()
	f.event(eventlog.Event{Time: time.Now(), Event: eventlog.EventEnd, State: rec.State})
	taken := server.Finish(&stepapi.Msg{Type: stepapi.TypeResult, State: rec.State, Record: &rec}, time.Second)
	if !taken {
		if err := leave(f.spec.ResultFile, rec); err != nil {
			return err
		}
	}
	ul.Close()
	if argv[0] == "linger" {
		select {}
	}
	server.Wait()
	return nil
}

// await waits for what ends the step.
func (f *fake) await(argv []string) (step.ExitStatus, error) {
	switch argv[0] {
	case "env":
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, e := range f.spec.Env {
			if strings.HasPrefix(e, argv[1]+"=") {
				f.rec.Reason = e
			}
		}
		return 0, nil
	case "quarantined":
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, q := range f.spec.Spank.Quarantined {
			f.rec.Reason += q.Path
		}
		return 0, nil
	case "drain":
		f.mu.Lock()
		defer f.mu.Unlock()
		f.rec.Drain = strings.Join(argv[1:], " ")
		return step.ExitedWith(1), nil
	case "unkillable":
		f.mu.Lock()
		defer f.mu.Unlock()
		f.rec.Survivors = []step.Survivor{{PID: 4242, Start: 7, Comm: "cp", State: "D", Grade: step.GradeDisk}}
		f.rec.SurvivorsTotal = 1
		return step.ExitedWith(1), nil
	case "script":
		f.mu.Lock()
		defer f.mu.Unlock()
		f.rec.Reason = fmt.Sprintf("%s %s of %d tasks, %d bytes of script", f.spec.Origin, strings.Join(argv[1:], " "), f.spec.JobNTasks, len(f.spec.Script))
		return 0, nil
	case "exit", "linger":
		code := 0
		if len(argv) > 1 {
			code, _ = strconv.Atoi(argv[1])
		}
		return step.ExitedWith(uint8(code)), nil
	case "fifo":
		go func() {
			b, err := os.ReadFile(argv[1]) // blocks until a writer has come and gone
			code, cerr := strconv.Atoi(strings.TrimSpace(string(b)))
			if err != nil || cerr != nil {
				code = 98
			}
			f.ending <- step.ExitedWith(uint8(code))
		}()
	}
	return <-f.ending, nil
}

func (f *fake) end(status step.ExitStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	f.rec.Ended = &now
	for i := range f.rec.Tasks {
		f.rec.Tasks[i].End(status)
	}
	code := status.Code()
	f.rec.ExitCode = &code
	f.rec.State = step.Completed
	if code != 0 {
		f.rec.State = step.Failed
	}
	if sig, ok := status.Signaled(); ok {
		n := int(sig)
		f.rec.ExitCode, f.rec.Signal, f.rec.State = nil, &n, step.Cancelled
	}
}

func leave(path string, rec step.Record) error {
	b, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".tmp", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

func (f *fake) event(e eventlog.Event) {
	b, err := json.Marshal(e)
	if err == nil {
		_, err = f.log.Write(append(b, '\n'))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "fakestepd: event:", err)
	}
}

// Record implements stepapi.Handler: it is asked for each connection.
func (f *fake) Record() step.Record {
	if argv := f.spec.Argv; argv[0] == "greet" && fmt.Sprint(f.met.Add(1)) == argv[1] {
		f.ending <- step.ExitedWith(7)
	}
	return f.copy()
}

func (f *fake) copy() step.Record {
	f.mu.Lock()
	defer f.mu.Unlock()
	rec := f.rec
	rec.Tasks = append([]step.Task(nil), f.rec.Tasks...)
	return rec
}

// Stat implements stepapi.Handler: every task has used as many seconds as its rank.
func (f *fake) Stat() step.Record {
	if f.spec.Argv[0] == "greet" {
		select {}
	}
	rec := f.copy()
	rec.Usage = &step.StepUsage{Gather: "linux", Time: time.Now(), Samples: 1}
	for i := range rec.Tasks {
		s := float64(i)
		rec.Tasks[i].CPUSeconds = &s
	}
	return rec
}

// Attach implements stepapi.Handler.
func (f *fake) Attach(_ []stepapi.StreamFD, fds []int) error {
	for _, fd := range fds {
		syscall.Close(fd)
	}
	return nil
}

// AttachDone implements stepapi.Handler.
func (f *fake) AttachDone() {}

// LauncherLost implements stepapi.Handler.
func (f *fake) LauncherLost() {}

// Suspend notes it: there is nothing that could stand still.
func (f *fake) Suspend(by uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rec.Suspended == nil || by == 0 { // what root has suspended stays root's
		f.rec.Suspended, f.rec.SuspendedBy = new(time.Now()), &by
	}
	f.tell()
	return nil
}

// Resume undoes it.
func (f *fake) Resume(by uint32) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.rec.Suspended == nil:
		return errors.New("not suspended")
	case *f.rec.SuspendedBy == 0 && by != 0:
		return errors.New("suspended by root")
	}
	f.rec.Suspended, f.rec.SuspendedBy = nil, nil
	f.tell()
	return nil
}

// tell tells noded of a change; the caller holds mu.
func (f *fake) tell() {
	rec := f.rec
	rec.Tasks = slices.Clone(f.rec.Tasks) // it is encoded later
	f.server.TellState(&rec)
}

// Watch implements stepapi.Handler: nothing is kept.
func (f *fake) Watch(*stepapi.Watch, bool) (*stepapi.Watched, int, error) {
	return nil, -1, errors.New("nothing is kept")
}

// Signal implements stepapi.Handler. SIGCONT ends nothing.
func (f *fake) Signal(sig int, _ string) error {
	if syscall.Signal(sig) == syscall.SIGCONT {
		return nil
	}
	f.ending <- step.SignaledBy(syscall.Signal(sig))
	return nil
}

// Cancel implements stepapi.Handler.
func (f *fake) Cancel(reason string) error {
	f.mu.Lock()
	f.rec.Reason = reason
	f.mu.Unlock()
	f.ending <- step.SignaledBy(syscall.SIGTERM)
	return nil
}
