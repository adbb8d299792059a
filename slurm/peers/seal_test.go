package peers

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

// tape is a wire that keeps what is written, for another to read.
type tape struct{ bytes.Buffer }

func (*tape) Close() error      { return nil }
func (*tape) CloseWrite() error { return nil }

func key(b byte) []byte { return bytes.Repeat([]byte{b}, 32) }

// records are texts, each sealed as it goes over the wire.
func records(t testing.TB, texts ...string) (sealed [][]byte) {
	w := new(tape)
	s := seal(w, key(1), key(2))
	for _, text := range texts {
		if err := s.writeRecord([]byte(text)); err != nil {
			t.Fatal(err)
		}
		sealed = append(sealed, bytes.Clone(w.Bytes()))
		w.Reset()
	}
	return sealed
}

// What comes is what was sent, or an error: never another text.
func TestRecords(t *testing.T) {
	r := records(t, "one", "two", "three")
	other := seal(new(tape), key(3), key(1))
	if err := other.writeRecord([]byte("one")); err != nil {
		t.Fatal(err)
	}
	foreign := other.wire.(*tape).Bytes()
	flip := func(b []byte, at int) []byte {
		b = bytes.Clone(b)
		b[at] ^= 1
		return b
	}
	for name, c := range map[string]struct {
		wire [][]byte
		want string
		err  error
	}{
		"all":             {r, "onetwothree", nil},
		"replayed":        {[][]byte{r[0], r[0]}, "one", errForged},
		"left out":        {[][]byte{r[0], r[2]}, "one", errForged},
		"out of order":    {[][]byte{r[1], r[0]}, "", errForged},
		"changed":         {[][]byte{r[0], flip(r[1], recordHead)}, "one", errForged},
		"another tag":     {[][]byte{flip(r[0], len(r[0])-1)}, "", errForged},
		"another length":  {[][]byte{flip(r[0], 3), r[1]}, "", errForged},
		"of another link": {[][]byte{foreign}, "", errForged},
		"sent back":       {[][]byte{sentBack(t)}, "", errForged},
		"cut":             {[][]byte{r[0], r[1][:len(r[1])-1]}, "one", io.ErrUnexpectedEOF},
		"cut in its head": {[][]byte{r[0], r[1][:2]}, "one", io.ErrUnexpectedEOF},
		"too long":        {[][]byte{{0, 1, 0, 1}}, "", errForged},
	} {
		t.Run(name, func(t *testing.T) {
			w := new(tape)
			for _, b := range c.wire {
				w.Write(b)
			}
			got, err := io.ReadAll(seal(w, key(2), key(1)))
			if string(got) != c.want || !errors.Is(err, c.err) {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// sentBack is a record of the one that reads.
func sentBack(t *testing.T) []byte {
	w := new(tape)
	if err := seal(w, key(2), key(1)).writeRecord([]byte("one")); err != nil {
		t.Fatal(err)
	}
	return w.Bytes()
}

// FuzzRecords: whatever comes, nothing is read that was not sent.
func FuzzRecords(f *testing.F) {
	r := records(f, "one", "two")
	f.Add(bytes.Join(r, nil))
	f.Add(r[1])
	f.Add([]byte{0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		w := new(tape)
		w.Write(raw)
		got, _ := io.ReadAll(seal(w, key(2), key(1)))
		if s := string(got); s != "" && s != "one" && s != "onetwo" {
			t.Errorf("got %q", got)
		}
	})
}
