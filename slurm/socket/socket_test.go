package socket

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/slurm/wire"
	"stepd/step"
)

// fake is a step that notes what is done to it.
type fake struct {
	mu    sync.Mutex
	state State
	did   []string
	err   error
	usage []byte
	asked int // for its state
	pids  []int
}

func (f *fake) do(what string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.did = append(f.did, what)
	return f.err
}

func (f *fake) State() State {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	return f.state
}

func (f *fake) set(s State) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state = s
}

// done returns what has been done since the last call.
func (f *fake) done() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	did := strings.Join(f.did, "; ")
	f.did = nil
	return did
}

func (f *fake) Signal(sig unix.Signal, to Scope) error {
	return f.do(fmt.Sprintf("signal %d to %d", sig, to))
}
func (f *fake) Cancel()                 { f.do("cancel") }
func (f *fake) Abort()                  { f.do("abort") }
func (f *fake) Terminate()              { f.do("terminate") }
func (f *fake) Suspend(by uint32) error { return f.do(fmt.Sprintf("suspend by %d", by)) }
func (f *fake) Resume(by uint32) error  { return f.do(fmt.Sprintf("resume by %d", by)) }
func (f *fake) Late()                   { f.do("late") }
func (f *fake) Ended(e NodesEnd) error {
	return f.do(fmt.Sprintf("ended %d-%d %d %d", e.First, e.Last, e.RC, len(e.Usage)))
}
func (f *fake) Reopen() error   { return f.do("reopen") }
func (f *fake) Say(line string) { f.do("say " + line) }
func (f *fake) PIDs() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]int{70, 71}, f.pids...)
}

func (f *fake) Usage() ([]byte, int) { return f.usage, 2 }

func (f *fake) Attach(a Attachment) error {
	return f.do(fmt.Sprintf("attach %d of %s by %s: %s %s", a.UID, a.Release, a.Key, a.Streams, a.Ends))
}

// attachRequest is what slurmd sends for an sattach of 22.05, with what later releases have first.
func attachRequest(first ...any) []byte {
	address := func(port uint16) []byte {
		b := make([]byte, 128)
		binary.NativeEndian.PutUint16(b, unix.AF_INET)
		binary.BigEndian.PutUint16(b[2:], port)
		copy(b[4:], []byte{10, 77, 0, 1})
		return b
	}
	return slices.Concat(words(7), words(first...), words(address(38583), address(41825), 4, "key\x00", owner, uint16(wire.V2205)))
}

func (f *fake) Tasks() []Task {
	status := step.ExitStatus(0x900)
	return []Task{{LocalID: 0, Rank: 4, PID: 70, Program: "sh"}, {LocalID: 1, Rank: 5, PID: 71, Status: &status}}
}

const (
	owner     = 7001
	slurmUser = 64030
	another   = 7002
)

// served is a server in a spool of its own, and its log.
type served struct {
	*Server
	fake *fake

	mu  sync.Mutex
	log []string
}

func serveStep(t *testing.T, v wire.Release, change func(*Config)) *served {
	t.Helper()
	s := &served{fake: &fake{state: Running}}
	running := make(chan struct{})
	close(running)
	c := Config{
		Release: v, Spool: t.TempDir(), Node: "n1", ID: step.ID{Job: 69, Step: 3}, Name: "69.3", SLUID: 0x1122334455667788,
		Owner: owner, SlurmUser: slurmUser, NodeID: 6, Announces: true, JobMemoryMB: 100, StepMemoryMB: 50, Running: running,
		Log: func(line string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.log = append(s.log, line)
		},
	}
	if change != nil {
		change(&c)
	}
	server, err := Listen(c, s.fake)
	if err != nil {
		t.Fatal(err)
	}
	s.Server = server
	t.Cleanup(func() {
		if !server.closed() {
			server.Close()
		}
	})
	return s
}

func (s *served) logged() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

// dial connects as a user and shakes hands.
func (s *served) dial(t *testing.T, uid uint32) *net.UnixConn {
	t.Helper()
	c := s.pair(t, uid)
	if got := exchange(t, c, words(int32(s.conf.Release)), 4); !slices.Equal(got, words(int32(s.conf.Release))) {
		t.Fatalf("handshake: % x", got)
	}
	return c
}

// pair is a connection that has said nothing.
func (s *served) pair(t *testing.T, uid uint32) *net.UnixConn {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
	}
	t.Cleanup(func() { ends[1].Close() })
	ends[1].SetDeadline(time.Now().Add(20 * time.Second))
	s.admit(ends[0], uid)
	return ends[1]
}

// words are the machine's integers, and bytes as they are.
func words(values ...any) (b []byte) {
	for _, v := range values {
		switch v := v.(type) {
		case int:
			b = binary.NativeEndian.AppendUint32(b, uint32(v))
		case string:
			b = append(b, v...)
		default:
			b, _ = binary.Append(b, binary.NativeEndian, v)
		}
	}
	return b
}

// exchange sends a request and returns n bytes of the answer, fewer where the connection ends.
func exchange(t *testing.T, c net.Conn, request []byte, n int) []byte {
	t.Helper()
	if _, err := c.Write(request); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, n)
	got, err := io.ReadFull(c, b)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, unix.ECONNRESET) {
		t.Fatal(err)
	}
	return b[:got]
}

// TestAnswers has each request of slurmd and its commands, as slurmstepd of three releases has
// answered it: the numbers are measured.
func TestAnswers(t *testing.T) {
	ok := words(0, 0)
	attached := words(0, 2, 70, 71, 4, 5, 3, "sh\x00", 1, "\x00")
	const attaches = "attach 7001 of 22.05 by key\x00: 10.77.0.1:38583 10.77.0.1:41825"
	denied := words(-1, 1)
	for _, tc := range []struct {
		name    string
		since   wire.Release // 0 is from the first on
		before  wire.Release // 0 is up to the last
		uid     uint32
		request []byte
		want    []byte
		did     string
	}{
		{name: "state", uid: another, request: words(5), want: words(2)},
		{name: "pid of a task", uid: another, request: words(8, 71), want: []byte{1}},
		{name: "pid of another", uid: another, request: words(8, 1), want: []byte{0}},
		{name: "daemon", uid: another, request: words(9), want: words(os.Getpid())},
		{name: "uid", uid: another, request: words(20), want: words(owner)},
		{name: "node", uid: another, request: words(21), want: words(6)},
		{name: "sluid", since: wire.V2511, uid: another, request: words(1), want: words(uint64(0x1122334455667788))},
		{name: "sluid before it was", before: wire.V2511, uid: another, request: words(1), want: nil},
		{name: "memory", before: wire.V2605, uid: another, request: words(19), want: words(uint64(100), uint64(50))},
		{name: "memory of the step", since: wire.V2605, uid: another, request: words(19), want: words(uint64(50))},
		{name: "pids", uid: another, request: words(15), want: words(2, 70, 71)},
		{name: "tasks", uid: another, request: words(14), want: words(2, 0, 4, 70, "\x00", -1, 1, 5, 71, "\x01", 0x900)},
		{name: "usage", uid: owner, request: words(17), want: words(2)},
		{name: "usage for another", uid: another, request: words(17), want: nil},
		{name: "probe", uid: owner, request: words(4, 0, 0, 0, 0), want: ok},
		{name: "signal", uid: owner, request: words(4, 10, 0, 0, 0), want: ok, did: "signal 10 to 0"},
		{name: "signal of another who claims root", uid: another, request: words(4, 9, 0, 0, 0), want: denied},
		{name: "signal of SlurmUser", uid: slurmUser, request: words(4, 12, 0, 0, 0), want: ok, did: "signal 12 to 0"},
		{name: "no signal", uid: owner, request: words(4, 65, 0, 0, 0), want: ok},
		{name: "terminate", uid: owner, request: words(12), want: ok, did: "terminate"},
		{name: "terminate by another", uid: another, request: words(12), want: denied},
		{name: "suspend", before: wire.V2405, uid: slurmUser, request: words(10, uint16(0)), want: ok, did: "suspend by 64030"},
		{name: "suspend now", since: wire.V2405, uid: 0, request: words(10), want: ok, did: "suspend by 0"},
		{name: "resume", before: wire.V2405, uid: 0, request: words(11, uint16(0)), want: ok, did: "resume by 0"},
		{name: "suspend by the owner", since: wire.V2405, uid: owner, request: words(10), want: denied},
		{name: "reconfigure", before: wire.V2311, uid: 0, request: words(16), want: ok, did: "reopen"},
		{name: "reconfigure with a log's settings", since: wire.V2311, uid: 0, request: words(16, 5, "abcde"), want: ok, did: "reopen"},
		{name: "reconfigure by the owner", before: wire.V2311, uid: owner, request: words(16), want: denied},
		{name: "notify", uid: owner, request: words(4022, 9, "hi there\x00"), want: words(0), did: "say hi there"},
		{name: "notify by another", uid: another, request: words(4022, 4, "hej\x00"), want: words(1)},

		{name: "attach", before: wire.V2505, uid: 0, request: attachRequest(), want: attached, did: attaches},
		{name: "attach with a certificate", since: wire.V2505, uid: 0, request: attachRequest(0), want: attached, did: attaches},
		{name: "attach encrypted", since: wire.V2505, uid: 0, request: attachRequest(4, "cert"), want: words(2036)},
		{name: "attach by the owner", before: wire.V2505, uid: owner, request: attachRequest(), want: words(1)},
		{name: "attach of no address", before: wire.V2505, uid: 0, request: words(7, make([]byte, 256), 0, owner, uint16(wire.V2205)), want: words(22)},
		{name: "completion", uid: 0, request: words(18, 1, 2, 9, 3, "abc"), want: words(0, 0), did: "ended 1-2 9 3"},
		{name: "completion by the owner", uid: owner, request: words(18, 1, 2, 9, 3, "abc"), want: denied},

		// What no step does yet.
		{name: "adopt", uid: 0, request: words(22, 12345), want: words(-1)},
		{name: "display", uid: owner, request: words(23), want: words(0, 0)},
		{name: "user", uid: owner, request: words(24, 0, 1, 4, "root"), want: words(0)},
		{name: "group", uid: owner, request: words(25, 0, 1, 4, "root"), want: words(0)},
		{name: "namespace", uid: owner, request: words(26), want: words(0)},
		{name: "host", uid: owner, request: words(27, 0, 2, "vm"), want: words(0)},
		{name: "unknown", uid: owner, request: words(77), want: nil},
	} {
		for v := wire.V2205; v <= wire.V2605; v += 1 << 8 {
			if v < tc.since || tc.before != 0 && v >= tc.before {
				continue
			}
			t.Run(tc.name+" "+v.String(), func(t *testing.T) {
				s := serveStep(t, v, nil)
				c := s.dial(t, tc.uid)
				if got := exchange(t, c, tc.request, len(tc.want)); !slices.Equal(got, tc.want) {
					t.Errorf("answer % x, want % x", got, tc.want)
				}
				if got := s.fake.done(); got != tc.did {
					t.Errorf("did %q, want %q", got, tc.did)
				}
				if tc.want == nil {
					if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
						t.Errorf("the connection is open: %d bytes, %v", n, err)
					}
				}
			})
		}
	}
}

// TestStates are the numbers of the states, of which 23.11 has put one in.
func TestStates(t *testing.T) {
	for v := wire.V2205; v <= wire.V2605; v += 1 << 8 {
		s := serveStep(t, v, nil)
		c := s.dial(t, another)
		want := map[State]int{NotRunning: 0, Starting: 1, Running: 2, Ending: 3}
		if v >= wire.V2311 {
			want[Ending] = 4
		}
		for state, number := range want {
			s.fake.set(state)
			if got := exchange(t, c, words(5), 4); !slices.Equal(got, words(number)) {
				t.Errorf("%s: state %d is % x, want %d", v, state, got, number)
			}
		}
	}
}

// TestUsage has the figures before the number of tasks, where the site has accounting.
func TestUsage(t *testing.T) {
	s := serveStep(t, wire.V2605, nil)
	s.fake.usage = []byte("figures")
	if got, want := exchange(t, s.dial(t, owner), words(17), 15), words(7, "figures", 2); !slices.Equal(got, want) {
		t.Errorf("% x, want % x", got, want)
	}
}

// TestHandshake is what slurmstepd of three releases has answered commands of others.
func TestHandshake(t *testing.T) {
	for _, tc := range []struct {
		v, oldest wire.Release
	}{
		{wire.V2205, 0x2400}, {wire.V2302, 0x2500}, {wire.V2411, 0x2700}, {wire.V2605, 0x2a00},
	} {
		s := serveStep(t, tc.v, nil)
		for _, client := range []wire.Release{0, 1, tc.oldest - 1<<8, tc.oldest, tc.v, 0x4000} {
			want := int32(tc.v)
			if client < tc.oldest {
				want = -1
			}
			if got := exchange(t, s.pair(t, another), words(int32(client)), 4); !slices.Equal(got, words(want)) {
				t.Errorf("%s answers %#x with % x, want %#x", tc.v, uint16(client), got, want)
			}
		}
	}
}

// TestErrors has the numbers by which a step's errors reach the client.
func TestErrors(t *testing.T) {
	s := serveStep(t, wire.V2205, nil)
	c := s.dial(t, 0)
	for _, tc := range []struct {
		err  error
		want int
	}{
		{ErrSuspended, 4028}, {fmt.Errorf("cannot: %w", unix.ESRCH), int(unix.ESRCH)}, {errors.New("why"), int(unix.EINVAL)},
	} {
		s.fake.err = tc.err
		if got := exchange(t, c, words(4, 10, 0, 0, 0), 8); !slices.Equal(got, words(-1, tc.want)) {
			t.Errorf("%v: % x, want -1 and %d", tc.err, got, tc.want)
		}
	}
}

// TestFile is the socket's name, its mode and its end.
func TestFile(t *testing.T) {
	het := uint32(2)
	var stale string
	s := serveStep(t, wire.V2205, func(c *Config) {
		c.ID, c.Het = step.ID{Job: 12, Step: step.ExternStep}, &het
		stale = filepath.Join(c.Spool, "n1_12.4294967292.2")
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
	})
	info, err := os.Lstat(stale)
	if err != nil || info.Mode() != os.ModeSocket|0o777 {
		t.Fatalf("the socket is %v, %v", info, err)
	}
	c, err := net.Dial("unix", stale)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := exchange(t, c, words(int32(wire.V2205), 5), 8); !slices.Equal(got, words(int32(wire.V2205), 2)) {
		t.Errorf("% x", got)
	}
	start := time.Now()
	s.Close()
	if d := time.Since(start); d > closePatience/2 {
		t.Errorf("Close has waited %v for a client that asks for nothing", d)
	}
	if _, err := os.Lstat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("the connection is open: %d bytes, %v", n, err)
	}
}

// TestFileOfAnother: a daemon that ends late leaves the socket of the one that has followed.
func TestFileOfAnother(t *testing.T) {
	s := serveStep(t, wire.V2205, nil)
	next, err := Listen(s.conf, s.fake)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := os.Lstat(next.path); err != nil {
		t.Errorf("the first daemon has removed it: %v", err)
	}
	next.Close()
}

// TestLongName: Slurm's commands could not connect.
func TestLongName(t *testing.T) {
	spool := filepath.Join(t.TempDir(), strings.Repeat("x", 108))
	_, err := Listen(Config{Release: wire.V2205, Spool: spool, Node: "n1", ID: step.ID{Job: 1}}, &fake{})
	if err == nil || !strings.Contains(err.Error(), "SlurmdSpoolDir") {
		t.Errorf("%v", err)
	}
}

// TestFlood: a user with hundreds of connections, and requests by the thousand, keeps no
// other client out, and nothing of it is left.
func TestFlood(t *testing.T) {
	s := serveStep(t, wire.V2205, nil)
	var flood []*net.UnixConn
	for range 3 * userMax {
		flood = append(flood, s.pair(t, another))
	}
	for uid := uint32(20000); uid < 20000+2*usersMax; uid++ {
		flood = append(flood, s.pair(t, uid))
	}
	for range 10 { // slurmd's
		if got := exchange(t, s.dial(t, 0), words(5), 4); !slices.Equal(got, words(2)) {
			t.Errorf("root reads % x", got)
		}
	}
	s.Server.mu.Lock()
	if n := s.byUser[another]; n != userMax {
		t.Errorf("one user has %d connections, and %d is the limit", n, userMax)
	}
	if n := len(s.open) - s.byUser[0]; n > usersMax {
		t.Errorf("users have %d connections, and %d is the limit", n, usersMax)
	}
	s.Server.mu.Unlock()
	for _, c := range flood {
		c.Close()
	}
	many := words(int32(wire.V2205))
	for range 5000 {
		many = append(many, words(5)...)
	}
	eventually(t, "the user's connections are over", func() bool {
		s.Server.mu.Lock()
		defer s.Server.mu.Unlock()
		return s.byUser[another] == 0
	})
	c := s.pair(t, another)
	go c.Write(many)
	if n, err := io.ReadFull(c, make([]byte, 4+5000*4)); err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	if n := len(s.logged()); n > notesMax {
		t.Errorf("%d lines in the log", n)
	}
	s.Close()
	for uid := range s.byUser {
		t.Errorf("user %d still counts", uid)
	}
}

// TestLinesOfTheLog: a user who sends what there is not, by the thousand, does not fill it.
func TestLinesOfTheLog(t *testing.T) {
	s := serveStep(t, wire.V2205, nil)
	for i := range 1000 {
		exchange(t, s.dial(t, another), words(1000+i), 0)
	}
	eventually(t, "all are answered", func() bool {
		s.Server.mu.Lock()
		defer s.Server.mu.Unlock()
		return len(s.open) == 0
	})
	if n := len(s.logged()); n == 0 || n > notesMax {
		t.Errorf("%d lines in the log", n)
	}
}

// TestSilence: a client that sends nothing, or half a request, is not waited for.
func TestSilence(t *testing.T) {
	s := serveStep(t, wire.V2205, nil)
	s.patience = 50 * time.Millisecond
	for name, sent := range map[string][]byte{
		"nothing":           nil,
		"half a greeting":   {0},
		"a greeting":        words(int32(wire.V2205)),
		"half a request":    words(int32(wire.V2205), 4, 9),
		"a text that lacks": words(int32(wire.V2205), 4022, 100, "ten bytes"),
	} {
		c := s.pair(t, owner)
		c.Write(sent)
		if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("after %s: %v", name, err)
		}
	}
	if got := s.fake.done(); got != "" {
		t.Errorf("did %q", got)
	}
}

// TestWrongSizes: a length that cannot be is no reason to take memory.
func TestWrongSizes(t *testing.T) {
	s := serveStep(t, wire.V2605, nil)
	for _, request := range [][]byte{words(4022, -1), words(4022, 1<<30), words(4, 15, 0, 1<<31-1), words(16, 1<<30)} {
		if got := exchange(t, s.dial(t, 0), request, 8); len(got) != 0 {
			t.Errorf("% x is answered with % x", request, got)
		}
	}
	if got := s.fake.done(); got != "" {
		t.Errorf("did %q", got)
	}
}

// TestCloseWhileAnswering: who is owed an answer has it.
func TestCloseWhileAnswering(t *testing.T) {
	running := make(chan struct{})
	s := serveStep(t, wire.V2205, func(c *Config) { c.Running = running })
	s.fake.set(Starting)
	c := s.dial(t, owner)
	if _, err := c.Write(words(4, 10, 0, 0, 0)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the signal waits", func() bool {
		s.fake.mu.Lock()
		defer s.fake.mu.Unlock()
		return s.fake.asked > 0
	})
	go s.Close()
	b := make([]byte, 8)
	if _, err := io.ReadFull(c, b); err != nil || !slices.Equal(b, words(-1, 4027)) {
		t.Errorf("%s, %v", hex.EncodeToString(b), err)
	}
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// extern is an extern step that adopts but process 13.
type extern struct{ adopted []int }

func (e *extern) Adopt(pid int) error {
	if pid == 13 {
		return errors.New("cannot adopt process 13")
	}
	e.adopted = append(e.adopted, pid)
	return nil
}

func (e *extern) Display() (int32, string) { return 10, "/x" }

// TestAdopt: root's sshd puts processes into an extern step, and no other user does, nor into another
// step.
func TestAdopt(t *testing.T) {
	e := new(extern)
	s := serveStep(t, wire.V2205, func(c *Config) { c.ID.Step, c.Extern = step.ExternStep, e })
	c := s.dial(t, 0)
	if got := exchange(t, c, words(22, 70, 22, 13, 22, 71, 9), 16); !slices.Equal(got, words(0, -1, 0, os.Getpid())) {
		t.Errorf("% x", got)
	}
	if !slices.Equal(e.adopted, []int{70, 71}) || !slices.Contains(s.logged(), "cannot adopt process 13") {
		t.Errorf("adopted %d, logged %q", e.adopted, s.logged())
	}
	if got := exchange(t, s.dial(t, owner), words(22, 72), 4); !slices.Equal(got, words(-1)) || len(e.adopted) != 2 {
		t.Errorf("the owner of the job: % x, adopted %d", got, e.adopted)
	}
	if got := exchange(t, s.dial(t, owner), words(23, 26), 15); !slices.Equal(got, words(10, 3, "/x\x00", 0)) {
		t.Errorf("the display, and no namespace: % x", got)
	}
	if got := exchange(t, s.dial(t, another), words(23), 8); !slices.Equal(got, words(0, 0)) {
		t.Errorf("another user's display: % x", got)
	}
	other := serveStep(t, wire.V2205, nil)
	if got := exchange(t, other.dial(t, 0), words(22, 70), 4); !slices.Equal(got, words(-1)) {
		t.Errorf("another step: % x", got)
	}
}

// TestNamespace: pam_slurm_adopt has the job's mount namespace, as slurmstepd of 24.11 and 26.05
// hands it over.
func TestNamespace(t *testing.T) {
	ns, err := os.Open("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	s := serveStep(t, wire.V2605, func(c *Config) { c.Namespace = ns })
	for _, tc := range []struct {
		request int
		want    []byte
	}{{26, words(int(ns.Fd()))}, {28, words(1, 0x20000)}} {
		if got := exchange(t, s.dial(t, another), words(tc.request), 4); !slices.Equal(got, words(0)) {
			t.Errorf("%d of a user: % x", tc.request, got)
		}
		c := s.dial(t, 0)
		if got := exchange(t, c, words(tc.request), len(tc.want)); !slices.Equal(got, tc.want) {
			t.Errorf("%d: % x", tc.request, got)
		}
		b, oob := make([]byte, 8), make([]byte, 64)
		n, oobn, _, _, err := c.ReadMsgUnix(b, oob)
		if err != nil || n != 1 {
			t.Fatalf("%d: %d bytes, %v", tc.request, n, err)
		}
		msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil || len(msgs) != 1 {
			t.Fatalf("%d: %v, %v", tc.request, msgs, err)
		}
		fds, err := unix.ParseUnixRights(&msgs[0])
		if err != nil || len(fds) != 1 {
			t.Fatalf("%d: %v, %v", tc.request, fds, err)
		}
		got := os.NewFile(uintptr(fds[0]), "ns")
		defer got.Close()
		theirs, err := got.Stat()
		ours, _ := ns.Stat()
		if err != nil || !os.SameFile(theirs, ours) {
			t.Errorf("%d: another file, %v", tc.request, err)
		}
	}
	ns.Close() // as the end of the step does
	c := s.dial(t, 0)
	if _, err := c.Write(words(26)); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
		t.Errorf("of a closed one: % x, %v", rest, err)
	}
}

// TestNames: what nss_slurm asks for, as slurmstepd of 22.05 and 24.11 has answered it.
func TestNames(t *testing.T) {
	const named, all, ofStep = 0, 1, 2
	alice := words(1, 5, "alice", 1, "x", 7001, 7001, 0, 5, "/home", 7, "/bin/sh")
	group := words(1, 5, "alice", 1, "x", 7001, 5, "alice")
	host := words(1, 2, "n1", 1, 2, "n1", 2, 4, "\x0a\x4d\x00\x01")
	for _, tc := range []struct {
		what    string
		inside  bool
		release wire.Release
		request []byte
		want    []byte
	}{
		{"by number", true, wire.V2205, words(24, named, 7001, 3, "zz\x00"), alice},
		{"by name", true, wire.V2205, words(24, named, 55, 6, "alice\x00"), alice},
		{"another user", true, wire.V2205, words(24, named, 55, 3, "zz\x00"), words(0)},
		{"the step's", true, wire.V2205, words(24, ofStep, 55, 3, "zz\x00"), alice},
		{"not of the step", false, wire.V2205, words(24, named, 7001, 6, "alice\x00"), words(0)},
		{"the step's, not of it", false, wire.V2205, words(24, ofStep, 7001, 6, "alice\x00"), words(0)},
		{"all, not of the step", false, wire.V2205, words(24, all, 55, 3, "zz\x00"), alice},
		{"no such question", true, wire.V2205, words(24, 3, 7001, 6, "alice\x00"), words(0)},
		{"group by number", true, wire.V2205, words(25, named, 7001, 3, "zz\x00"), group},
		{"no such group", true, wire.V2205, words(25, named, 56, 3, "zz\x00"), words(0)},
		{"all groups", false, wire.V2205, words(25, all, 55, 3, "zz\x00"), words(2, group[4:], 3, "lab", 1, "x", 55, 5, "alice")},
		{"groups of a later release", false, wire.V2411, words(25, 5, 55, 3, "zz\x00"), words(0)},
		{"host", true, wire.V2205, words(27, 2, 3, "n1\x00"), host},
		{"host, from elsewhere", false, wire.V2205, words(27, 2, 3, "n1\x00"), words(0)},
		{"host, from anywhere", false, wire.V2205, words(27, 3, 3, "n1\x00"), host},
		{"an address of IPv6", true, wire.V2205, words(27, 4, 3, "n1\x00"), words(0)},
		{"an address of IPv6 of a later release", true, wire.V2411, words(27, 4, 3, "n1\x00"), host},
		{"no such host", true, wire.V2205, words(27, 3, 3, "n2\x00"), words(0)},
	} {
		t.Run(tc.what, func(t *testing.T) {
			s := serveStep(t, tc.release, func(c *Config) {
				c.Names = Names{
					User: "alice", UID: 7001, GID: 7001, Home: "/home", Shell: "/bin/sh", Groups: []UserGroup{{"alice", 7001}, {"lab", 55}},
					Host: func(node string) (netip.Addr, bool) { return netip.MustParseAddr("10.77.0.1"), node == "n1" },
				}
			})
			if tc.inside {
				s.fake.mu.Lock()
				s.fake.pids = []int{os.Getpid()}
				s.fake.mu.Unlock()
			}
			if got := exchange(t, s.dial(t, owner), tc.request, len(tc.want)); !slices.Equal(got, tc.want) {
				t.Errorf("% x, want % x", got, tc.want)
			}
		})
	}
}
