package pmix

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"stepd/internal/wire"
	"stepd/step"
	"stepd/step/launch"
)

// asked serves an upcall as pmixhost would send it.
func asked(t *testing.T, p *Plugin, typ uint32, fill func(w *writer)) (int, []info) {
	t.Helper()
	w := &writer{}
	fill(w)
	got, err := (upcalls{p}).serve(context.Background(), frame{typ: typ, id: 1, body: reader{Reader: wire.Reader{B: w.B}}})
	if err != nil {
		t.Fatal(err)
	}
	if got.fill == nil {
		return got.status, nil
	}
	out := &writer{}
	got.fill(out)
	if got.then != nil {
		got.then()
	}
	r := reader{Reader: wire.Reader{B: out.B}}
	infos := r.infos()
	if err := r.done(); err != nil {
		t.Fatal(err)
	}
	return got.status, infos
}

func TestQuery(t *testing.T) {
	p := unstarted(t)
	if err := p.others.learn(&world{nspace: "slurm.pmix.12.4", size: 2}, nil); err != nil {
		t.Fatal(err)
	}
	query := func(keys ...string) (int, []info) {
		return asked(t, p, upQuery, func(w *writer) {
			w.proc(proc{p.world.nspace, 0})
			w.U32(1)
			list(w, keys, w.Str)
			w.infos(nil)
		})
	}
	code, got := query(keyQueryNamespaces, keyJobSize)
	ns, _ := find(got, keyQueryNamespaces)
	size, _ := find(got, keyJobSize)
	if code != stSuccess || ns.text != "slurm.pmix.12.3,slurm.pmix.12.4" || size.num != 4 {
		t.Errorf("status %d, %+v", code, got)
	}
	if code, got := query(keyJobSize, "no.such"); code != stPartialSuccess || len(got) != 1 {
		t.Errorf("status %d, %+v", code, got)
	}
	if code, _ := query("no.such"); code != stNotSupported {
		t.Errorf("status %d", code)
	}
}

// A debugger's table: what stepd knows of its tasks, and the library of their ranks.
func TestProcessTable(t *testing.T) {
	p := unstarted(t)
	killed, failed := step.SignaledBy(9), step.ExitedWith(3)
	p.job.Tasks = func() []launch.MPITask {
		return []launch.MPITask{
			{Rank: 0, PID: 100, State: step.TaskRunning, Program: "/bin/a"},
			{Rank: 1, PID: 101, State: step.TaskRunning, Program: "/bin/a"},
			{Rank: 2, PID: 102, State: step.TaskExited, Status: &killed},
			{Rank: 3, PID: 103, State: step.TaskExited, Status: &failed},
		}
	}
	p.moved(upConnected, proc{p.world.nspace, 1})
	for _, key := range []string{keyQueryTable, keyQueryLocalTable} {
		code, got := asked(t, p, upQuery, func(w *writer) {
			w.proc(proc{"pmixhost-12-3", 0})
			w.U32(1)
			list(w, []string{key}, w.Str)
			w.infos([]info{kv(keyNspace, text(p.world.nspace))})
		})
		v, _ := find(got, key)
		rows := v.array.pinfo
		if code != stSuccess || len(rows) != 4 {
			t.Fatalf("%s: status %d, %d rows", key, code, len(rows))
		}
		for i, want := range []procInfo{
			{pid: 100, program: "/bin/a", state: procRunning}, {pid: 101, program: "/bin/a", state: procConnected},
			{pid: 102, state: procKilled, exitCode: 137}, {pid: 103, state: procNonZero, exitCode: 3},
		} {
			want.proc, want.host = proc{"slurm.pmix.12.3", uint32(i)}, "n0"
			if rows[i] != want {
				t.Errorf("%s: row %d is %+v, want %+v", key, i, rows[i], want)
			}
		}
	}
}

// Other jobs' tables are not ours to tell, and a job's status changes once.
func TestQueryOfJob(t *testing.T) {
	p := unstarted(t)
	k := &told{}
	p.job = k.job(p.job.Spec)
	if err := p.others.learn(&world{nspace: "slurm.pmix.12.4", size: 2}, nil); err != nil {
		t.Fatal(err)
	}
	ask := func(nspace, key string) (int, []info) {
		return asked(t, p, upQuery, func(w *writer) {
			w.proc(proc{"pmixhost-12-3", 0})
			w.U32(1)
			list(w, []string{key}, w.Str)
			w.infos([]info{kv(keyNspace, text(nspace))})
		})
	}
	for _, c := range []struct {
		nspace, key string
		code        int
	}{
		{"slurm.pmix.9.9", keyQueryTable, stNotFound}, {"slurm.pmix.12.4", keyQueryTable, stNotSupported},
		{"slurm.pmix.12.4", keyJobSize, stSuccess}, {"", keyQueryNamespaceInfo, stSuccess}, {"", keyQueryDebug, stSuccess},
	} {
		if code, _ := ask(c.nspace, c.key); code != c.code {
			t.Errorf("%s of %q: status %d, want %d", c.key, c.nspace, code, c.code)
		}
	}
	for _, want := range []int{stSuccess, stJobAborted} {
		_, got := ask("", keyQueryJobStatus)
		if v, _ := find(got, keyQueryJobStatus); v.typ != vStatus || int(int64(v.num)) != want {
			t.Errorf("job status %+v, want %d", v, want)
		}
		p.abort(0, 1, "x")
	}
	if code, _ := asked(t, p, upQuery, func(w *writer) {
		w.proc(proc{"x", 0})
		w.U32(1)
		w.U32(queryKeysMax + 1)
		for i := range queryKeysMax + 1 {
			w.Str(fmt.Sprint(i))
		}
		w.infos(nil)
	}); code != stBadParam {
		t.Errorf("too many keys: status %d", code)
	}
}

// What a tool is called: by its own name only where that is free.
func TestToolNames(t *testing.T) {
	p := unstarted(t)
	for _, c := range []struct {
		infos []info
		want  string
	}{
		{nil, "slurm.pmix.12.3.tool.1:0"},
		{[]info{kv(keyNspace, text("gdb-7")), kv(keyRank, rankOf(2))}, "gdb-7:2"},
		{[]info{kv(keyNspace, text("slurm.pmix.12.3")), kv(keyRank, rankOf(0))}, "slurm.pmix.12.3.tool.2:0"},
		{[]info{kv(keyNspace, text("slurm.pmix.12.4")), kv(keyRank, rankOf(0))}, "slurm.pmix.12.3.tool.3:0"},
		{[]info{kv(keyNspace, text("gdb-7"))}, "slurm.pmix.12.3.tool.4:0"},
		{[]info{kv(keyNspace, text("x")), kv(keyRank, rankOf(rankWildcard))}, "slurm.pmix.12.3.tool.5:0"},
		{[]info{kv(keyNspace, text(strings.Repeat("x", 256))), kv(keyRank, rankOf(1))}, "slurm.pmix.12.3.tool.6:0"},
	} {
		w := &writer{}
		w.infos(c.infos)
		got := (upcalls{p}).serveTool(&reader{Reader: wire.Reader{B: w.B}})
		out := &writer{}
		got.fill(out)
		r := reader{Reader: wire.Reader{B: out.B}}
		if who := r.proc(); got.status != stSuccess || who.String() != c.want {
			t.Errorf("%+v: status %d, %s, want %s", c.infos, got.status, who, c.want)
		}
	}
	// The library falls over where a tool is refused.
	if got := (upcalls{p}).serveTool(&reader{Reader: wire.Reader{B: []byte{1, 2}}}); got.status != stSuccess {
		t.Errorf("cut short: status %d", got.status)
	}
}

func TestControl(t *testing.T) {
	const ours = "slurm.pmix.12.3"
	rank1, tool := proc{ours, 1}, proc{ours + ".tool.1", 0}
	on := func(key string) info { return kv(key, boolean(true)) }
	for _, c := range []struct {
		name      string
		who       proc
		target    []proc
		directive info
		status    int
		text      string // of an abort; "" is none
		cancel    string // the reason of a cancel
		signal    string // what was sent
	}{
		{"a rank ends all", rank1, nil, on(keyTerminate), stSuccess, "rank 1 asked for the end of all ranks", "", ""},
		{"a rank ends all by name", rank1, []proc{{ours, rankWildcard}}, on(keyKill), stSuccess, "rank 1 asked for the end of all ranks", "", ""},
		{"a tool ends all", tool, nil, on(keyTerminate), stSuccess, "", `PMIx tool "slurm.pmix.12.3.tool.1" asked for the end`, ""},
		{"one is killed", rank1, []proc{{ours, 3}}, on(keyKill), stSuccess, "", "", "[3] 9"},
		{"two are ended", tool, []proc{{ours, 3}, {ours, 0}, {ours, 3}}, on(keyTerminate), stSuccess, "", "", "[0 3] 15"},
		{"pause", tool, nil, on("pmix.jctrl.pause"), stSuccess, "", "", "[0 1 2 3] 19"},
		{"resume", proc{"gdb", 0}, nil, on("pmix.jctrl.resume"), stSuccess, "", "", "[0 1 2 3] 18"},
		{"a signal", rank1, []proc{{ours, 2}}, kv(keySignal, value{typ: vInt, num: 10}), stSuccess, "", "", "[2] 10"},
		{"no signal", rank1, nil, kv(keySignal, value{typ: vInt, num: 65}), stNotSupported, "", "", ""},
		{"not meant", rank1, nil, kv(keyKill, boolean(false)), stNotSupported, "", "", ""},
		{"another step's rank", rank1, []proc{{ours, 3}, {"slurm.pmix.12.9", 3}}, on(keyKill), stNotFound, "", "", ""},
		{"a rank that is none", rank1, []proc{{ours, 4}}, on(keyKill), stNotFound, "", "", ""},
		{"a stranger", proc{"slurm.pmix.12.9", 1}, nil, on(keyKill), stNoPermissions, "", "", ""},
		{"unknown", rank1, nil, on("pmix.jctrl.ckpt"), stNotSupported, "", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := unstarted(t)
			k := &told{}
			p.job = k.job(p.job.Spec)
			var cancel, signal string
			p.job.Cancel = func(reason string) { cancel = reason }
			p.job.Signal = func(ranks []int, sig syscall.Signal) error {
				signal = fmt.Sprint(ranks, int(sig))
				return nil
			}
			code, _ := asked(t, p, upControl, func(w *writer) {
				w.proc(c.who)
				list(w, c.target, w.proc)
				w.infos([]info{c.directive})
			})
			if code != c.status || signal != c.signal || c.cancel == "" && cancel != "" || !strings.Contains(cancel, c.cancel) {
				t.Errorf("status %d, want %d; sent %q, want %q; cancelled for %q", code, c.status, signal, c.signal, cancel)
			}
			if c.text != "" {
				wantAbort(t, k, 1, 1, c.text)
			} else if len(k.aborts) > 0 {
				t.Errorf("%+v", k.aborts)
			}
		})
	}
}
