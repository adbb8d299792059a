package socket

import (
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"stepd/slurm/wire"
	"stepd/step"
)

// TestAnnouncement has the lines that users of slurmstepd 22.05.8, 24.11.5 and 26.05.5 have
// read.
func TestAnnouncement(t *testing.T) {
	at := time.Date(2026, 11, 23, 3, 10, 10, 0, time.UTC)
	for _, tc := range []struct {
		v    wire.Release
		id   step.ID
		sig  int32
		want string
	}{
		{wire.V2205, step.ID{Job: 69}, 15, "*** STEP 69.0 ON vm CANCELLED AT 2026-11-23T03:10:10 ***"},
		{wire.V2411, step.ID{Job: 69}, 9, "*** STEP 69.0 ON vm CANCELLED AT 2026-11-23T03:10:10 ***"},
		{wire.V2605, step.ID{Job: 69}, 9, "*** STEP 69.0 ON vm CANCELLED AT 2026-11-23T03:10:10 DUE to SIGNAL Killed ***"},
		{wire.V2605, step.ID{Job: 69}, 15, "*** STEP 69.0 ON vm CANCELLED AT 2026-11-23T03:10:10 DUE to SIGNAL Terminated ***"},
		{wire.V2205, step.ID{Job: 80, Step: step.BatchStep}, 15, "*** JOB 80 ON vm CANCELLED AT 2026-11-23T03:10:10 ***"},
		{wire.V2205, step.ID{Job: 80, Step: step.InteractiveStep}, 15, "*** STEP 80.interactive ON vm CANCELLED AT 2026-11-23T03:10:10 ***"},
		{wire.V2411, step.ID{Job: 11}, 991, "*** STEP 11.0 ON vm CANCELLED AT 2026-11-23T03:10:10 ***"},
		{wire.V2605, step.ID{Job: 11}, 991, "*** STEP 11.0 ON vm CANCELLED AT 2026-11-23T03:10:10 DUE TO TASK FAILURE ***"},
		{wire.V2205, step.ID{Job: 4}, 992, "*** STEP 4.0 ON vm UNCORRECTABLE MEMORY ERROR AT 2026-11-23T03:10:10 ***"},
		{wire.V2605, step.ID{Job: 8}, 993, "*** STEP 8.0 ON vm CANCELLED AT 2026-11-23T03:10:10 DUE TO JOB REQUEUE ***"},
		{wire.V2205, step.ID{Job: 6}, 994, "*** STEP 6.0 ON vm CANCELLED AT 2026-11-23T03:10:10 DUE TO PREEMPTION ***"},
		{wire.V2605, step.ID{Job: 5}, 996, "*** STEP 5.0 ON vm CANCELLED AT 2026-11-23T03:10:10 DUE TO TIME LIMIT ***"},
		{wire.V2411, step.ID{Job: 7}, 998, "*** STEP 7.0 ON vm CANCELLED AT 2026-11-23T03:10:10 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"},
		{wire.V2205, step.ID{Job: 9}, 999, "*** STEP 9.0 ON vm FAILED (non-zero exit code or other failure mode) ***"},
		{wire.V2205, step.ID{Job: 9}, 997, ""},
		{wire.V2205, step.ID{Job: 9}, 995, ""},
		{wire.V2205, step.ID{Job: 9}, 18, ""},
		{wire.V2205, step.ID{Job: 9}, 0, ""},
	} {
		if got := Announcement(tc.v, tc.id.Name(), "vm", tc.sig, at); got != tc.want {
			t.Errorf("%s, signal %d: %q, want %q", tc.v, tc.sig, got, tc.want)
		}
	}
	if got, want := Announcement(wire.V2411, "7.3+1", "vm", 15, at), "*** STEP 7.3+1 ON vm CANCELLED AT 2026-11-23T03:10:10 ***"; got != want {
		t.Errorf("of a component: %q, want %q", got, want)
	}
}

// TestSignals is what a request of each kind does.
func TestSignals(t *testing.T) {
	batch := step.ID{Job: 80, Step: step.BatchStep}
	for _, tc := range []struct {
		name       string
		id         step.ID
		state      State
		sig, flags int
		want       string
		errno      int
	}{
		{name: "term", sig: 15, want: "say CANCELLED; signal 15 to 0"},
		{name: "kill", sig: 9, want: "say CANCELLED; signal 9 to 0"},
		{name: "cont", sig: 18, want: "signal 18 to 0"},
		{name: "term and kill", sig: 991, want: "say CANCELLED; cancel"},
		{name: "abort", sig: 997, want: "abort"},
		{name: "time limit", sig: 996, want: "say CANCELLED"},
		{name: "preempted", sig: 994, want: "say CANCELLED"},
		{name: "debugger", sig: 995},
		{name: "script alone", id: batch, sig: 10, flags: 0x1, want: "signal 10 to 1"},
		{name: "the script's group", id: batch, sig: 10, flags: 0x8, want: "signal 10 to 2"},
		{name: "script and all that it runs", id: batch, sig: 10, want: "signal 10 to 0"},
		{name: "flags of a batch job's step", sig: 10, flags: 0x9, want: "signal 10 to 0"},
		{name: "term before the tasks run", state: Starting, sig: 15, want: "say CANCELLED; signal 15 to 0"},
		{name: "cont before the tasks run", state: Starting, sig: 18},
		{name: "kill at the end", state: Ending, sig: 9, errno: 4027, want: "late"},
		{name: "probe at the end", state: Ending, sig: 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := serveStep(t, wire.V2205, func(c *Config) {
				if tc.id != (step.ID{}) {
					c.ID = tc.id
				}
			})
			if tc.state != NotRunning {
				s.fake.set(tc.state)
			}
			want := words(0, 0)
			if tc.errno != 0 {
				want = words(-1, tc.errno)
			}
			if got := exchange(t, s.dial(t, owner), words(4, tc.sig, tc.flags, 0, 0), 8); !slices.Equal(got, want) {
				t.Errorf("answer % x, want % x", got, want)
			}
			did := s.fake.done()
			if at := strings.Index(did, "***"); at >= 0 {
				did = did[:at] + "CANCELLED" + did[strings.LastIndex(did, "***")+3:]
			}
			if did != tc.want {
				t.Errorf("did %q, want %q", did, tc.want)
			}
		})
	}
}

// TestOneReason: the first reason is the one that the user reads, with slurmctld's words.
func TestOneReason(t *testing.T) {
	s := serveStep(t, wire.V2205, nil)
	c := s.dial(t, 0)
	exchange(t, c, words(4, 994, 0, 4, "why\x00", 0), 8)
	exchange(t, c, words(4, 15, 0, 5, "more\x00", 0), 8)
	exchange(t, c, words(4, 996, 0, 0, 0), 8)
	got := s.fake.done()
	if !strings.HasPrefix(got, "say *** STEP 69.3 ON n1 CANCELLED AT ") || !strings.HasSuffix(got, " DUE TO PREEMPTION ***; say *** REASON: why ***; signal 15 to 0") {
		t.Errorf("did %q", got)
	}
}

// TestOneNodeAnnounces: of a step's nodes one says it.
func TestOneNodeAnnounces(t *testing.T) {
	s := serveStep(t, wire.V2205, func(c *Config) { c.Announces = false })
	exchange(t, s.dial(t, 0), words(4, 15, 0, 0, 0), 8)
	if got := s.fake.done(); got != "signal 15 to 0" {
		t.Errorf("did %q", got)
	}
	for _, tc := range []struct {
		env  []string
		node uint32
		want bool
	}{
		{nil, 0, true}, {nil, 1, false},
		{[]string{"A=1", "SLURM_STEP_KILLED_MSG_NODE_ID=1"}, 1, true},
		{[]string{"SLURM_STEP_KILLED_MSG_NODE_ID=1"}, 0, false},
		{[]string{"SLURM_STEP_KILLED_MSG_NODE_ID=x"}, 0, false},
	} {
		if got := Announces(tc.env, tc.node); got != tc.want {
			t.Errorf("node %d of %q: %v", tc.node, tc.env, got)
		}
	}
}

// TestWaitsForTasks: a signal that comes too early is delivered when they run.
func TestWaitsForTasks(t *testing.T) {
	running := make(chan struct{})
	s := serveStep(t, wire.V2205, func(c *Config) { c.Running = running })
	s.fake.set(Starting)
	c := s.dial(t, owner)
	if _, err := c.Write(words(4, 10, 0, 0, 0)); err != nil {
		t.Fatal(err)
	}
	exchange(t, s.dial(t, owner), words(5), 4) // another client is served meanwhile
	if got := s.fake.done(); got != "" {
		t.Errorf("did %q before the tasks run", got)
	}
	s.fake.set(Running)
	close(running)
	b := make([]byte, 8)
	if _, err := io.ReadFull(c, b); err != nil || !slices.Equal(b, words(0, 0)) {
		t.Errorf("% x, %v", b, err)
	}
	if got := s.fake.done(); got != "signal 10 to 0" {
		t.Errorf("did %q", got)
	}
}

// FuzzRequest: what a user sends is read without harm, and no more memory is taken than has
// come.
func FuzzRequest(f *testing.F) {
	for _, seed := range [][]byte{
		words(4, 15, 0, 4, "why\x00", 0), words(5), words(8, 71), words(10, uint16(0)), words(16, 5, "abcde"),
		attachRequest(), attachRequest(0), words(7, -1), words(4022, 4, "hej\x00"), words(4022, -1), words(16, 1<<30), words(77), nil,
	} {
		f.Add(uint8(0), seed)
		f.Add(uint8(7), seed)
	}
	f.Fuzz(func(t *testing.T, release uint8, b []byte) {
		v := wire.V2205 + wire.Release(release%8)<<8
		in := &counted{b: b}
		q, err := readRequest(v, in)
		if err != nil {
			return
		}
		if len(q.text) > len(b) || strings.Contains(q.text, "\x00") {
			t.Errorf("a text of %d bytes of %d", len(q.text), len(b))
		}
		// What follows a request is the next one's.
		again, err := readRequest(v, &counted{b: b[:in.at]})
		if err != nil || !reflect.DeepEqual(again, q) {
			t.Errorf("%+v of the bytes that were read, %v; %+v of all", again, err, q)
		}
	})
}

// counted reads bytes, and knows how many.
type counted struct {
	b  []byte
	at int
}

func (c *counted) Read(b []byte) (int, error) {
	if c.at == len(c.b) {
		return 0, io.EOF
	}
	n := copy(b, c.b[c.at:])
	c.at += n
	return n, nil
}

// TestNoLeak: of two hundred connections no descriptor is left.
func TestNoLeak(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	s := serveStep(t, wire.V2205, nil)
	before := count()
	for range 200 {
		c := s.dial(t, owner)
		exchange(t, c, words(5), 4)
		c.Close()
	}
	eventually(t, "no descriptor is left", func() bool { return count() <= before })
	if matches, _ := filepath.Glob(filepath.Join(s.conf.Spool, "*")); len(matches) != 1 {
		t.Errorf("%q", matches)
	}
}
