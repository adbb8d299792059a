package terminal

import (
	"bytes"
	"io"
	"os"
	"testing"
)

// TestWaitingLine: what others write stands on a line of its own, and no text is written over a
// line that they have not ended.
func TestWaitingLine(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := &WaitingLine{to: w}
	write := func(text string) {
		p.Others([]byte(text))
		io.WriteString(w, text)
	}
	p.set("wait 1")
	write("a line\n")
	p.set("wait 2")
	write("a prompt: ")
	p.set("wait 3")
	if text := p.Text(); text != "" {
		t.Errorf("%q is shown after a prompt", text)
	}
	write("its end\n")
	p.set("wait 4")
	if text := p.Text(); text != "wait 4" {
		t.Errorf("%q is shown, not wait 4", text)
	}
	p.Clear()
	w.Close()
	got, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	const clear = "\x1b[K"
	want := "\r" + clear + "wait 1\r" + clear + "a line\n" + "\r" + clear + "wait 2\r" + clear + "a prompt: its end\n" + "\r" + clear + "wait 4\r" + clear
	if !bytes.Equal(got, []byte(want)) {
		t.Errorf("the terminal gets %q, want %q", got, want)
	}
}
