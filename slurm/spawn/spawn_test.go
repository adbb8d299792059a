package spawn

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"stepd/slurm/spec"
	"stepd/slurm/wire"
	"stepd/step"
	"stepd/step/launch"
)

// patience bounds what a test waits for; it is never reached.
const patience = time.Minute

// fakeSrun is srun's server of PMI-2: it answers each frame by answer, which gets what follows
// the length.
func fakeSrun(t *testing.T, answer func(frame []byte) []byte) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() { l.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if frame, err := readSized(c, answerMax); err == nil {
				if b := answer(frame); b != nil {
					c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...))
				}
			}
			c.Close()
		}
	})
	return l.Addr().String()
}

// started is srun's first answer to a spawn: its number, and a code.
func started(seq, rc uint32) []byte {
	b := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, seq), rc)
	return append(b, make([]byte, 2+4+4)...)
}

// rig is a step that spawns, with what its neighbours have heard.
type rig struct {
	*Services
	ending chan struct{}
	asked  chan struct{}   // srun has been asked for a step
	aborts chan string     // Abort was called
	sent   chan sentRecord // Forward was called
}

type sentRecord struct {
	node    string
	to      step.ID
	command uint16
	body    string
}

func (s sentRecord) String() string {
	return fmt.Sprintf("%s %s %#x %s", s.node, s.to, s.command, s.body)
}

var parentID = step.ID{Job: 7, Step: 0}
var childID = step.ID{Job: 7, Step: 1}

func newRig(t *testing.T, rc uint32) *rig {
	t.Helper()
	r := &rig{ending: make(chan struct{}), asked: make(chan struct{}, 16), aborts: make(chan string, 16), sent: make(chan sentRecord, 16)}
	addr := fakeSrun(t, func([]byte) []byte {
		r.asked <- struct{}{}
		return started(1, rc)
	})
	inbox := &Inbox{Path: filepath.Join(t.TempDir(), "sock"), UID: 4711, Log: func(string) {}}
	inbox.UID, inbox.GID = uint32(os.Getuid()), uint32(os.Getgid())
	r.Services = New(Config{
		Spec: &step.Spec{ID: parentID, NodeName: "n1", JobNodeList: "n[1-3]", User: step.User{UID: inbox.UID}},
		Port: addr, Inbox: inbox, Log: func(string) {},
		Token: func(context.Context) (string, error) { return "TOKEN", nil },
		Forward: func(_ context.Context, node string, to step.ID, record []byte) error {
			r.sent <- sentRecord{node, to, binary.BigEndian.Uint16(record), string(record[2:])}
			return nil
		},
		Abort:  func(rank, code int, text string) { r.aborts <- fmt.Sprintf("%d %d %s", rank, code, text) },
		Ending: func() <-chan struct{} { return r.ending },
	})
	t.Cleanup(func() { inbox.Close(); r.Close() })
	return r
}

// spawnOne spawns 2 tasks, and returns when srun has been asked.
func (r *rig) spawnOne(t *testing.T, ctx context.Context) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		id, err := r.Spawn(ctx, launch.SpawnRequest{Rank: 3, Apps: []launch.SpawnApp{{Argv: []string{"x"}, NTasks: 2}}})
		if err == nil && id != childID {
			err = fmt.Errorf("the step is %s", id)
		}
		done <- err
	}()
	await(t, r.asked, "srun to be asked")
	return done
}

func await[T any](t *testing.T, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
	}
	return v
}

// report is what node's daemon reports, as root.
func (r *rig) report(t *testing.T, m Report) {
	t.Helper()
	m.Spawn, m.Step = 1, childID
	record, err := encode(commandReport, &m)
	if err == nil {
		err = r.Inbox.act(0, record)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestSpawnRuns(t *testing.T) {
	r := newRig(t, 0)
	done := r.spawnOne(t, t.Context())
	r.report(t, Report{Node: "n1", Ranks: 1})
	select {
	case err := <-done:
		t.Fatalf("one of two ranks runs, and Spawn returns %v", err)
	default:
	}
	r.report(t, Report{Node: "n2", Ranks: 1})
	if err := await(t, done, "the spawn"); err != nil {
		t.Fatal(err)
	}
	// Its tasks' own ends are no news, and nothing of the child is kept.
	r.report(t, Report{Node: "n1", Ranks: 1, Ended: true, Code: 3})
	r.report(t, Report{Node: "n2", Ranks: 1, Ended: true, Code: 3})
	if len(r.children) != 0 || len(r.aborts) != 0 || len(r.sent) != 0 {
		t.Errorf("%d children are kept, %d aborts, %d records sent", len(r.children), len(r.aborts), len(r.sent))
	}
}

// TestSpawnEndsEarly: a node's tasks may have ended before another node's begin.
func TestSpawnEndsEarly(t *testing.T) {
	r := newRig(t, 0)
	done := r.spawnOne(t, t.Context())
	r.report(t, Report{Node: "n1", Ranks: 1})
	r.report(t, Report{Node: "n1", Ranks: 1, Ended: true})
	r.report(t, Report{Node: "n2", Ranks: 1})
	if err := await(t, done, "the spawn"); err != nil {
		t.Fatal(err)
	}
}

func TestSpawnFails(t *testing.T) {
	r := newRig(t, 0)
	done := r.spawnOne(t, t.Context())
	r.report(t, Report{Node: "n1", Ranks: 1, Failed: []Failure{{1, "stage exec: no such file"}}})
	r.report(t, Report{Node: "n2", Ranks: 1})
	failed, ok := errors.AsType[*launch.SpawnError](await(t, done, "the spawn"))
	if !ok || failed.ID != childID || failed.Failed[1] != "stage exec: no such file" || len(failed.Failed) != 1 {
		t.Fatalf("got %v", failed)
	}
	// Both nodes' daemons are asked to end it, and its end is no news.
	nodes := map[string]bool{}
	for range 2 {
		s := await(t, r.sent, "a cancel")
		if s.command != commandCancel || s.to != childID || !strings.Contains(s.body, "not all of its tasks could be started") {
			t.Errorf("sent %v", s)
		}
		nodes[s.node] = true
	}
	if !nodes["n1"] || !nodes["n2"] {
		t.Errorf("asked %v", nodes)
	}
	r.report(t, Report{Node: "n1", Ranks: 1, Ended: true, Bad: true, Code: 143})
	r.report(t, Report{Node: "n2", Ranks: 1, Ended: true, Bad: true, Code: 143})
	if len(r.aborts) != 0 || len(r.children) != 0 {
		t.Errorf("aborted by %q", <-r.aborts)
	}
}

func TestSpawnEndsBadly(t *testing.T) {
	t.Run("before it runs", func(t *testing.T) {
		r := newRig(t, 0)
		done := r.spawnOne(t, t.Context())
		r.report(t, Report{Node: "n1", Ranks: 1, Ended: true, Bad: true, Reason: "CANCELLED: by user 0"})
		if err := await(t, done, "the spawn"); err == nil || !strings.Contains(err.Error(), "CANCELLED: by user 0") {
			t.Errorf("got %v", err)
		}
		r.report(t, Report{Node: "n2", Ranks: 1}) // its tasks begin after all
		if s := await(t, r.sent, "a cancel"); s.node != "n2" || s.command != commandCancel {
			t.Errorf("sent %v", s)
		}
	})
	t.Run("afterwards", func(t *testing.T) {
		r := newRig(t, 0)
		done := r.spawnOne(t, t.Context())
		r.report(t, Report{Node: "n1", Ranks: 2})
		if err := await(t, done, "the spawn"); err != nil {
			t.Fatal(err)
		}
		r.report(t, Report{Node: "n1", Ranks: 2, Ended: true, Bad: true, Code: 7, Reason: "FAILED: abort"})
		if got := await(t, r.aborts, "an abort"); got != "3 7 step 7.1, which it has spawned, has ended: FAILED: abort" {
			t.Errorf("got %q", got)
		}
	})
}

func TestSrunFails(t *testing.T) {
	t.Run("at once", func(t *testing.T) {
		if err := await(t, newRig(t, 9).spawnOne(t, t.Context()), "the spawn"); !errors.Is(err, errNoSrun) {
			t.Errorf("got %v", err)
		}
	})
	result := append([]byte{0, byte(wire.PMISpawnResult)}, started(1, 2)...)
	t.Run("later", func(t *testing.T) {
		r := newRig(t, 0)
		done := r.spawnOne(t, t.Context())
		if err := r.Inbox.act(r.Inbox.UID, result); err != nil {
			t.Fatal(err)
		}
		if err := await(t, done, "the spawn"); !errors.Is(err, errNoSrun) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("it is gone", func(t *testing.T) {
		r := newRig(t, 0)
		r.port = "127.0.0.1:1"
		if _, err := r.Spawn(t.Context(), launch.SpawnRequest{Apps: []launch.SpawnApp{{Argv: []string{"x"}, NTasks: 1}}}); err == nil || !strings.Contains(err.Error(), "cannot ask srun at 127.0.0.1:1") {
			t.Errorf("got %v", err)
		}
	})
}

// TestSpawnLate: a step that comes when no rank waits for it any more is ended.
func TestSpawnLate(t *testing.T) {
	r := newRig(t, 0)
	ctx, cancel := context.WithCancelCause(t.Context())
	done := r.spawnOne(t, ctx)
	cancel(errors.New("the rank is gone"))
	if err := await(t, done, "the spawn"); err == nil || !strings.Contains(err.Error(), "the rank is gone") {
		t.Errorf("got %v", err)
	}
	r.report(t, Report{Node: "n1", Ranks: 2})
	if s := await(t, r.sent, "a cancel"); s.command != commandCancel || s.node != "n1" {
		t.Errorf("sent %v", s)
	}
}

func TestSpawnTimeout(t *testing.T) {
	r := newRig(t, 0)
	r.Timeout = time.Millisecond
	_, err := r.Spawn(t.Context(), launch.SpawnRequest{Apps: []launch.SpawnApp{{Argv: []string{"x"}, NTasks: 1}}})
	if err == nil || !strings.Contains(err.Error(), "PMI2SpawnTimeout") || !strings.Contains(err.Error(), "SLURM_OVERLAP=1") {
		t.Errorf("got %v", err)
	}
}

// TestStepEnds: what a step has spawned ends when the step is ended.
func TestStepEnds(t *testing.T) {
	r := newRig(t, 0)
	done := r.spawnOne(t, t.Context())
	r.report(t, Report{Node: "n1", Ranks: 2})
	if err := await(t, done, "the spawn"); err != nil {
		t.Fatal(err)
	}
	close(r.ending)
	if s := await(t, r.sent, "a cancel"); s.command != commandCancel || s.to != childID || !strings.Contains(s.body, "has been ended") {
		t.Errorf("sent %v", s)
	}
	r.report(t, Report{Node: "n1", Ranks: 2, Ended: true, Bad: true})
	if _, err := r.Spawn(t.Context(), launch.SpawnRequest{Apps: []launch.SpawnApp{{Argv: []string{"x"}, NTasks: 1}}}); err == nil || len(r.aborts) > 0 {
		t.Errorf("a step that ends has spawned another, or was aborted")
	}
}

func TestRequest(t *testing.T) {
	sp := &step.Spec{ID: parentID, NodeName: "n1", JobNodeList: "n[1-3]"}
	sp.Env = []string{"PATH=/bin"}
	origin := &spec.Origin{Node: "n1", Step: parentID, Spawn: 5}
	app := func(info ...step.KeyValue) launch.SpawnApp {
		return launch.SpawnApp{Argv: []string{"./a", "it's", "50 %", ""}, NTasks: 1, Info: info}
	}
	hint := func(k, v string) step.KeyValue { return step.KeyValue{Key: k, Value: []byte(v)} }
	for _, c := range []struct {
		name string
		apps []launch.SpawnApp
		want string
	}{
		{"none", nil, "there is no command"},
		{"one", []launch.SpawnApp{app(hint("wdir", "/tmp"), hint("path", "/opt"), hint("host", "n2:4, n3"), hint("soft", "1"))},
			"[{stepd.origin 5 7.0 n1}] [{./a [it's 50 % ] 1 [{wdir /tmp} {path /opt:/bin} {host n2,n3}]}]"},
		{"several", []launch.SpawnApp{app(), app(hint("wdir", "/tmp"))},
			`[{stepd.origin 5 7.0 n1} {stepd.wdir.1 /tmp}] [{./a ['it'\''s' '50 %' ''] 1 []} {./a ['it'\''s' '50 %' ''] 1 []}]`},
		{"another host", []launch.SpawnApp{app(hint("host", "n4"))}, `command 1 of 1: its hint host names "n4", which is no node of the job: n[1-3]`},
		{"lines", []launch.SpawnApp{app(), {Argv: []string{"a", "b\nc"}, NTasks: 1}}, `command 2 of 2: "b\nc" has more than one line, which srun cannot take beside other commands (--multi-prog)`},
		{"no tasks", []launch.SpawnApp{{Argv: []string{"a"}}}, "command 1 of 1 is empty, or has no tasks"},
	} {
		m, err := request(sp, origin, launch.SpawnRequest{Apps: c.apps})
		got := fmt.Sprint(err)
		if err == nil {
			got = fmt.Sprint(m.Preput, " ", m.Apps)
		}
		if got != c.want {
			t.Errorf("%s: got  %s\nwant %s", c.name, got, c.want)
		}
	}
}

func TestNames(t *testing.T) {
	names := map[string]string{}
	s := New(Config{Spec: &step.Spec{}, Inbox: &Inbox{}, Port: fakeSrun(t, func(frame []byte) []byte {
		text := func(at int) (string, int) {
			n := int(binary.BigEndian.Uint32(frame[at:]))
			return string(frame[at+4 : at+4+n-1]), at + 4 + n
		}
		name, at := text(2)
		switch wire.PMICommand(binary.BigEndian.Uint16(frame)) {
		case wire.PMIPublish:
			names[name], _ = text(at)
		case wire.PMIUnpublish:
			if name == "refused" {
				return []byte{255, 255, 255, 255}
			}
			delete(names, name)
		case wire.PMILookup:
			if port, ok := names[name]; ok {
				return append(binary.BigEndian.AppendUint32(nil, uint32(len(port)+1)), port+"\x00"...)
			}
		}
		return make([]byte, 4)
	})})
	defer s.Close()
	ctx := t.Context()
	if err := s.Publish(ctx, "name", "port"); err != nil {
		t.Fatal(err)
	}
	if port, found, err := s.Lookup(ctx, "name"); port != "port" || !found || err != nil {
		t.Errorf("got %q, %v, %v", port, found, err)
	}
	if err := s.Unpublish(ctx, "name"); err != nil {
		t.Error(err)
	}
	if port, found, err := s.Lookup(ctx, "name"); found || err != nil {
		t.Errorf("got %q, %v", port, err)
	}
	if err := s.Unpublish(ctx, "refused"); err == nil || !strings.Contains(err.Error(), "it answers -1") {
		t.Errorf("got %v", err)
	}
}

// TestInbox: the user may speak as srun, and others not at all.
func TestInbox(t *testing.T) {
	report, err := encode(commandReport, &Report{Spawn: 1, Step: childID, Node: "n1", Ranks: 2})
	if err != nil {
		t.Fatal(err)
	}
	end, err := encode(commandCancel, &cancel{"enough"})
	if err != nil {
		t.Fatal(err)
	}
	result := append([]byte{0, byte(wire.PMISpawnResult)}, started(1, 2)...)
	for _, c := range []struct {
		name   string
		sender uint32
		record []byte
		want   string
	}{
		{"a report of root's", 0, report, "report"},
		{"a report of the user's", 4711, report, "command 0x7301 is not the user's to give"},
		{"a cancel of root's", 0, end, "cancel enough"},
		{"a cancel of the user's", 4711, end, "command 0x7302 is not the user's to give"},
		{"srun's word", 4711, result, "result"},
		{"srun's word of another user", 4712, result, "it is uid 4712's"},
		{"nothing", 0, nil, "it has no command"},
		{"half of srun's word", 4711, result[:7], "pmi_spawn_result.rc: the record is too short, at 4 of 5 bytes"},
		{"no JSON", 0, report[:9], "cannot read a report of a spawned step"},
		{"a fence", 0, []byte{0, 0}, "command 0x0 is not known"},
	} {
		got := ""
		b := &Inbox{UID: 4711, Spawned: func(Report) { got = "report" }, Result: func(wire.SpawnResult) { got = "result" }, Cancel: func(reason string) { got = "cancel " + reason }}
		if err := b.act(c.sender, c.record); err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// TestInboxSocket: a process that is not root's is its own sender, whatever uid it writes.
func TestInboxSocket(t *testing.T) {
	logged := make(chan string, 4)
	results := make(chan wire.SpawnResult, 1)
	uid := uint32(os.Getuid())
	b := &Inbox{
		Path: filepath.Join(t.TempDir(), "sock"), UID: uid, GID: uint32(os.Getgid()),
		Log: func(text string) { logged <- text }, Result: func(m wire.SpawnResult) { results <- m },
	}
	for range 2 {
		if err := b.Open(); err != nil {
			t.Fatal(err)
		}
	}
	defer b.Close()
	send := func(parts ...[]byte) {
		t.Helper()
		c, err := net.Dial("unix", b.Path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for _, p := range parts {
			c.Write(p)
		}
		c.(*net.UnixConn).CloseWrite()
		io.Copy(io.Discard, c)
	}
	record := append([]byte{0, byte(wire.PMISpawnResult)}, started(5, 2)...)
	head := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uid), uint32(len(record)))
	send(head, record)
	if m := await(t, results, "srun's word"); m.Seq != 5 {
		t.Errorf("got %+v", m)
	}
	for _, bad := range [][]byte{nil, head[:3], head, binary.BigEndian.AppendUint32(head[:4:4], recordMax+1)} {
		send(bad)
		if text := await(t, logged, "a line of the log"); !strings.HasPrefix(text, "dropped a record") {
			t.Errorf("logged %q", text)
		}
	}
}

func FuzzInbox(f *testing.F) {
	report, _ := encode(commandReport, &Report{Spawn: 1, Step: childID, Node: "n1", Ranks: 2})
	f.Add(report)
	f.Add(append([]byte{0, byte(wire.PMISpawnResult)}, started(1, 2)...))
	f.Fuzz(func(t *testing.T, record []byte) {
		b := &Inbox{UID: 4711, Result: func(wire.SpawnResult) {}, Spawned: func(Report) { t.Error("a report of the user's was taken") }, Cancel: func(string) { t.Error("a cancel of the user's was taken") }}
		_ = b.act(4711, record)
		b.Spawned, b.Cancel = func(Report) {}, func(string) {}
		_ = b.act(0, record)
	})
}
