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
	for _, f := range []frame{p.frame(kindGatherUp), c.frame(kindCall), lostFrame(2, "gone"), plainFrame(kindPing)} {
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
	if node, cause, err := parseLost(next(kindLost)); err != nil || node != 2 || cause != "gone" {
		t.Errorf("got %d, %q, %v", node, cause, err)
	}
	if body := next(kindPing); len(body) != 0 {
		t.Errorf("a ping of %d bytes", len(body))
	}
}

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
		lostFrame(2, "gone"), plainFrame(kindOver),
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
		case kindLost:
			var node int
			var cause string
			if node, cause, err = parseLost(body); err == nil {
				again = lostFrame(node, cause)
			}
		}
		if again != nil && !bytes.Equal(again, raw[:len(again)]) {
			t.Errorf("kind %d: %q became %q", k, raw, again)
		}
	})
}

// FuzzNode lets a child send anything at all. Its parent
// takes no harm: it answers the others, and ends.
func FuzzNode(f *testing.F) {
	for _, fr := range []frame{
		(&part{name: "n", nodes: "0-1", entries: []entry{{1, []byte("d")}}}).frame(kindGatherUp),
		(&part{name: "n", nodes: "0-1", entries: []entry{{0, nil}, {1, nil}}}).frame(kindGatherDown),
		(&call{to: 0, from: 1, number: 3, name: whoName, data: []byte("d")}).frame(kindCall),
		(&call{to: 2, from: 1, number: 3, name: "x"}).frame(kindCall),
		(&call{to: 0, number: 1, problem: "p"}).frame(kindReply),
		lostFrame(2, "gone"), lostFrame(9, ""), plainFrame(kindDone), plainFrame(kindOver), plainFrame(kindPing),
	} {
		f.Add([]byte(fr))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		r := newRig(t, rigOptions{nodes: 3, late: []int{1}})
		theirs := r.conns[1].up
		go func() {
			_, _ = theirs.Write(raw) // it is cut off at the first mistake
			theirs.Close()
		}()
		got, err := r.nodes[2].Call(t.Context(), 0, "pong", []byte("x"))
		if lost := new(LostError); err != nil && !errors.As(err, &lost) && !errors.Is(err, errOver) || err == nil && string(got) != "x" {
			t.Errorf("node 2 got %q, %v", got, err)
		}
	})
}
