package pmi2

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/step"
	"stepd/step/launch"
)

// TestMain fails when a test leaves a goroutine or a descriptor behind.
func TestMain(m *testing.M) {
	// The poller's own descriptors come with the first pipe and stay.
	r, w, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	r.Close()
	w.Close()
	fds, goroutines := openFDs(), runtime.NumGoroutine()
	code := m.Run()
	if fuzzing := flag.Lookup("test.fuzz"); fuzzing != nil && fuzzing.Value.String() != "" {
		os.Exit(code) // the fuzzer's own goroutines stay
	}
	runtime.GC() // a descriptor that only a finalizer closes is a leak that hides
	for deadline := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > goroutines && time.Now().Before(deadline); {
		runtime.Gosched() // goroutines that were waited for still have to return
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		stacks := make([]byte, 1<<16)
		fmt.Printf("leak: %d goroutines, %d at the start\n%s\n", n, goroutines, stacks[:runtime.Stack(stacks, true)])
		code = 1
	}
	if n := openFDs(); n > fds {
		fmt.Printf("leak: %d descriptors, %d at the start\n", n, fds)
		code = 1
	}
	os.Exit(code)
}

func openFDs() int {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	return len(names)
}

// world is a step whose ranks are played by the test.
type world struct {
	t      testing.TB
	plugin *Plugin
	ranks  []*fake
	aborts chan told
	logs   chan string
	job    *fakeJob
	tasks  launch.MPITasks

	mu       sync.Mutex
	progress map[int][]string // guarded by mu: the reports about each rank
}

// fake is a rank's end of its socketpair.
type fake struct {
	t      testing.TB
	n      int
	file   *os.File
	in     *bufio.Reader
	frames bool // it speaks PMI-2
}

// newWorld makes n ranks that have not spoken yet.
func newWorld(t testing.TB, n int, conf step.PMI2Conf) *world {
	t.Helper()
	return newWorldOf(t, conf, func(s *step.Spec) { s.NTasks = n })
}

// newWorldOf is newWorld of another step.
func newWorldOf(t testing.TB, conf step.PMI2Conf, change func(*step.Spec)) *world {
	t.Helper()
	return newWorldWith(t, conf, nil, change)
}

// newWorldWith is one node of a step of several.
func newWorldWith(t testing.TB, conf step.PMI2Conf, peers launch.Peers, change func(*step.Spec)) *world {
	t.Helper()
	spec := testSpec(1)
	change(spec)
	n := spec.NTasks
	w := &world{t: t, plugin: New(conf), aborts: make(chan told, n), logs: make(chan string, 16*n), job: newFakeJob(), progress: make(map[int][]string)}
	pre, err := w.plugin.Prefork(context.Background(), launch.MPIJob{
		Spec: spec, Job: w.job, Peers: peers,
		Abort: func(rank, code int, text string) { w.aborts <- told{rank, code, text} },
		Log:   func(text string) { w.logs <- text },
		Progress: func(rank int, p step.MPIProgress) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.progress[rank] = append(w.progress[rank], p.String())
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	w.tasks = pre
	ranks := spec.LocalRanks()
	for local, fds := range pre.TaskFDs {
		// For the poller, so that a test can set deadlines.
		if err := unix.SetNonblock(int(fds[0].File.Fd()), true); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.FcntlInt(fds[0].File.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		fds[0].File.Close()
		file := os.NewFile(uintptr(fd), "rank")
		w.ranks = append(w.ranks, &fake{t: t, n: ranks[local], file: file, in: bufio.NewReader(file)})
	}
	t.Cleanup(w.close)
	return w
}

func (w *world) close() {
	w.plugin.Close()
	for _, r := range w.ranks {
		r.file.Close()
	}
}

// exit ends a rank's task.
func (w *world) exit(rank int, status step.ExitStatus) {
	w.ranks[rank].file.Close()
	w.plugin.TaskExited(rank, status)
}

// wantAbort waits for the call of Abort.
func (w *world) wantAbort(rank, code int, words ...string) {
	w.t.Helper()
	select {
	case got := <-w.aborts:
		if got.rank != rank || got.code != code {
			w.t.Errorf("abort by rank %d with code %d, want rank %d with code %d: %s", got.rank, got.code, rank, code, got.text)
		}
		for _, word := range words {
			if !strings.Contains(got.text, word) {
				w.t.Errorf("abort says %q, which lacks %q", got.text, word)
			}
		}
	case <-time.After(10 * time.Second):
		w.t.Fatal("no abort")
	}
}

// wantLog waits for a line of the log.
func (w *world) wantLog(words ...string) {
	w.t.Helper()
	select {
	case got := <-w.logs:
		for _, word := range words {
			if !strings.Contains(got, word) {
				w.t.Errorf("log says %q, which lacks %q", got, word)
			}
		}
	case <-time.After(10 * time.Second):
		w.t.Fatalf("no log line with %q", words)
	}
}

// wantQuiet closes the plugin and checks that nothing was said.
func (w *world) wantQuiet() {
	w.t.Helper()
	w.close()
	select {
	case got := <-w.aborts:
		w.t.Errorf("abort: %+v", got)
	case got := <-w.logs:
		w.t.Errorf("log: %q", got)
	default:
	}
}

// send writes bytes as they are.
func (f *fake) send(text string) {
	f.t.Helper()
	if _, err := f.file.WriteString(text); err != nil {
		f.t.Errorf("rank %d: %v", f.n, err)
	}
}

// receive reads one answer: a line, or what a frame holds.
func (f *fake) receive() string {
	f.t.Helper()
	_ = f.file.SetReadDeadline(time.Now().Add(10 * time.Second))
	if !f.frames {
		text, err := f.in.ReadString('\n')
		if err != nil {
			return "error: " + err.Error()
		}
		return strings.TrimSuffix(text, "\n")
	}
	header := make([]byte, headerBytes)
	if _, err := io.ReadFull(f.in, header); err != nil {
		return "error: " + err.Error()
	}
	n, err := parseHeader(string(header), 1<<20)
	if err != nil {
		return "error: " + err.Error()
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(f.in, body); err != nil {
		return "error: " + err.Error()
	}
	return string(body)
}

// say sends one command in the rank's protocol: a line without its newline, or
// a frame without its length.
func (f *fake) say(text string) {
	f.t.Helper()
	if f.frames {
		f.send(fmt.Sprintf("%6d%s", len(text), text))
		return
	}
	f.send(text + "\n")
}

// ask says text and wants the answer.
func (f *fake) ask(text, want string) {
	f.t.Helper()
	f.say(text)
	f.want(want)
}

func (f *fake) want(want string) {
	f.t.Helper()
	if got := f.receive(); got != want {
		f.t.Errorf("rank %d got %q, want %q", f.n, got, want)
	}
}

// init1 and init2 make the rank speak one protocol or the other.
func (f *fake) init1() *fake {
	f.t.Helper()
	f.ask("cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0")
	return f
}

func (f *fake) hello2() *fake {
	f.t.Helper()
	f.ask("cmd=init pmi_version=2 pmi_subversion=0", "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0")
	f.frames = true
	return f
}

func (f *fake) init2() *fake {
	f.t.Helper()
	f.hello2()
	f.say(fmt.Sprintf("cmd=fullinit;pmijobid=12.3;pmirank=%d;threaded=FALSE;", f.n))
	want := fmt.Sprintf("cmd=fullinit-response;rc=0;pmi-version=2;pmi-subversion=0;rank=%d;size=", f.n)
	if got := f.receive(); !strings.HasPrefix(got, want) {
		f.t.Errorf("rank %d got %q, want %q...", f.n, got, want)
	}
	return f
}
