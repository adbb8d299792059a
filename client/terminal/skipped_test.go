package terminal

import (
	"bytes"
	"io"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// Many gaps are reported once a second, and all of them.
func TestGaps(t *testing.T) {
	old := os.Stderr
	defer func() { os.Stderr = old }()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	os.Stderr = w
	synctest.Test(t, func(*testing.T) {
		var g Skipped
		for range 3000 { // three seconds
			g.Add(10)
			time.Sleep(time.Millisecond)
		}
		synctest.Wait()
		time.Sleep(10 * gapsEvery)
		g.Add(7)
		g.Add(1)
		g.End()
	})
	w.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	const want = "stepctl: 10 bytes of output were skipped here\n"
	if lines := bytes.Count(b, []byte("\n")); lines != 6 && lines != 7 || !bytes.HasPrefix(b, []byte(want)) ||
		!bytes.HasSuffix(b, []byte("stepctl: 7 bytes of output were skipped here\nstepctl: 1 bytes of output were skipped here\n")) {
		t.Errorf("%d lines: %s", lines, b)
	}
}
