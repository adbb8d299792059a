package stepio

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// linesTo makes lines on a file, and what will be in it.
func linesTo(t testing.TB, opt Options, ntasks int) (*lines, func() string) {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "out")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return newLines(f, ntasks, &opt, func(err error) { t.Error(err) }), func() string {
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
}

type said struct {
	rank int
	data string
}

// A line that is not ended does not hold up other ranks for ever; what comes between is
// kept apart.
func TestPiecesOfLines(t *testing.T) {
	long := strings.Repeat("x", pieceMax-1)
	for _, tc := range []struct {
		name string
		opt  Options
		says []said
		want string
	}{
		{"a long line alone", Options{Label: true}, []said{{0, long}, {0, "yy"}, {0, "z\nlast\n"}}, "0: " + long + "yyz\n0: last\n"},
		{
			"a line of another rank within a long one", Options{Label: true},
			[]said{{0, long + "y"}, {1, "short\n"}, {0, "z\n"}},
			"0: " + long + "y\n1: short\n0: z\n",
		},
		{"a long line that has no end", Options{Label: true}, []said{{0, long + "y"}, {1, "short\n"}}, "0: " + long + "y\n1: short\n"},
		{"plain, nothing is put between", Options{}, []said{{0, long + "y"}, {1, "short\n"}, {0, "z\n"}}, long + "yshort\nz\n"},
		{"a character cut in two", Options{Label: true}, []said{{0, long + "\xc3"}, {1, "short\n"}, {0, "\xa9\n"}}, "0: " + long + "\n1: short\n0: \xc3\xa9\n"},
		{"bytes that are no text", Options{Label: true}, []said{{0, long + "\xff\xfe\x80\x80\x80\x80"}, {1, "\n"}}, "0: " + long + "\xff\xfe\x80\x80\x80\x80\n1: \n"},
		{"unbuffered", Options{Label: true, Unbuffered: true}, []said{{0, "Name: "}, {0, "you\nBye"}, {1, "x"}, {0, ".\n"}}, "0: Name: you\n0: Bye\n1: x\n0: .\n"},
		{"unbuffered, a character cut in two", Options{Label: true, Unbuffered: true}, []said{{0, "\xe2"}, {1, "a\n"}, {0, "\x82"}, {0, "\xac\n"}}, "1: a\n0: \xe2\x82\xac\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, got := linesTo(t, tc.opt, 2)
			feeds := []*lineFeed{l.feed(0), l.feed(1)}
			for _, s := range tc.says {
				l.take(feeds[s.rank], []byte(s.data), byLines)
			}
			for _, f := range feeds {
				if err := l.end(f); err != nil {
					t.Fatal(err)
				}
			}
			if got() != tc.want {
				t.Errorf("got %.200q, want %.200q", got(), tc.want)
			}
		})
	}
}

// Whatever ranks write, in whatever pieces: each rank's bytes come out, in order, and
// each line has its label.
func FuzzLines(f *testing.F) {
	f.Add(uint64(1), []byte("a\nbb\n\nccc"), true)
	f.Add(uint64(2), []byte("\xc3\xa9\n\xff"), false)
	out, err := os.CreateTemp(f.TempDir(), "out") // one for all: an execution is to be cheap
	if err != nil {
		f.Fatal(err)
	}
	defer out.Close()
	f.Fuzz(func(t *testing.T, seed uint64, data []byte, unbuffered bool) {
		r := rand.New(rand.NewPCG(seed, 0))
		if err := errors.Join(out.Truncate(0), seekStart(out)); err != nil {
			t.Fatal(err)
		}
		l := newLines(out, 3, &Options{Label: true, Unbuffered: unbuffered}, func(err error) { t.Error(err) })
		feeds, said := make([]*lineFeed, 3), make([]strings.Builder, 3)
		for rank := range feeds {
			feeds[rank] = l.feed(rank)
		}
		for rest := data; len(rest) > 0; {
			n, rank := 1+r.IntN(len(rest)), r.IntN(3)
			said[rank].Write(rest[:n])
			l.take(feeds[rank], rest[:n], byLines)
			rest = rest[n:]
		}
		heard := make([]strings.Builder, 3)
		for _, feed := range feeds {
			if err := l.end(feed); err != nil {
				t.Fatal(err)
			}
		}
		b, err := io.ReadAll(io.NewSectionReader(out, 0, 1<<30))
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		if text == "" {
			return
		}
		for _, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
			if len(line) < 3 || line[0] < '0' || line[0] > '2' || line[1:3] != ": " {
				t.Fatalf("line %q has no label", line)
			}
			heard[line[0]-'0'].WriteString(line[3:])
		}
		for rank := range heard {
			if want := strings.ReplaceAll(said[rank].String(), "\n", ""); heard[rank].String() != want {
				t.Fatalf("rank %d: %q, want %q", rank, heard[rank].String(), want)
			}
		}
		if utf8.Valid(data) && !utf8.ValidString(text) {
			cut := false // between two ranks, by ourselves
			for rank := range said {
				cut = cut || !utf8.ValidString(said[rank].String())
			}
			if !cut {
				t.Fatalf("characters were cut: %q", text)
			}
		}
	})
}

func seekStart(f *os.File) error {
	_, err := f.Seek(0, io.SeekStart)
	return err
}

// What a file does not take is reported once, with its name, and the tasks' pipes close.
func TestFullDisk(t *testing.T) {
	for _, label := range []bool{false, true} {
		t.Run(fmt.Sprintf("label %v", label), func(t *testing.T) {
			full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer full.Close()
			told := make(chan error, 4)
			s, err := Open(client(2), Options{Stdout: full, Label: label, Unbuffered: !label, Failed: func(err error) { told <- err }})
			if err != nil {
				t.Fatal(err)
			}
			k := attach(t, s)
			ranks := []int{0, 1}
			if !label {
				ranks = []int{-1}
			}
			for _, rank := range ranks {
				f := k.file(1, rank)
				_, err := io.WriteString(f, "line\n")
				for n := 0; err == nil && n < 1<<20; n += 4096 {
					_, err = f.Write(make([]byte, 4096))
				}
				if !errors.Is(err, unix.EPIPE) {
					t.Errorf("rank %d: %v, want EPIPE", rank, err)
				}
				f.Close()
			}
			s.relays.Wait()
			if err := <-told; !errors.Is(err, unix.ENOSPC) || err.Error() != `cannot write stdout "/dev/full": no space left on device` {
				t.Errorf("told: %v", err)
			}
			if len(told) > 0 {
				t.Errorf("told again: %v", <-told)
			}
		})
	}
}

// BenchmarkLabel is what a label costs beside the copy of its line.
func BenchmarkLabel(b *testing.B) {
	for _, width := range []int{2, 16, 80, 4096} {
		b.Run(fmt.Sprint(width), func(b *testing.B) {
			null, err := os.OpenFile("/dev/null", os.O_WRONLY, 0)
			if err != nil {
				b.Fatal(err)
			}
			defer null.Close()
			l := newLines(null, 64, &Options{Label: true}, func(err error) { b.Error(err) })
			f := l.feed(7)
			data := []byte(strings.Repeat(strings.Repeat("x", width-1)+"\n", 64<<10/width))
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				l.take(f, data, byLines)
			}
		})
	}
}
