package pmix

import (
	"context"
	"testing"
)

// asked serves an upcall as pmixhost would send it.
func asked(t *testing.T, p *Plugin, typ uint32, fill func(w *writer)) (int, []info) {
	t.Helper()
	w := &writer{}
	fill(w)
	got, err := p.serve(context.Background(), frame{typ: typ, id: 1, body: reader{b: w.b}})
	if err != nil {
		t.Fatal(err)
	}
	if got.fill == nil {
		return got.status, nil
	}
	out := &writer{}
	got.fill(out)
	r := reader{b: out.b}
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
			w.u32(1)
			list(w, keys, w.str)
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

func TestControl(t *testing.T) {
	for _, c := range []struct {
		who    proc
		target []proc
		key    string
		status int
		text   string // "" is no end
	}{
		{proc{"slurm.pmix.12.3", 1}, nil, keyTerminate, stSuccess, "rank 1 asked for the end of all ranks"},
		{proc{"slurm.pmix.12.3", 1}, []proc{{"slurm.pmix.12.3", 3}}, keyKill, stSuccess, "rank 1 asked for the end of rank 3"},
		{proc{"slurm.pmix.12.3", 1}, []proc{{"slurm.pmix.12.9", 3}}, keyKill, stNotFound, ""},
		{proc{"slurm.pmix.12.9", 1}, nil, keyKill, stNoPermissions, ""},
		{proc{"slurm.pmix.12.3", 1}, nil, "pmix.jctrl.pause", stNotSupported, ""},
	} {
		p := unstarted(t)
		k := &told{}
		p.job = k.job(p.job.Spec)
		code, _ := asked(t, p, upControl, func(w *writer) {
			w.proc(c.who)
			list(w, c.target, w.proc)
			w.infos([]info{kv(c.key, boolean(true))})
		})
		if code != c.status {
			t.Errorf("%v %s: status %d, want %d", c.who, c.key, code, c.status)
		}
		if c.text != "" {
			wantAbort(t, k, 1, 1, c.text)
		} else if len(k.aborts) > 0 {
			t.Errorf("%v %s: %+v", c.who, c.key, k.aborts)
		}
	}
}
