package replay

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
)

// all reads everything from pos on.
func all(r *Ring, pos int64, room int) (pieces []Piece, text string, skipped int64) {
	buf := make([]byte, room)
	for {
		p, next, gap := r.Read(pos, buf)
		skipped += gap
		if len(p.Data) == 0 {
			return pieces, text, skipped
		}
		text += string(p.Data)
		p.Data = bytes.Clone(p.Data)
		pieces = append(pieces, p)
		pos = next
	}
}

func TestRingKeepsTheLast(t *testing.T) {
	r := NewRing(10)
	r.Add(1, 0, []byte("hello "))
	r.Add(2, 0, []byte("wor"))
	r.Add(1, 3, []byte("ld!"))
	pieces, text, skipped := all(r, 0, 4)
	if text != "llo world!" || skipped != 2 {
		t.Fatalf("got %q with %d skipped, want %q with 2", text, skipped, "llo world!")
	}
	last := pieces[len(pieces)-1]
	if last.FD != 1 || last.Rank != 3 {
		t.Errorf("the last piece is %+v", last)
	}
	if r.First() != 2 || r.End() != 12 {
		t.Errorf("positions %d to %d, want 2 to 12", r.First(), r.End())
	}
}

// TestRingAgainstSlice compares with the plain way, and with what was evicted.
func TestRingAgainstSlice(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, limit := range []int{0, 1, 2, 7, 64, 5000} {
		r := NewRing(limit)
		var whole, gone []byte
		r.Evicted = func(_, _ int, b []byte) { gone = append(gone, b...) }
		for i := range 500 {
			data := make([]byte, rnd.IntN(limit/2+40))
			for j := range data {
				data[j] = byte(i + j)
			}
			whole = append(whole, data...)
			r.Add(1+rnd.IntN(2), rnd.IntN(3), data)
			_, text, _ := all(r, 0, 1+rnd.IntN(50))
			if int64(len(whole)) != r.End() || text != string(whole[r.First():]) {
				t.Fatalf("limit %d: %d bytes from %d, want the end of %d", limit, len(text), r.First(), len(whole))
			}
			if len(text) > limit || r.segs > limit/segmentCost+segmentsMin {
				t.Fatalf("limit %d: %d bytes, %d segments", limit, len(text), r.segs)
			}
			if limit > 0 && !bytes.Equal(gone, whole[:r.First()]) {
				t.Fatalf("limit %d: %d bytes were told evicted, want %d", limit, len(gone), r.First())
			}
		}
	}
}

func TestRingBoundsSegments(t *testing.T) {
	r := NewRing(1 << 10)
	for i := range 10_000 {
		r.Add(1, i, []byte{'x'})
	}
	if n := r.segs; n > 1<<10/segmentCost+segmentsMin {
		t.Errorf("%d segments", n)
	}
	if _, text, _ := all(r, 0, 10); text == "" {
		t.Error("nothing is kept")
	}
}

func TestModes(t *testing.T) {
	for _, c := range []struct{ name, out, set, undo string }{
		{"nothing", "hello\r\n\x1b[31mred\x1b[m", "", ""},
		{"vi", "\x1b[?1049h\x1b[?1h\x1b=\x1b[?2004h", "\x1b[?1049h\x1b[?1h\x1b[?2004h\x1b=", "\x1b[?1049l\x1b[?1l\x1b[?2004l\x1b>"},
		{"vi left", "\x1b[?1049h\x1b[?1h\x1b=\x1b[?1l\x1b>\x1b[?1049l", "", ""},
		{"cursor hidden", "\x1b[?25l", "\x1b[?25l", "\x1b[?25h"},
		{"several at once", "\x1b[?1000;1006;77h", "\x1b[?1000h\x1b[?1006h", "\x1b[?1000l\x1b[?1006l"},
		{"reset", "\x1b[?1049h\x1b(0\x1bc", "", ""},
		{"soft reset", "\x1b[?25l\x1b(0\x1b[!p", "", ""},
		{"drawing", "\x1b(0", "\x1b(0", "\x1b(B"},
		{"region", "\x1b[2;5r", "", "\x1b7\x1b[r\x1b8"},
		{"shape", "\x1b[4 q", "", "\x1b[0 q"},
		{"keys", "\x1b[>4;2m", "\x1b[>4;2m", "\x1b[>4m"},
		{"in a title", "\x1b]0;\x1b\\\x1b[?25l", "\x1b[?25l", "\x1b[?25h"},
		{"a title without an end", "\x1b]0;abc", "", "\x1b\\"},
		{"too long", "\x1b[?" + strings.Repeat("1;", 60) + "25l", "", ""},
		{"cancelled", "\x1b[?25\x18l", "", ""},
	} {
		var m Modes
		for i := range c.out {
			m.Feed([]byte{c.out[i]}) // cut everywhere
		}
		if m.Set() != c.set || m.Undo() != c.undo {
			t.Errorf("%s: set %q, undo %q, want %q, %q", c.name, m.Set(), m.Undo(), c.set, c.undo)
		}
	}
}

func TestModesBetween(t *testing.T) {
	for text, want := range map[string]bool{
		"": true, "a": true, "\xe2\x82": false, "\xe2\x82\xac": true, "\x1b": false, "\x1b[3": false, "\x1b[3m": true, "\xe2a": true,
	} {
		var m Modes
		m.Feed([]byte(text))
		if m.Between() != want {
			t.Errorf("%q: between is %t", text, !want)
		}
	}
}

func TestFrames(t *testing.T) {
	for _, f := range []Frame{
		{Kind: KindOutput, Piece: Piece{FD: 2, Rank: 65532, Data: []byte("x\x00")}},
		{Kind: KindInput, Piece: Piece{Data: []byte("\x03")}},
		{Kind: KindGap, N: 1 << 40}, {Kind: KindEnd},
		{Kind: KindSize, Rows: 65535, Cols: 0, Redraw: true},
	} {
		got, err := Parse(f.Append(nil))
		if err != nil || got.Kind != f.Kind || got.N != f.N || got.Rows != f.Rows || got.Cols != f.Cols || got.Redraw != f.Redraw ||
			got.FD != f.FD || got.Rank != f.Rank || !bytes.Equal(got.Data, f.Data) {
			t.Errorf("%+v became %+v, %v", f, got, err)
		}
	}
}

// FuzzModes: whatever is written to a terminal, what undoes it leaves nothing to undo.
func FuzzModes(f *testing.F) {
	f.Add([]byte("\x1b[?1049h\x1b[?25l\x1b(0\x1b[2;5r\x1b]0;t"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m Modes
		m.Feed(b)
		again := &Modes{}
		again.Feed([]byte(m.Set()))
		if !again.Between() {
			t.Errorf("%q is no whole sequence", m.Set())
		}
		m.state, m.more = ground, 0
		m.Feed([]byte(m.Undo()))
		if m.Undo() != "" {
			t.Errorf("%q is left of %q", m.Undo(), b)
		}
	})
}

// FuzzParse: a frame that is taken is written again as it was.
func FuzzParse(f *testing.F) {
	f.Add([]byte("o\x01\x00\x00\x00\x00abc"))
	f.Add([]byte("w\x18\x00\x50\x00\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, err := Parse(b)
		if err != nil {
			return
		}
		if out := fr.Append(nil); fr.Kind != KindSize && fr.Kind != KindEnd && !bytes.Equal(out, b) {
			t.Errorf("%q became %q", b, out)
		}
	})
}

func TestKept(t *testing.T) {
	r := NewRing(100)
	var m Modes
	r.Evicted = func(_, _ int, b []byte) { m.Feed(b) }
	r.Add(1, 0, []byte("\x1b[?25l"))
	for i := range 50 {
		r.Add(1+i%2, i, []byte("line\n"))
	}
	var b bytes.Buffer
	if err := WriteKept(&b, r, &m); err != nil {
		t.Fatal(err)
	}
	whole := b.Bytes()
	var text string
	h, err := ReadKept(&b, func(p Piece) error { text += string(p.Data); return nil })
	if err != nil || !h.Terminal || h.Bytes != 256 || h.Skipped != r.First() {
		t.Errorf("head %+v, %v", h, err)
	}
	_, want, _ := all(r, 0, 7)
	if text != "\x1b[?25l"+want {
		t.Errorf("kept %q, want %q behind what hides the cursor", text, want)
	}
	for cut := range whole {
		if _, err := ReadKept(bytes.NewReader(whole[:cut]), func(Piece) error { return nil }); err == nil && cut < bytes.IndexByte(whole, '\n') {
			t.Errorf("%d of %d bytes were taken for whole", cut, len(whole))
		}
	}
}

// FuzzKept: a file that was damaged is an error, and no more.
func FuzzKept(f *testing.F) {
	r := NewRing(100)
	r.Add(1, 0, []byte("abc"))
	var b bytes.Buffer
	if err := WriteKept(&b, r, nil); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		_, err := ReadKept(bytes.NewReader(b), func(p Piece) error { n += len(p.Data); return nil })
		if err == nil && n > len(b) {
			t.Errorf("%d bytes of %d", n, len(b))
		}
	})
}

func TestQuiet(t *testing.T) {
	for in, want := range map[string]string{
		"plain\r\n\x1b[31mred\x1b[m":                     "plain\r\n\x1b[31mred\x1b[m",
		"a\x1b[6nb\x1b[cc\x1b[>cd\x1b[?6n":               "abcd",
		"a\x1b[?2004hb\x1b[?2004$pc":                     "a\x1b[?2004hbc",
		"a\x1b[21tb\x1b[22;0;0tc":                        "ab\x1b[22;0;0tc",
		"a\x1b]11;?\x07b\x1b]0;title\x07c":               "ab\x1b]0;title\x07c",
		"a\x1bP+q544e\x1b\\b\x1bP0;1q#0~\x1b\\":          "ab\x1bP0;1q#0~\x1b\\",
		"a\x05b\x1bZc":                                   "abc",
		"\x1b[>4;2m\x1b[?4m":                             "\x1b[>4;2m",
		"\x1b[3\x1b[6nb":                                 "b",
		"\x1b[6\x1b[6nn":                                 "n",
		"a\x1b]0;x\x1b[6nb":                              "ab",
		"a\x1b(\x1b[6nb\x1b(0":                           "ab\x1b(0",
		"a\x1b\n[6nb":                                    "ab",
		"a\x1b[6\x7fnb":                                  "ab",
		"a\x1b[1\n4tb":                                   "ab",
		"a\x1b[3\x05;1Hb":                                "a\x1b[3;1Hb",
		"a\u009b6n\u00a0b\u00e9":                         "a6n\u00a0b\u00e9",
		"\x1b]0;x\u009c\u009b6n\x07":                     "\x1b]0;x6n\x07",
		"a\x1b[?1;1;0Sb\x1b[2Sc":                         "ab\x1b[2Sc",
		"a\x1b[1$ub\x1b[1$wc\x1b[&ud\x1b[u":              "abcd\x1b[u",
		"a\x1b[1;1;1;1;9;9*yb":                           "ab",
		"a\x1b]52;c;Zm9v\x07b\x1b_Ga=q\x1b\\":            "ab",
		"\x1b[" + strings.Repeat("0", 2*heldMax) + "6na": "a",
		"\xe2\x82\xac":                                   "\xe2\x82\xac",
	} {
		for _, size := range []int{len(in), 1} {
			var q Quiet
			var out []byte
			for at := 0; at < len(in); at += size {
				out = q.Append(out, []byte(in[at:at+size]))
			}
			if out = append(out, q.Rest()...); string(out) != want {
				t.Errorf("%q by %d became %q, want %q", in, size, out, want)
			}
		}
	}
	var q Quiet
	long := "\x1b]0;" + strings.Repeat("x", 3*heldMax) + "\x07end"
	if out := q.Append(nil, []byte(long)); string(out) != "end" {
		t.Errorf("%d of %d bytes of a long title", len(out), len(long))
	}
}

// FuzzQuiet: what is left has no question, and nothing is made up.
func FuzzQuiet(f *testing.F) {
	f.Add([]byte("a\x1b[6n\x1b[?25h\x1b]11;?\x1b\\"))
	f.Add([]byte("\xc2\x05\x92\xc2\xc2\x9b\x9b"))
	f.Add([]byte("\x1b(\x1b[\xc2\x9b\x1b]0;\x1b\x05\x1b\x18"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var q, again Quiet
		out := append(q.Append(nil, b), q.Rest()...)
		if len(out) > len(b) {
			t.Errorf("%q became %q", b, out)
		}
		if once := append(again.Append(nil, out), again.Rest()...); !bytes.Equal(once, out) {
			t.Errorf("%q became %q, then %q", b, out, once)
		}
	})
}

// Two ranks that write single bytes in turn fill a ring with segments: what comes next
// must not move all of them for each one that goes (that would take seconds).
func TestRingOfManySegments(t *testing.T) {
	const limit = 4 << 20
	r := NewRing(limit)
	for i := range limit / segmentCost * 2 {
		r.Add(1, i%2, []byte{'x'})
	}
	r.Add(1, 2, make([]byte, limit))
	if r.segs != limit/blockSize+1 && r.segs != limit/blockSize || r.End()-r.First() != limit {
		t.Errorf("%d segments, %d bytes", r.segs, r.End()-r.First())
	}
}

// However large a ring grows, what is in it stays where it is, and a stream that goes
// on is read in one piece.
func TestRingMovesNothing(t *testing.T) {
	r := NewRing(64 << 20)
	data := bytes.Repeat([]byte("0123456789abcdef"), 4<<10)
	r.Add(1, 0, data[:blockSize])
	first := &r.blocks[0].data[0]
	for range 16 {
		r.Add(1, 0, data)
	}
	if &r.blocks[0].data[0] != first || r.First() != 0 {
		t.Error("the first block was moved, or forgotten")
	}
	buf := make([]byte, 3*blockSize)
	if p, next, _ := r.Read(5, buf); len(p.Data) != len(buf) || next != 5+int64(len(buf)) || !bytes.Equal(p.Data[:100], data[5:105]) {
		t.Errorf("%d bytes of one stream came at once, want %d", len(p.Data), len(buf))
	}
}
