package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// listen listens at a path beyond sun_path, which a Client must reach all the same.
func listen(t *testing.T) (net.Listener, *Client) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/s", d.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	t.Cleanup(func() { l.Close() })
	return l, &Client{Socket: filepath.Join(dir, "s"), Program: "test 1.0"}
}

// answering is a client of a server that answers each request with the same bytes. The
// requests come by the channel.
func answering(t *testing.T, reply string) (*Client, chan string) {
	t.Helper()
	l, c := listen(t)
	asked := make(chan string, 16)
	go func() { // ends with the listener
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			asked <- readRequest(conn)
			_, _ = io.WriteString(conn, reply) // the client may have gone
			conn.Close()
		}
	}()
	return c, asked
}

// readRequest reads a request by its length.
func readRequest(r io.Reader) string {
	var head strings.Builder
	in, n := bufio.NewReader(r), 0
	for {
		line, err := in.ReadString('\n')
		head.WriteString(line)
		_, _ = fmt.Sscanf(line, "Content-Length: %d", &n)
		if err != nil || line == "\r\n" {
			break
		}
	}
	body := make([]byte, n)
	_, _ = io.ReadFull(in, body)
	return head.String() + string(body)
}

func reply(status int, body string) string {
	return fmt.Sprintf("HTTP/1.0 %d Words\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
}

func TestCall(t *testing.T) {
	c, asked := answering(t, reply(200, `{"schema":1,"job_id":3,"step_id":1,"node":"n1","more":true}`))
	r, err := c.Run(t.Context(), &RunRequest{Request: &step.Request{Argv: []string{"a\xff"}}})
	if err != nil || r.JobID != 3 || r.StepID != 1 || r.Node != "n1" {
		t.Errorf("%+v, %v", r, err)
	}
	got := <-asked
	for _, want := range []string{"POST /v1/run HTTP/1.0\r\n", "Stepd-Api: 1\r\n", "User-Agent: test 1.0\r\n", "\r\n\r\n{\"schema\":1,", `"argv_binary":{"0":"Yf8="}`} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in the request %q", want, got)
		}
	}
}

func TestRefusal(t *testing.T) {
	c, _ := answering(t, reply(429, `{"schema":1,"error":{"code":"resource_exhausted","message":"no room","waits":"CPUs"}}`))
	err := c.Drain(t.Context(), "x")
	e, ok := AsError(err)
	if !ok || e.Code != ResourceExhausted || e.Message != "no room" || e.Waits != "CPUs" {
		t.Errorf("%+v", err)
	}
}

func TestLines(t *testing.T) {
	const head = "HTTP/1.0 200 OK\r\nContent-Type: application/jsonl\r\n\r\n"
	long := strings.Repeat("x", 100_000)
	for name, tc := range map[string]struct {
		body  string
		steps int
		code  Code
		says  string
	}{
		"none":         {`{"schema":1,"end":true}` + "\n", 0, OK, ""},
		"two":          {`{"step":{"job_id":1}}` + "\n" + `{"step":{"job_id":2,"name":"` + long + `"}}` + "\n" + `{"later":1}` + "\n" + `{"schema":1,"end":true}` + "\nrest", 2, OK, ""},
		"cut off":      {`{"step":{"job_id":1}}` + "\n", 0, Unavailable, "ended before the reply"},
		"cut in line":  {`{"step":{"job_id":1}}` + "\n" + `{"step":`, 0, Unavailable, "in the middle of the reply"},
		"an error":     {`{"step":{"job_id":1}}` + "\n" + `{"schema":1,"error":{"code":"not_found","message":"gone"}}` + "\n", 0, NotFound, "gone"},
		"no JSON":      {"<html>\n", 0, Internal, "cannot parse noded's reply"},
		"a wrong type": {`{"step":7}` + "\n", 0, Internal, "cannot unmarshal"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _ := answering(t, head+tc.body)
			recs, err := c.Show(t.Context(), StepRef{JobID: 1})
			if len(recs) != tc.steps || CodeOf(err) != tc.code || !strings.Contains(MessageOf(err), tc.says) {
				t.Errorf("%d records, %v", len(recs), err)
			}
			if tc.code != OK && err == nil {
				t.Error("no error")
			}
		})
	}
}

func TestOutput(t *testing.T) {
	c, _ := answering(t, reply(200, "12345"))
	r, err := c.Output(t.Context(), step.ID{Job: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if b, err := io.ReadAll(r); string(b) != "12345" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	c, _ = answering(t, strings.TrimSuffix(reply(200, "12345"), "5"))
	if r, err = c.Output(t.Context(), step.ID{Job: 1}); err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.ReadAll(r); CodeOf(err) != Unavailable {
		t.Errorf("of a reply that is cut off: %v", err)
	}
}

// TestBadReplies: what is no reply of noded's is named in the error, and bounded.
func TestBadReplies(t *testing.T) {
	for name, tc := range map[string]struct {
		reply string
		code  Code
		says  string
	}{
		"nothing":       {"", Unavailable, "the connection ended before the reply"},
		"gRPC":          {"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00\n", Internal, "older release"},
		"a status":      {"HTTP/1.1 99 x\r\n\r\n", Internal, "no HTTP status"},
		"no words":      {"HTTP/1.1 505\r\nContent-Length: 0\r\n\r\n", Unknown, "HTTP status 505"},
		"no error":      {reply(500, "{}"), Unknown, "HTTP status 500"},
		"no length":     {"HTTP/1.1 200 OK\r\n\r\n{}", Internal, "its length is missing"},
		"two lengths":   {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", Internal, "no length"},
		"a huge length": {"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", Internal, "the limit is"},
		"chunks":        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Internal, "transfer-encoding"},
		"no header":     {"HTTP/1.1 200 OK\r\nhello\r\n\r\n", Internal, "no header"},
		"a long head":   {"HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", headMax) + "\r\n\r\n", Internal, "head is too long"},
		"many headers":  {"HTTP/1.1 200 OK\r\n" + strings.Repeat("A: x\r\n", headMax/4) + "\r\n", Internal, "head is too long"},
		"cut off":       {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", Unavailable, "the connection ended"},
		"no document":   {reply(200, "hello"), Internal, "cannot parse"},
	} {
		c, _ := answering(t, tc.reply)
		if _, err := c.Config(t.Context()); CodeOf(err) != tc.code || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v (%s), want %q", name, err, CodeOf(err), tc.says)
		}
	}
}

func TestConnectFails(t *testing.T) {
	dir := t.TempDir()
	for _, socket := range []string{filepath.Join(dir, "absent"), filepath.Join(dir, "no", "dir")} {
		c := &Client{Socket: socket}
		_, err := c.Config(t.Context())
		if CodeOf(err) != Unavailable || !strings.Contains(err.Error(), socket) || strings.Contains(err.Error(), "/proc/self") || !errors.Is(err, unix.ENOENT) {
			t.Errorf("got %v, want unavailable with %q", err, socket)
		}
	}
}

func TestRequestLimit(t *testing.T) {
	c := &Client{Socket: filepath.Join(t.TempDir(), "absent")}
	_, err := c.Run(t.Context(), &RunRequest{Request: &step.Request{Argv: []string{strings.Repeat("x", RequestMax)}}})
	if CodeOf(err) != InvalidArgument || !strings.Contains(err.Error(), "limit is 16777216") {
		t.Errorf("got %v", err)
	}
}

// TestRefusedEarly: noded refuses a request of which it has read the head alone.
func TestRefusedEarly(t *testing.T) {
	l, c := listen(t)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = conn.Read(make([]byte, 100))
		_, _ = io.WriteString(conn, reply(429, `{"schema":1,"error":{"code":"resource_exhausted","message":"too much"}}`))
		conn.Close()
	}()
	_, err := c.Run(t.Context(), &RunRequest{Request: &step.Request{Argv: []string{strings.Repeat("x", 8<<20)}}})
	if CodeOf(err) != ResourceExhausted {
		t.Errorf("%v", err)
	}
}

// TestContext: a call ends with its context, while it waits for the reply and while it
// waits for a place in the queue of connections.
func TestContext(t *testing.T) {
	l, c := listen(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Config(ctx); CodeOf(err) != DeadlineExceeded {
		t.Errorf("without a reply: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := c.Wait(ctx, StepRef{JobID: 1}); CodeOf(err) != Canceled {
		t.Errorf("cancelled: %v", err)
	}
	cancel()
	if _, err := c.Config(ctx); CodeOf(err) != Canceled {
		t.Errorf("cancelled before: %v", err)
	}
	raw, err := l.(*net.UnixListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), 0) }); err != nil {
		t.Fatal(err)
	}
	for range 4 { // those before have left some
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if _, err := c.Config(ctx); CodeOf(err) != DeadlineExceeded {
			t.Errorf("with a full queue: %v", err)
		}
		cancel()
	}
}

// accepted is the server's side of a connection of this process.
func accepted(t *testing.T) *net.UnixConn {
	t.Helper()
	l, c := listen(t)
	conn, err := connect(t.Context(), c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return server.(*net.UnixConn)
}

// TestPeerCredentials: the kernel says who the client is.
func TestPeerCredentials(t *testing.T) {
	p, err := PeerOf(accepted(t))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if int(p.UID) != os.Getuid() || int(p.GID) != os.Getgid() || int(p.PID) != os.Getpid() || p.Root() != (os.Getuid() == 0) {
		t.Errorf("peer %+v", p)
	}
}

// TestPeerProcess: a server can follow its client's process, whatever becomes of its number,
// as long as the connection is open.
func TestPeerProcess(t *testing.T) {
	p, err := PeerOf(accepted(t))
	if err != nil {
		t.Fatal(err)
	}
	fd, err := p.OpenProcess()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, 0, nil, 0); err != nil {
		t.Errorf("pid %d: %v", p.PID, err)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor flags %#x, %v", flags, err)
	}
	p.Close()
	if _, err := p.OpenProcess(); !errors.Is(err, ErrNoProcess) {
		t.Errorf("after the connection: %v", err)
	}
}

// FuzzReply: no reply makes a client panic, take more than the limits or succeed without
// its end.
func FuzzReply(f *testing.F) {
	f.Add("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}")
	f.Add("HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\nA: b\r\n\r\n{\"a\"}")
	f.Add("HTTP/1.0 200 OK\n\n{\"step\":{}}\n{\"schema\":1,\"end\":true}\n")
	f.Fuzz(func(t *testing.T, reply string) {
		r := bufio.NewReader(strings.NewReader(reply))
		h, err := readHead(r)
		if err != nil {
			return
		}
		if h.status < 200 || h.status > 599 || h.known && h.length < 0 {
			t.Fatalf("%+v", h)
		}
		x := &exchange{ctx: context.Background(), r: r, head: h, left: h.length}
		if h.known {
			if b, err := x.document(1 << 10); err == nil && (int64(len(b)) != h.length || len(b) > 1<<10) {
				t.Fatalf("%d bytes of %d", len(b), h.length)
			}
			return
		}
		for range 100 {
			if _, err := x.line(); err != nil {
				return
			}
		}
	})
}

// TestOverview: a listing without tasks asks for that, and an older noded, which does not know the
// word, is asked again without it.
func TestOverview(t *testing.T) {
	const without, with = `{"schema":1,"all":true,"no_tasks":true}`, `{"schema":1,"all":true}`
	for name, tc := range map[string]struct {
		reply string
		asks  []string
		code  Code
	}{
		"this release":   {"HTTP/1.0 200 OK\r\nContent-Type: application/jsonl\r\n\r\n" + `{"schema":1,"end":true}` + "\n", []string{without}, OK},
		"an older noded": {reply(400, `{"schema":1,"error":{"code":"invalid_argument","message":"no_tasks"}}`), []string{without, with}, InvalidArgument},
		"no permission":  {reply(403, `{"schema":1,"error":{"code":"permission_denied","message":"no"}}`), []string{without}, PermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			c, asked := answering(t, tc.reply)
			var err error
			for _, err = range c.Overview(t.Context(), true) {
			}
			if CodeOf(err) != tc.code {
				t.Errorf("got %v", err)
			}
			for _, want := range tc.asks {
				_, body, _ := strings.Cut(<-asked, "\r\n\r\n")
				if strings.TrimSpace(body) != want {
					t.Errorf("asked %q, want %q", body, want)
				}
			}
			if len(asked) > 0 {
				t.Errorf("and %q", <-asked)
			}
		})
	}
}
