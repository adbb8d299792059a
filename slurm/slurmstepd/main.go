// Package slurmstepd is slurmstepd: the step daemon that slurmd starts for each step, in
// place of Slurm's own (slurmd -d). It reads the step from slurmd, runs it as package task
// does under noded as well, serves srun's streams and the step's socket, and reports the
// step's end to slurmctld. Main is all of the program.
package slurmstepd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"stepd/internal/build"
	"stepd/internal/linux"
	"stepd/internal/stack"
	"stepd/slurm/wire"
	"stepd/step"
)

// answerWithin is how long slurmd waits for the answer: a thread of its own hangs while it
// does, for ever if need be. A start that takes longer is given up.
const answerWithin = 20 * time.Second

// Main is the program; it does not return.
func Main() {
	// The host's parent-death signal fires when the thread ends that forked it (prctl(2)):
	// only the main thread lives as long as the process.
	runtime.LockOSThread()
	// One processor for the loop of the tasks' streams, and one for the rest, which else wait for
	// each other: of srun -n64 a fifth (measured). The others belong to the tasks.
	runtime.GOMAXPROCS(2)
	if len(os.Args) == 2 && (os.Args[1] == "--version" || os.Args[1] == "-V") {
		fmt.Println(build.Line())
		os.Exit(0)
	}
	if len(os.Args) > 1 {
		os.Exit(mode(os.Args[1:]))
	}
	done := make(chan int)
	go func() {
		stack.Grow()
		done <- runStep()
	}()
	for {
		select {
		case f := <-onMain:
			f()
		case code := <-done:
			os.Exit(code)
		}
	}
}

// onMain hands work to the main thread.
var onMain = make(chan func())

// runStep is one step. It returns the exit code of the program.
func runStep() int {
	caller := newCaller(os.Stdin, os.Stdout)
	d, err := prepare(caller)
	if err != nil {
		caller.refuse(err)
		return 1
	}
	if !caller.claim() {
		select {} // too late: slurmd knows of no step, and the timer ends this program
	}
	d.mark(markAnswered)
	answered := make(chan struct{})
	go func() { // the start does not wait for slurmd, which has srun to answer
		defer close(answered)
		if d.spec.ID.Step == step.ExternStep {
			d.answerRunning()
		} else {
			d.answer()
		}
	}()
	code := d.run()
	<-answered
	return code
}

// prepare is all that comes before slurmd's answer.
func prepare(caller *caller) (*daemon, error) {
	// What slurmd was started with is neither the host's nor a task's.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return nil, fmt.Errorf("cannot keep descriptors from the tasks: close_range: %w (Linux 5.11 or newer is needed)", err)
	}
	// What slurmd sends is in our memory, and no other process's.
	unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	s, err := wire.ReadStream(caller.in)
	if err != nil {
		return nil, &refusal{syscall.Errno(wire.Errno(err)), err}
	}
	return newDaemon(s, caller)
}

// refusal is an error with the number that slurmd passes on to srun.
type refusal struct {
	code syscall.Errno
	err  error
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// caller is slurmd, which waits for one number.
type caller struct {
	in, out *os.File
	claimed atomic.Bool // one goroutine has the answer to give
	timer   *time.Timer
	log     atomic.Pointer[func(string)] // logEarly, until the step's log is known
}

func newCaller(in, out *os.File) *caller {
	c := &caller{in: in, out: out}
	c.logBy(logEarly)
	c.timer = time.AfterFunc(answerWithin, func() {
		if c.refuse(&refusal{unix.ETIMEDOUT, fmt.Errorf("cannot start the step within %v", answerWithin)}) {
			os.Exit(1)
		}
	})
	return c
}

func (c *caller) logBy(log func(string)) { c.log.Store(&log) }

// claim reports whether the answer is the calling goroutine's to give: it is so once.
func (c *caller) claim() bool {
	c.timer.Stop()
	return c.claimed.CompareAndSwap(false, true)
}

// drainFor bounds how long slurmd may take to write what is not read any more, and the log to
// take a line.
const drainFor = 5 * time.Second

// refuse tells slurmd that there is no step, and then the log why: a disk that hangs holds up
// neither slurmd nor this program's end. It reports false where the answer was claimed before.
func (c *caller) refuse(err error) bool {
	if !c.claim() {
		return false
	}
	code := unix.EIO
	var number syscall.Errno
	if errors.As(err, &number) {
		code = number
	}
	if r, ok := errors.AsType[*refusal](err); ok {
		code = r.code
	}
	err = errors.Join(err, c.send(int32(code)))
	done := make(chan struct{})
	go func() {
		defer close(done)
		(*c.log.Load())(err.Error())
		// slurmd reads its answer after what it writes behind the place of an error, and a pipe that
		// has no reader is another error to it.
		io.Copy(io.Discard, c.in)
	}()
	select {
	case <-done:
	case <-time.After(drainFor):
	}
	return true
}

// accept tells slurmd that there is a step, after claim, and waits for its acknowledgement.
func (c *caller) accept() error {
	if err := c.send(0); err != nil {
		return err
	}
	if _, err := io.ReadFull(c.in, make([]byte, 4)); err != nil {
		return fmt.Errorf("cannot read slurmd's acknowledgement: %w", err)
	}
	return nil
}

// send writes the number. It is not os.File's to do: that ends the program by SIGPIPE where
// no process reads descriptor 1 any more, and a slurmd that has died is no reason to end a step.
func (c *caller) send(code int32) error {
	err := linux.IgnoringEINTR(func() error {
		_, err := unix.Write(int(c.out.Fd()), binary.NativeEndian.AppendUint32(nil, uint32(code)))
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot answer slurmd: %w", err)
	}
	return nil
}

// detach gives up slurmd's pipes: nothing more passes there.
func (c *caller) detach() error {
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot leave slurmd's pipes: open %q: %w", os.DevNull, err)
	}
	defer unix.Close(null)
	for fd := range 2 {
		if err := unix.Dup3(null, fd, 0); err != nil {
			return fmt.Errorf("cannot leave slurmd's pipes: %w", err)
		}
	}
	return nil
}

// setTitle makes text the process's title (/proc/self/cmdline) and comm its name: site
// tools find steps by both. The arguments and the environment lie behind each other on the
// stack, and the runtime has copied the environment: the title takes the place of both.
func setTitle(comm, text string) {
	b := append([]byte(comm), 0)
	unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(&b[0])), 0, 0, 0)
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return // the name alone
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest) // from field 3 on, proc_pid_stat(5)
	const argStart, envEnd = 48 - 3, 51 - 3
	if len(fields) <= envEnd {
		return
	}
	from, err1 := strconv.ParseUint(fields[argStart], 10, 64)
	to, err2 := strconv.ParseUint(fields[envEnd], 10, 64)
	first := unsafe.Pointer(unsafe.StringData(os.Args[0]))
	if err1 != nil || err2 != nil || uint64(uintptr(first)) != from || to <= from {
		return
	}
	os.Args = []string{strings.Clone(os.Args[0])}
	area := unsafe.Slice((*byte)(first), int(to-from))
	clear(area)
	copy(area[:len(area)-1], text)
}
