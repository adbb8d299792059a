package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pierrec/lz4/v4"
	"golang.org/x/sys/unix"

	"stepd/api/stepapi"
	"stepd/step"
)

// sink takes what is sent, and does something at each piece.
type sink struct {
	got    bytes.Buffer
	lz4    int // pieces that were compressed
	pieces int
	each   func()
}

func (s *sink) Send(m *stepapi.Msg, _ ...int) error {
	p := m.Piece()
	if s.pieces++; p.LZ4 {
		s.lz4++
		room := make([]byte, step.SentChunk)
		n, err := lz4.UncompressBlock(p.Data, room)
		if err != nil {
			return err
		}
		p.Data = room[:n]
	}
	s.got.Write(p.Data)
	if s.each != nil {
		s.each()
	}
	return nil
}

// program is a file that can be sent: half text, half noise.
func program(t *testing.T) (path string, content []byte) {
	t.Helper()
	content = []byte(strings.Repeat("what a program says is mostly the same; ", 2*step.SentChunk/40))
	state := uint32(1)
	for range 2*step.SentChunk + 5 {
		state ^= state << 13
		state ^= state >> 17
		state ^= state << 5
		content = append(content, byte(state))
	}
	path = filepath.Join(t.TempDir(), "prog")
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
	return path, content
}

func described(t *testing.T, compress, path string) *bcastOptions {
	t.Helper()
	o := &bcastOptions{dest: "sent", compress: compress}
	o.setCompress()
	r := &step.Request{}
	if err := o.describe(r, []string{path}); err != nil {
		t.Fatal(err)
	}
	if len(r.Sent) != 1 || r.Sent[0].Path != "sent" || r.Sent[0].Mode != 0o755 || len(r.Sent[0].SHA256) != 64 {
		t.Fatalf("described as %+v", r.Sent)
	}
	return o
}

func TestSendFile(t *testing.T) {
	path, content := program(t)
	for compress, want := range map[string]bool{"none": false, "lz4": true, "LZ4": true, "": false} {
		o := described(t, compress, path)
		if words := o.moved.words("reading", ""); words != "" {
			t.Errorf("all is read: %q", words)
		}
		to := &sink{}
		if err := o.send(to); err != nil || !bytes.Equal(to.got.Bytes(), content) {
			t.Errorf("--compress=%s: %d of %d bytes, %v", compress, to.got.Len(), len(content), err)
		}
		// Noise is sent as it is.
		if (to.lz4 > 0) != want || to.lz4 == to.pieces {
			t.Errorf("--compress=%s: %d of %d pieces were compressed", compress, to.lz4, to.pieces)
		}
	}
}

// A file that changes while it is sent is told of by its name, with what has changed.
func TestSendChangedFile(t *testing.T) {
	for name, c := range map[string]struct {
		change func(path string, content []byte) error
		want   string
	}{
		"longer": {func(path string, content []byte) error {
			return os.WriteFile(path, append(content, 'x'), 0o755)
		}, "bytes, and has"},
		"shorter": {func(path string, _ []byte) error { return os.Truncate(path, 1) }, "are gone"},
		"written to": {func(path string, content []byte) error {
			return os.WriteFile(path, bytes.Repeat([]byte{1}, len(content)), 0o755)
		}, "it was written to"},
	} {
		path, content := program(t)
		o := described(t, "none", path)
		to := &sink{each: func() {
			if err := c.change(path, content); err != nil {
				t.Fatal(err)
			}
		}}
		if err := o.send(to); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	path, content := program(t)
	o := described(t, "none", path)
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
	to := &sink{}
	if err := o.send(to); err == nil || !strings.Contains(err.Error(), "another file") || to.pieces > 0 {
		t.Errorf("another file: %v", err)
	}
}

// pseudoTerminal is a terminal and its other side.
func pseudoTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetUint32(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

// A broadcast that takes longer than a second is told of on a terminal, and taken away
// at its end.
func TestSendProgress(t *testing.T) {
	t.Setenv("TERM", "xterm")
	master, slave := pseudoTerminal(t)
	oldErr, oldTo := os.Stderr, waiting.to
	defer func() { os.Stderr, waiting.to = oldErr, oldTo }()
	os.Stderr, waiting.to = slave, slave

	path, content := program(t)
	opt := &runOptions{}
	opt.bcast = bcastOptions{dest: "sent"}
	if err := opt.bcast.describe(&step.Request{}, []string{path}); err != nil {
		t.Fatal(err)
	}
	l := &launch{opt: opt, id: step.ID{Job: 12}, nnodes: 3}
	goOn, half := make(chan struct{}), make(chan struct{})
	to := &sink{}
	to.each = func() {
		if to.pieces == 3 {
			close(half)
			<-goOn
		}
	}
	sent := make(chan error, 1)
	go func() { sent <- opt.bcast.send(to) }()
	<-half
	begun := l.slowLaunch()
	text := readUntil(t, master, ", 1s")
	begun()
	close(goOn)
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`stepctl: step 12.0: sending "prog" to 3 nodes: `, "% of 1"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %q", want, text)
		}
	}
	readUntil(t, master, "\x1b[K")
	if words := opt.bcast.moved.words("sending", ""); words != "" || to.got.Len() != len(content) {
		t.Errorf("all %d bytes are sent: %q", to.got.Len(), words)
	}
}

func readUntil(t *testing.T, f *os.File, want string) (text string) {
	t.Helper()
	buf := make([]byte, 4096)
	for !strings.Contains(text, want) {
		n, err := f.Read(buf)
		if err != nil {
			t.Fatalf("%v, after %q", err, text)
		}
		text += string(buf[:n])
	}
	return text
}
