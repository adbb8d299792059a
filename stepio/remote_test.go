package stepio

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"stepd/step"
)

// The pieces of several ranks come in any order and cut anywhere; whole lines come
// out, or pieces as they came.
func TestRemote(t *testing.T) {
	type piece struct {
		fd, rank int
		data     string
		end      bool
	}
	long := strings.Repeat("x", pieceMax)
	for _, tc := range []struct {
		name     string
		opt      Options
		ntasks   int
		rank     *int
		pieces   []piece
		out, err string
	}{
		{
			name: "lines", ntasks: 2,
			pieces: []piece{{1, 0, "a", false}, {1, 1, "b1\nb2\nb", false}, {2, 0, "e", false}, {1, 0, "a\n", false}, {1, 1, "3", true}, {1, 0, "", true}, {2, 0, "\n", true}},
			out:    "b1\nb2\naa\nb3", err: "e\n",
		},
		{
			name: "labels", ntasks: 11, opt: Options{Label: true},
			pieces: []piece{{1, 0, "a\n\nb", false}, {1, 10, "c\nd", false}, {1, 0, "", true}, {1, 10, "\n", true}},
			out:    " 0: a\n 0: \n10: c\n 0: b\n10: d\n",
		},
		{
			name: "a long line, labelled once", ntasks: 2, opt: Options{Label: true},
			pieces: []piece{{1, 1, long, false}, {1, 1, "y\nz\n", false}, {1, 1, "", true}},
			out:    "1: " + long + "y\n1: z\n",
		},
		{
			name: "unbuffered", ntasks: 2, opt: Options{Unbuffered: true},
			pieces: []piece{{1, 0, "a", false}, {1, 1, "b", false}, {1, 0, "c", true}},
			out:    "abc",
		},
		{
			name: "one rank", ntasks: 3, rank: new(int),
			pieces: []piece{{1, 0, "a", false}, {1, 0, "b", false}},
			out:    "ab",
		},
		{
			name: "a node that was lost", ntasks: 2,
			pieces: []piece{{1, 0, "half of a line", false}},
			out:    "half of a line",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			files := make([]*os.File, 3)
			for fd := 1; fd <= 2; fd++ {
				f, err := os.Create(filepath.Join(t.TempDir(), fmt.Sprint(fd)))
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				files[fd] = f
			}
			tc.opt.Stdout, tc.opt.Stderr = files[1], files[2]
			client := step.Stream{Kind: step.StreamClient, Rank: tc.rank}
			r := NewRemote(&step.Spec{Request: step.Request{NTasks: tc.ntasks, Stdout: client, Stderr: client}}, tc.opt)
			for _, p := range tc.pieces {
				r.Output(p.fd, p.rank, []byte(p.data), p.end)
			}
			r.End()
			for fd, want := range []string{1: tc.out, 2: tc.err} {
				if fd == 0 {
					continue
				}
				if got, _ := os.ReadFile(files[fd].Name()); string(got) != want {
					t.Errorf("stream %d is %.200q, want %.200q", fd, got, want)
				}
			}
		})
	}
}
