package munge

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"stepd/internal/testkit"
)

// serve answers the requests of one connection after the other, each by a function of its
// bytes; nil closes the connection.
func serve(t *testing.T, answers ...func(request []byte) []byte) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, answer := range answers {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			head := make([]byte, headerSize)
			io.ReadFull(conn, head)
			body := make([]byte, binary.BigEndian.Uint32(head[7:]))
			io.ReadFull(conn, body)
			conn.Write(answer(append(head, body...)))
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return socket
}

// reply is a reply of the kind, with munged's verdict and what follows it.
func reply(kind, code uint8, text string, rest ...[]byte) []byte {
	body := append([]byte{code, uint8(len(text))}, text...)
	for _, b := range rest {
		body = append(body, b...)
	}
	b := header(kind, 0, body)
	return b
}

func sized(b string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
}

// decoded is munged's reply to a token of uid 1000, gid 1001.
func decoded() []byte {
	body := []byte{4, 5, 0, 0}                                     // cipher, MAC, compression, realm
	body = append(body, 0, 0, 1, 44, 4, 127, 0, 0, 1)              // time to live, address
	body = append(body, 0, 0, 0, 10, 0, 0, 0, 11)                  // made, now
	body = append(body, 0, 0, 3, 232, 0, 0, 3, 233)                // uid, gid
	body = append(body, 255, 255, 255, 255, 255, 255, 255, 255)    // who may read it
	return reply(decodeReply, 0, "Success\x00", body, sized("it")) // payload
}

func TestEncode(t *testing.T) {
	var request []byte
	c := Client{serve(t, func(b []byte) []byte { request = b; return reply(encodeReply, 0, "", sized("MUNGE:x:")) })}
	token, err := c.Encode(t.Context(), 1000, []byte("it"))
	if err != nil || token != "MUNGE:x:" {
		t.Fatal(token, err)
	}
	want := "\x00\x60\x6d\x4b\x04\x02\x00\x00\x00\x00\x16" + "\x01\x01\x01\x00" +
		"\x00\x00\x00\x00" + "\x00\x00\x03\xe8" + "\xff\xff\xff\xff" + "\x00\x00\x00\x02it"
	if string(request) != want {
		t.Errorf("asked %x, want %x", request, want)
	}
}

func TestDecode(t *testing.T) {
	c := Client{serve(t, func([]byte) []byte { return decoded() })}
	cred, err := c.Decode(t.Context(), "MUNGE:x:")
	if err != nil || cred.UID != 1000 || cred.GID != 1001 || string(cred.Payload) != "it" || cred.Made.Unix() != 10 {
		t.Fatalf("%+v, %v", cred, err)
	}
}

func TestRefused(t *testing.T) {
	c := Client{serve(t, func([]byte) []byte { return reply(decodeReply, 15, "Expired credential\x00") })}
	_, err := c.Decode(t.Context(), "MUNGE:x:")
	if want := `munged at "` + c.Socket + `": "Expired credential" (error 15)`; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// TestRestarted holds that a munged that goes away while it is asked is asked again, and learns
// that the token may be one that it has seen.
func TestRestarted(t *testing.T) {
	var again []byte
	c := Client{serve(t,
		func(b []byte) []byte { again = append(again, b[6]); return nil },
		func(b []byte) []byte { again = append(again, b[6]); return decoded()[:20] },
		func(b []byte) []byte { again = append(again, b[6]); return decoded() },
	)}
	if _, err := c.Decode(t.Context(), "MUNGE:x:"); err != nil || !bytes.Equal(again, []byte{0, 1, 1}) {
		t.Error(err, again)
	}
}

// TestComesBack holds that the first request which reaches munged is no repeated one, also where
// munged has not listened for a while.
func TestComesBack(t *testing.T) {
	again := byte(9)
	here := serve(t, func(b []byte) []byte { again = b[6]; return decoded() })
	there := here + ".late"
	defer time.AfterFunc(3*pause, func() { os.Rename(here, there) }).Stop()
	if _, err := (Client{there}).Decode(t.Context(), "MUNGE:x:"); err != nil || again != 0 {
		t.Error(err, again)
	}
}

func TestDown(t *testing.T) {
	c := Client{filepath.Join(t.TempDir(), "none")}
	ctx, cancel := context.WithTimeout(t.Context(), 3*pause)
	defer cancel()
	_, err := c.Encode(ctx, Anyone, nil)
	if !errors.Is(err, syscall.ENOENT) || !strings.HasSuffix(err.Error(), "start it, or set AuthInfo=socket= in slurm.conf") {
		t.Error(err)
	}
}

func TestOther(t *testing.T) {
	c := Client{serve(t, func([]byte) []byte { return []byte("220 mail.example.org ESMTP") })}
	if _, err := c.Encode(t.Context(), Anyone, nil); !errors.Is(err, errOther) {
		t.Error(err)
	}
}

func TestTooLong(t *testing.T) {
	if _, err := (Client{}).Encode(t.Context(), Anyone, make([]byte, bodyMax)); err == nil || !strings.Contains(err.Error(), "is the limit") {
		t.Error(err)
	}
}

func TestCut(t *testing.T) {
	b := decoded()
	for n := range b {
		if _, err := readReply(bytes.NewReader(b[:n]), decodeReply); err == nil {
			t.Fatalf("of %d of %d bytes: no error", n, len(b))
		}
		if n > headerSize {
			r := &reader{b: b[headerSize:n]}
			if r.failure() == nil {
				if _, err := r.credential(); !errors.Is(err, errShort) {
					t.Fatalf("of %d of %d bytes: %v", n, len(b), err)
				}
			}
		}
	}
}

func FuzzReply(f *testing.F) {
	f.Add(decoded())
	f.Add(reply(encodeReply, 0, "", sized("MUNGE:x:")))
	f.Add(reply(decodeReply, 15, "Expired credential\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := readReply(bytes.NewReader(b), decodeReply)
		if err != nil || r.failure() != nil {
			return
		}
		if cred, err := r.credential(); err == nil && len(cred.Payload) > len(b) {
			t.Fatal(cred)
		}
	})
}

// TestRootMunged asks a munged with a key of its own.
func TestRootMunged(t *testing.T) {
	testkit.RequireRoot(t)
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, bytes.Repeat([]byte("k"), 128), 0o600); err != nil {
		t.Fatal(err)
	}
	c := Client{filepath.Join(dir, "socket")}
	cmd := exec.Command("munged", "--force", "--foreground", "--key-file", key, "--socket", c.Socket,
		"--pid-file", filepath.Join(dir, "pid"), "--log-file", filepath.Join(dir, "log"), "--seed-file", filepath.Join(dir, "seed"))
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: install the package munge", err)
	}
	t.Cleanup(func() { cmd.Process.Signal(syscall.SIGTERM); cmd.Wait() })
	began := time.Now()
	token, err := c.Encode(t.Context(), Anyone, []byte("it")) // it is asked until it listens
	if err != nil {
		t.Fatalf("%v: %s", err, said.String())
	}
	t.Logf("the first token after %v", time.Since(began))
	cred, err := c.Decode(t.Context(), token)
	if err != nil || cred.UID != 0 || string(cred.Payload) != "it" || time.Since(cred.Made) > time.Minute {
		t.Errorf("%+v, %v", cred, err)
	}
	if _, err := c.Decode(t.Context(), token); err == nil || !strings.Contains(err.Error(), "eplayed") {
		t.Errorf("a token that was seen before: %v", err)
	}
	if token, err = c.Encode(t.Context(), 1, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Decode(t.Context(), token); err == nil || !strings.Contains(err.Error(), "nauthorized") {
		t.Errorf("another user's token: %v", err)
	}
	if _, err := c.Decode(t.Context(), "MUNGE:nonsense:"); err == nil {
		t.Error("nonsense is no error")
	}
}
