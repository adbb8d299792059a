package rpc

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/slurm/munge"
	"stepd/slurm/wire"
)

// munged is a munged whose tokens are legible: UID/READER/PAYLOAD, the uid of who has made it
// and of who may read it.
func munged(t *testing.T, uid uint32) munge.Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	serve(t, "unix", socket, func(conn net.Conn) {
		head := make([]byte, 11)
		io.ReadFull(conn, head)
		body := make([]byte, binary.BigEndian.Uint32(head[7:]))
		io.ReadFull(conn, body)
		u32 := func(at int) uint32 { return binary.BigEndian.Uint32(body[at:]) }
		var reply []byte
		if head[5] == 2 {
			token := tokenOf(uid, u32(8), body[20:])
			reply = binary.BigEndian.AppendUint32([]byte{0, 0}, uint32(len(token)))
			reply = append(reply, token...)
		} else {
			uid, payload := opened(t, string(body[4:]))
			reply = append([]byte{0, 0, 4, 5, 0, 0}, make([]byte, 5+8)...)
			reply = binary.BigEndian.AppendUint32(reply, uid)
			reply = append(reply, make([]byte, 12)...)
			reply = binary.BigEndian.AppendUint32(reply, uint32(len(payload)))
			reply = append(reply, payload...)
		}
		head[5]++
		binary.BigEndian.PutUint32(head[7:], uint32(len(reply)))
		conn.Write(append(head, reply...))
	})
	return munge.Client{Socket: socket}
}

func tokenOf(uid, reader uint32, payload []byte) string {
	return fmt.Sprintf("%d/%d/%x", uid, reader, payload)
}

func opened(t *testing.T, token string) (uid uint32, payload []byte) {
	var reader uint32
	var text string
	if n, err := fmt.Sscanf(token, "%d/%d/%s", &uid, &reader, &text); n < 2 {
		t.Errorf("token %q: %v", token, err)
	}
	payload, _ = hex.DecodeString(text)
	return uid, payload
}

// serve gives each connection to a function, and returns the listener's address.
func serve(t *testing.T, network, addr string, answer func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			answer(conn)
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

// took is a message as a peer has got it.
type took struct {
	header wire.Header
	token  string
	body   []byte
}

// peer answers each message by a function; nil bytes close the connection.
func peer(t *testing.T, answer func(took) []byte) string {
	return serve(t, "tcp", "127.0.0.1:0", func(conn net.Conn) {
		b, err := readFrame(conn)
		if err != nil {
			return
		}
		h, token, body, err := wire.ParseFrame(b)
		if err != nil {
			t.Error(err)
		}
		conn.Write(answer(took{h, token, body}))
	})
}

// returns answers with a number, signed by a user.
func signedReturn(uid, rc uint32) []byte {
	body := binary.BigEndian.AppendUint32(nil, rc)
	return wire.Frame(wire.V2411, wire.TypeReturnCode, tokenOf(uid, 0, hash(wire.TypeReturnCode, body)), body)
}

const slurmUser = 64030

func client(t *testing.T) *Client {
	return &Client{Release: wire.V2411, Munge: munged(t, 0), Timeout: 5 * time.Second}
}

func controller(addr string) Peer {
	return Peer{Addr: addr, Reader: munge.Anyone, Signers: []uint32{slurmUser, 0}}
}

var message = &wire.StepComplete{Step: wire.StepID{Job: 7, HetComp: wire.NoVal}, First: 1, Last: 2, RC: 9}

func TestSend(t *testing.T) {
	var got took
	addr := peer(t, func(m took) []byte { got = m; return signedReturn(slurmUser, 0) })
	to := controller(addr)
	to.Reader = 1000
	if err := client(t).Send(t.Context(), to, message); err != nil {
		t.Fatal(err)
	}
	body := wire.Pack(wire.V2411, message)
	if got.header.Type != wire.TypeStepComplete || got.header.Release != wire.V2411 || !bytes.Equal(got.body, body) {
		t.Errorf("%+v", got)
	}
	if want := tokenOf(0, 1000, hash(wire.TypeStepComplete, body)); got.token != want {
		t.Errorf("token %s, want %s", got.token, want)
	}
}

// TestAnswers holds which answers count.
func TestAnswers(t *testing.T) {
	zero := []byte{0, 0, 0, 0}
	signed := func(uid uint32, payload []byte) []byte {
		return wire.Frame(wire.V2411, wire.TypeReturnCode, tokenOf(uid, 0, payload), zero)
	}
	for name, c := range map[string]struct {
		answer []byte
		want   string
	}{
		"root's":              {signedReturn(0, 0), ""},
		"refused":             {signedReturn(slurmUser, 2021), `it answers "job or step already completing or completed" (Slurm's error 2021)`},
		"unknown error":       {signedReturn(slurmUser, 9999), "it answers with Slurm's error 9999"},
		"another user's":      {signedReturn(1000, 0), "its answer is not to be trusted: it is uid 1000's"},
		"another body's":      {signed(0, hash(wire.TypeReturnCode, []byte{0, 0, 0, 1})), "its answer is not to be trusted: the token is another message's"},
		"another type's":      {signed(0, hash(wire.TypeTaskExit, zero)), "its answer is not to be trusted: the token is another message's"},
		"of the type alone":   {signed(0, binary.BigEndian.AppendUint16([]byte{1}, uint16(wire.TypeReturnCode))), "its answer is not to be trusted: the token is another message's"},
		"of nothing":          {signed(0, nil), "its answer is not to be trusted: the token is another message's"},
		"another message":     {wire.Frame(wire.V2411, 5001, tokenOf(0, 0, hash(5001, nil)), nil), "it answers with message 5001"},
		"none":                {nil, "no answer: EOF"},
		"cut":                 {signedReturn(0, 0)[:20], "no answer: unexpected EOF"},
		"4 billion bytes":     {[]byte{255, 255, 255, 255, 1}, "no answer: it has 4294967295 bytes, and 1048576 is the limit"},
		"too short a message": {[]byte{0, 0, 0, 2, 0x2a, 0}, "message.flags: the record is too short, at 2 of 2 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			addr := peer(t, func(took) []byte { return c.answer })
			err := client(t).Send(t.Context(), controller(addr), message)
			got := ""
			if err != nil {
				got = strings.TrimPrefix(err.Error(), "cannot send REQUEST_STEP_COMPLETE to "+addr+": ")
			}
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// closed is an address where nothing listens.
func closed(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestControllersInTurn holds that a message goes past controllers that are down, on standby
// or forged, and that a refusal ends it.
func TestControllersInTurn(t *testing.T) {
	var asked []string
	at := func(name string, uid, rc uint32) Peer {
		return controller(peer(t, func(took) []byte { asked = append(asked, name); return signedReturn(uid, rc) }))
	}
	to := []Peer{controller(closed(t)), at("standby", 0, standby), at("forged", 1000, 0), at("takes", 0, 0), at("last", 0, 0)}
	if err := client(t).Deliver(t.Context(), to, message, Retry{}); err != nil {
		t.Error(err)
	}
	if want := []string{"standby", "forged", "takes"}; !slices.Equal(asked, want) {
		t.Errorf("asked %v, want %v", asked, want)
	}
	asked = nil
	err := client(t).Deliver(t.Context(), []Peer{at("refuses", 0, 2021), to[3]}, message, Retry{})
	var refused *ReturnError
	if !errors.As(err, &refused) || refused.Code != 2021 || !slices.Equal(asked, []string{"refuses"}) {
		t.Error(err, asked)
	}
	err = client(t).Deliver(t.Context(), to[:3], message, Retry{})
	if err == nil || strings.Count(err.Error(), "cannot send REQUEST_STEP_COMPLETE to 127.0.0.1:") != 3 || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error(err)
	}
}

func TestRetry(t *testing.T) {
	var tries atomic.Int32
	addr := peer(t, func(took) []byte {
		if tries.Add(1) < 4 {
			return nil
		}
		return signedReturn(0, 0)
	})
	var pauses []time.Duration
	retry := Retry{Tries: 5, Pause: time.Millisecond, Longest: 2 * time.Millisecond, Failed: func(err error, again time.Duration) {
		if err == nil {
			t.Error("it failed without an error")
		}
		pauses = append(pauses, again)
	}}
	if err := client(t).Deliver(t.Context(), []Peer{controller(addr)}, message, retry); err != nil {
		t.Error(err)
	}
	if want := []time.Duration{1e6, 2e6, 2e6}; !slices.Equal(pauses, want) {
		t.Errorf("pauses %v, want %v", pauses, want)
	}
}

func TestRetryEnds(t *testing.T) {
	var tries atomic.Int32
	addr := peer(t, func(took) []byte { tries.Add(1); return nil })
	retry := Retry{Tries: 3, Pause: time.Millisecond}
	if err := client(t).Deliver(t.Context(), []Peer{controller(addr)}, message, retry); err == nil || tries.Load() != 3 {
		t.Error(err, tries.Load())
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	because := errors.New("the daemon ends")
	retry = Retry{Tries: Forever, Pause: time.Hour, Failed: func(error, time.Duration) { cancel(because) }}
	if err := client(t).Deliver(ctx, []Peer{controller(addr)}, message, retry); !errors.Is(err, because) {
		t.Error(err)
	}
}

// TestRetryUnsigned: while no munged answers, no try of the few is spent, and nothing is sent.
func TestRetryUnsigned(t *testing.T) {
	var asked atomic.Int32
	to := []Peer{controller(peer(t, func(took) []byte { asked.Add(1); return signedReturn(0, 0) }))}
	c := client(t)
	good := c.Munge
	c.Munge.Socket = t.TempDir() + "/none"
	failed := 0
	retry := Retry{Tries: 1, Pause: time.Hour, Failed: func(err error, again time.Duration) {
		if failed++; !errors.As(err, new(*SignError)) || again != signPause || asked.Load() != 0 {
			t.Errorf("%v, again in %v, %d asked", err, again, asked.Load())
		}
		c.Munge = good
	}}
	if err := c.Deliver(t.Context(), to, message, retry); err != nil || failed != 1 || asked.Load() != 1 {
		t.Errorf("%v, %d failures, %d asked", err, failed, asked.Load())
	}
	c.Munge.Socket = t.TempDir() + "/none"
	if err := c.Deliver(t.Context(), to, message, Retry{}); !errors.As(err, new(*SignError)) {
		t.Error(err)
	}
}

// TestRetryFinal: an srun that refuses the connection has ended.
func TestRetryFinal(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	retry := ToSrun(1)
	retry.Failed = func(err error, _ time.Duration) { t.Errorf("it is asked again after %v", err) }
	if err := client(t).Deliver(t.Context(), []Peer{controller(l.Addr().String())}, message, retry); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error(err)
	}
}

// TestPolicies holds the original's times.
func TestPolicies(t *testing.T) {
	if r := ToSrun(2048); r.Tries != 7 || r.Pause != 100*time.Millisecond || r.Longest != 800*time.Millisecond {
		t.Errorf("%+v", r)
	}
	if r := StepEnd(); r.Tries != Forever || r.Pause != time.Second || r.Longest != time.Minute {
		t.Errorf("%+v", r)
	}
	if r := BatchEnd(); r.Tries != 241 || r.Pause != 15*time.Second || r.Longest != 0 {
		t.Errorf("%+v", r)
	}
}

// TestSilent holds that a peer that says nothing is given up.
func TestSilent(t *testing.T) {
	addr := serve(t, "tcp", "127.0.0.1:0", func(conn net.Conn) { io.Copy(io.Discard, conn) })
	c := client(t)
	c.Timeout = 50 * time.Millisecond
	err := c.Send(t.Context(), controller(addr), message)
	if err == nil || !strings.HasSuffix(err.Error(), "no answer: it took longer than 50ms (MessageTimeout in slurm.conf)") {
		t.Error(err)
	}
}

// vectors are KangarooTwelve's, by the sizes of message and customisation.
var vectors = map[struct{ message, custom int }]string{
	{0, 0}:     "1ac2d450fc3b4205d19da7bfca1b37513c0803577ac7167f06fe2ce1f0ef39e5",
	{17, 0}:    "6bf75fa2239198db4772e36478f8e19b0f371205f6a9a93a273f51df37122888",
	{289, 0}:   "0c315ebcdedbf61426de7dcf8fb725d1e74675d7f5327a5067f367b108ecb67c",
	{83521, 0}: "8701045e22205345ff4dda05555cbb5c3af1a771c2b89baef37db43d9998b9fe",
	{0, 1}:     "fab658db63e94a246188bf7af69a133045f46ee984c56e3c3328caaf1aa1a583",
}

// TestHostDown holds that a host which does not answer is given up before the exchange is.
func TestHostDown(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", sa.(*unix.SockaddrInet4).Port)
	for { // until its queue is full
		conn, err := net.DialTimeout("tcp", addr, 100*time.Millisecond)
		if err != nil {
			break
		}
		defer conn.Close()
	}
	c := client(t)
	c.Timeout, c.Connect = time.Hour, 50*time.Millisecond
	if err := c.Send(t.Context(), controller(addr), message); err == nil || !strings.HasSuffix(err.Error(), "i/o timeout") {
		t.Error(err)
	}
}

// TestHash compares with RFC 9861's vectors, and with what slurmctld 22.05.8 has signed: that a
// job is not known.
func TestHash(t *testing.T) {
	const signed = "02b1a38deeceff150361338a7e13626b2394e62a7e00897875383ebfe90cb2ee08"
	if got := hash(wire.TypeReturnCode, []byte{0, 0, 7, 0xe1}); hex.EncodeToString(got) != signed {
		t.Errorf("%x, want %s", got, signed)
	}
	ptn := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i % 251)
		}
		return b
	}
	for n, want := range vectors {
		if got := hex.EncodeToString(sum(ptn(n.message), ptn(n.custom))); got != want {
			t.Errorf("%+v: %s, want %s", n, got, want)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(signedReturn(0, 0))
	f.Add(wire.Frame(wire.V2205, wire.TypeReturnCode, "x", []byte{0, 0, 7, 0xe5}))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := readFrame(bytes.NewReader(b))
		if err == nil && len(got)+4 > len(b) {
			t.Fatal(len(got))
		}
	})
}

// What slurmctld answers of a step that it has ended already is no error; what it refuses is.
func TestOver(t *testing.T) {
	for code, over := range map[uint32]bool{2017: true, 2021: true, 1007: false, 2002: false} {
		if (&ReturnError{code}).Over() != over {
			t.Errorf("error %d: %v", code, !over)
		}
	}
}

// TestRetryUnreachable: a controller that no route leads to is asked again soon, and without end; an
// srun as often as others.
func TestRetryUnreachable(t *testing.T) {
	// A listener whose queue is full answers no one: who connects waits as for a host that is cut off.
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	err = errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0))
	name, nameErr := unix.Getsockname(fd)
	if err := errors.Join(err, nameErr); err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
	for range 3 {
		if conn, err := net.DialTimeout("tcp", addr, 100*time.Millisecond); err == nil {
			defer conn.Close()
		}
	}
	c := client(t)
	c.Connect = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	failed := 0
	retry := Retry{Tries: 1, Pause: time.Minute, Failed: func(err error, again time.Duration) {
		if failed++; again != unreachablePause {
			t.Errorf("%v, again in %v", err, again)
		}
		if failed == 2 {
			cancel()
		}
	}}
	if err := c.Deliver(ctx, []Peer{controller(addr)}, message, retry); !errors.Is(err, context.Canceled) || failed != 2 {
		t.Errorf("%v, %d failures", err, failed)
	}
	if err := c.Deliver(t.Context(), []Peer{controller(addr)}, message, Retry{Tries: 2, Pause: time.Millisecond}); err == nil {
		t.Error("delivered")
	}
}
