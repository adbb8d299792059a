package stepnet

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
)

func TestFrames(t *testing.T) {
	var wire bytes.Buffer
	p := &part{name: "a\x00b", nodes: "0-3", problem: "", entries: []entry{{0, []byte{}}, {3, []byte("x\x00")}}}
	c := &call{to: 3, from: 1, number: 9, name: "get", data: []byte("key")}
	o := &output{fd: 2, rank: -1, end: true, data: []byte("bytes")}
	h := hello{protocol, wire32(4294967291), 1, launcherID, 16, 4}
	for _, f := range []frame{p.frame(kindGatherUp), c.frame(kindCall), o.frame(), h.frame(), plainFrame(kindPing)} {
		wire.Write(f)
	}
	next := func(want kind) []byte {
		k, body, err := readFrame(&wire, 1<<20)
		if err != nil || k != want {
			t.Fatalf("read kind %d, %v, want %d", k, err, want)
		}
		return body
	}
	if got, err := parsePart(next(kindGatherUp)); err != nil || !reflect.DeepEqual(got, p) {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := parseCall(kindCall, next(kindCall)); err != nil || !reflect.DeepEqual(got, c) {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := parseOutput(next(kindOutput)); err != nil || !reflect.DeepEqual(got, o) {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := parseHello(next(kindHello)); err != nil || got != h {
		t.Errorf("got %+v, %v", got, err)
	}
	if body := next(kindPing); len(body) != 0 {
		t.Errorf("a ping of %d bytes", len(body))
	}
}

func wire32(v uint32) int { return wire(v) }

func TestFrameLimits(t *testing.T) {
	for name, raw := range map[string]string{
		"too long":      "\x00\x00\x10\x00\x02",
		"far too long":  "\xff\xff\xff\xff\x02",
		"no kind":       "\x00\x00\x00\x00\x00",
		"unknown kind":  "\x00\x00\x00\x01\xc8",
		"kind 0":        "\x00\x00\x00\x01\x00",
		"cut in a body": "\x00\x00\x00\x09\x02abc",
		"cut in a head": "\x00\x00",
	} {
		_, _, err := readFrame(strings.NewReader(raw), 1000)
		if !errors.Is(err, errFrame) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzFrame reads what may come from the wire. What is taken means the same when
// it is sent again.
func FuzzFrame(f *testing.F) {
	for _, fr := range []frame{
		(&part{name: "n", nodes: "0-1", entries: []entry{{1, []byte("d")}}}).frame(kindGatherDown),
		(&call{to: 1, from: 2, number: 3, name: "n", data: []byte("d")}).frame(kindCall),
		(&call{to: 1, number: 3, problem: "p"}).frame(kindReply),
		(&output{fd: 1, rank: 5, data: []byte("d")}).frame(),
		hello{protocol, 1, 2, 3, 16, 5}.frame(), creditFrame(2, 100), wordsFrame(kindLost, 2, []byte("gone")), plainFrame(kindOver),
	} {
		f.Add([]byte(fr))
	}
	f.Add([]byte("\x00\x10\x00\x00\x02"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		k, body, err := readFrame(bytes.NewReader(raw), 64<<10)
		if err != nil {
			return
		}
		var again frame
		switch k {
		case kindHello:
			var h hello
			if h, err = parseHello(body); err == nil {
				again = h.frame()
			}
		case kindGatherUp, kindGatherDown:
			var p *part
			if p, err = parsePart(body); err == nil {
				again = p.frame(k)
			}
		case kindCall, kindReply:
			var c *call
			if c, err = parseCall(k, body); err == nil {
				again = c.frame(k)
			}
		case kindOutput:
			var o *output
			if o, err = parseOutput(body); err == nil && int(body[11]) == b2i(o.end) && body[8]|body[9]|body[10] == 0 {
				again = o.frame()
			}
		case kindCredit:
			var c, n int
			if c, n, err = parseCredit(body); err == nil {
				again = creditFrame(c, n)
			}
		case kindTold, kindLost, kindRecord, kindInput:
			var n int
			var w []byte
			if n, w, err = parseWords(body); err == nil {
				again = wordsFrame(k, n, w)
			}
		}
		if again != nil && !bytes.Equal(again, raw[:len(again)]) {
			t.Errorf("kind %d: %q became %q", k, raw, again)
		}
	})
}

// FuzzNode lets a child that has proved its key send anything at all. Its parent
// takes no harm: it answers the others, and ends.
func FuzzNode(f *testing.F) {
	for _, fr := range []frame{
		(&part{name: "n", nodes: "0-1", entries: []entry{{1, []byte("d")}}}).frame(kindGatherUp),
		(&part{name: "n", nodes: "0-1", entries: []entry{{0, nil}, {1, nil}}}).frame(kindGatherDown),
		(&call{to: 0, from: 1, number: 3, name: whoName, data: []byte("d")}).frame(kindCall),
		(&call{to: 2, from: 1, number: 3, name: "x"}).frame(kindCall),
		(&call{to: 0, number: 1, problem: "p"}).frame(kindReply),
		(&output{fd: 1, rank: 5, data: []byte("d")}).frame(),
		creditFrame(2, 100), wordsFrame(kindLost, 2, []byte("gone")), wordsFrame(kindTold, 9, nil),
		wordsFrame(kindRecord, 1, []byte("word")), plainFrame(kindDone), plainFrame(kindEnded), plainFrame(kindOver), plainFrame(kindInputClosed),
	} {
		f.Add([]byte(fr))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		n := quietNode(3)
		l := n.down[1]
		for r := bytes.NewReader(raw); ; {
			k, body, err := readFrame(r, 64<<10)
			if err == nil {
				err = l.receive(k, body)
			}
			if err != nil {
				l.fail(err)
				break
			}
		}
		n.Close()
	})
}
