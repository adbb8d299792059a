package pmix

import (
	"bufio"
	"encoding/binary"
	"reflect"
	"strings"
	"testing"

	"stepd/internal/wire"
)

// allValues has a value of each form.
func allValues() []info {
	deep := text("in")
	for range pmixhostDepthMax {
		deep = infosOf(kv("deeper", deep))
	}
	return []info{
		{key: "none", flags: flagRequired},
		kv("bool", boolean(true)),
		kv("bare", value{typ: 100, bare: true}),
		kv("envar", value{typ: vEnvar, text: "A=b=c", num: ':'}),
		kv("text", text("a\xffb")),
		kv("empty", text("")),
		kv("u32", number32(1<<31)),
		kv("u16", number16(65535)),
		kv("int", value{typ: vInt, num: ^uint64(6)}),
		kv("rank", rankOf(rankWildcard)),
		kv("proc", procOf(proc{"n", 3})),
		kv("bytes", value{typ: vByteObject, bytes: []byte{0, 1, 2}}),
		kv("time", value{typ: vTimeval, num: 3, usec: 4}),
		kv("info", value{typ: vProcInfo, pinfo: procInfo{proc{"n", 1}, "h", "p", 7, -1, 2}}),
		kv("table", table([]procInfo{{proc{"n", 1}, "h", "p", 7, -1, 2}, {}})),
		kv("procs", value{typ: vDataArray, array: array{elem: vProc, procs: []proc{{"n", 1}}}}),
		kv("texts", value{typ: vDataArray, array: array{elem: vString, texts: []string{"a", ""}}}),
		kv("nums", value{typ: vDataArray, array: array{elem: vUint32, nums: []uint32{1, 2}}}),
		kv("deep", deep),
	}
}

func TestValues(t *testing.T) {
	w := &writer{}
	w.infos(allValues())
	r := reader{Reader: wire.Reader{B: w.B}}
	got := r.infos()
	if err := r.done(); err != nil {
		t.Fatal(err)
	}
	if want := allValues(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	// No part of it is all of it.
	for n := range w.B {
		r := reader{Reader: wire.Reader{B: w.B[:n]}}
		if r.infos(); r.done() == nil {
			t.Fatalf("%d of %d bytes are taken for all", n, len(w.B))
		}
	}
}

func TestValuesTooDeep(t *testing.T) {
	v := text("in")
	for range pmixhostDepthMax + 1 {
		v = infosOf(kv("deeper", v))
	}
	w := &writer{}
	w.infos([]info{kv("deep", v)})
	r := reader{Reader: wire.Reader{B: w.B}}
	if r.infos(); r.done() == nil {
		t.Error("arrays deeper than the limit are read")
	}
}

func TestReadFrame(t *testing.T) {
	frameOf := func(size uint32, rest string) string {
		return string(binary.LittleEndian.AppendUint32(nil, size)) + rest
	}
	for _, c := range []struct{ name, bytes, want string }{
		{"cut in its head", frameOf(8, "1234567"), "EOF"},
		{"cut in its body", frameOf(100, "12345678"), "EOF"},
		{"too short", frameOf(7, "12345678"), "7 bytes: the limit"},
		{"too long", frameOf(pmixhostFrameMax+1, "12345678"), "the limit is"},
		{"a length that lies", frameOf(pmixhostFrameMax, "12345678ab"), "EOF"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := readFrame(bufio.NewReader(strings.NewReader(c.bytes)))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// FuzzFrames: whatever pmixhost says, it is read or refused, and costs no more
// memory than it has bytes.
func FuzzFrames(f *testing.F) {
	w := &writer{}
	w.proc(proc{"slurm.pmix.1.0", 0})
	w.infos(allValues())
	f.Add(uint32(upQuery), w.B)
	f.Add(uint32(upFence), append(append([]byte(nil), w.B...), 1, 0, 0, 0, 9))
	f.Fuzz(func(t *testing.T, typ uint32, body []byte) {
		r := reader{Reader: wire.Reader{B: body}}
		r.infos()
		r = reader{Reader: wire.Reader{B: body}}
		r.procs()
		r.infos()
		r.Bytes()
		p := unstarted(t)
		fr := frame{typ: upConnected + typ%32, id: 1, body: reader{Reader: wire.Reader{B: body}}, size: len(body)}
		switch fr.typ {
		case upConnected, upFinalized, upLost, upWord, upTool:
			upcalls{p}.heard(fr)
		default:
			_, _ = upcalls{p}.serve(p.ctx, fr)
		}
	})
}

// FuzzPeers: what another stepd of the step asks, and what it answers.
func FuzzPeers(f *testing.F) {
	w := &writer{}
	w.U32(10)
	list(w, []uint32{0, 3}, w.U32)
	f.Add(w.B)
	e := event{code: -400, source: proc{"slurm.pmix.12.3", 0}, rng: rangeNamespace, infos: allValues()}
	w = &writer{}
	e.write(w)
	f.Add(w.B)
	w = &writer{}
	list(w, []procInfo{{proc: proc{"slurm.pmix.12.3", 1}, host: "n", pid: 7}}, w.procInfo)
	f.Add(w.B)
	f.Fuzz(func(t *testing.T, data []byte) {
		p := unstarted(t)
		if err := (upcalls{p}).answerSignal(data); err == nil {
			t.Error("signals were sent by a step that has no way to")
		}
		if err := (upcalls{p}).answerEvent(p.ctx, data); err == nil {
			t.Error("an event was told by a server that is gone")
		}
		r := reader{Reader: wire.Reader{B: data}}
		if rows := elements(&r, procInfoMin, r.procInfo); len(rows)*procInfoMin > len(data) {
			t.Errorf("%d rows of %d bytes", len(rows), len(data))
		}
	})
}

// FuzzNames: what another stepd asks of our names.
func FuzzNames(f *testing.F) {
	w := &writer{}
	w.U32(namePut)
	w.Str("k")
	w.proc(proc{"n", 1})
	w.Bytes([]byte("v"))
	f.Add(w.B)
	f.Fuzz(func(t *testing.T, data []byte) {
		p := unstarted(t)
		p.stop() // a lookup that waits does not
		out, err := p.names.answer(p.ctx, data)
		if err == nil && len(out) < 4 {
			t.Errorf("answer %q", out)
		}
	})
}

func TestShortVersion(t *testing.T) {
	for said, want := range map[string]string{
		"OpenPMIx 4.2.2rc2 (PMIx Standard: 4.2, Stable ABI: 0.0, Provisional ABI: 0.0)": "4.2",
		"OpenPMIx 3.2.4, repo rev: v3.2.4":                                              "3.2",
		"pmix":                                                                          "",
	} {
		if got := shortVersion(said); got != want {
			t.Errorf("%q: got %q, want %q", said, got, want)
		}
	}
}

func TestParseNspace(t *testing.T) {
	for s, ok := range map[string]bool{
		"slurm.pmix.1.0": true, "slurm.pmix.4294967295.7": true, "slurm.pmix.1": false, "slurm.pmix.01.0": false,
		"slurm.pmix.1.0.server": false, "prterun-1@1": false, "": false,
	} {
		if id, got := parseNspace(s); got != ok || (ok && Nspace(id) != s) {
			t.Errorf("%q: %v, %v", s, id, got)
		}
	}
}
