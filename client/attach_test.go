package client

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/api/stepapi"
	"stepd/step"
	"stepd/stepio/replay"
)

var attachedID = step.ID{Job: 7, Step: 0}

// fakeStepd is the stepd of step 7.0: it says hello, and do the rest. The client's
// connection is closed after that.
func fakeStepd(t *testing.T, do func(c *net.UnixConn)) *Dialer {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "steps"), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(dir, "steps", "7.0.sock"), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		defer c.Close()
		do(c)
	}()
	t.Cleanup(func() { l.Close(); <-served })
	return &Dialer{Socket: filepath.Join(dir, "noded.sock")}
}

// tell sends a record as its text.
func tell(c *net.UnixConn, record string, fds ...int) {
	_, _, _ = c.WriteMsgUnix([]byte(record), unix.UnixRights(fds...), nil) // the test sees what does not come
}

// hello begins a connection, and returns when the client has asked to watch.
func hello(c *net.UnixConn) {
	tell(c, `{"type":"hello","version":1}`)
	buf := make([]byte, 4096)
	for range 2 { // hello, watch
		if n, err := c.Read(buf); err != nil || n == 0 {
			return
		}
	}
}

// shows answers the watch with a connection on which these frames come.
func shows(c *net.UnixConn, frames ...string) {
	hello(c)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return
	}
	tell(c, fmt.Sprintf(`{"type":"reply","seq":%d,"watched":{"stdout":true,"stderr":true}}`, uint32(watchSeq)), pair[1])
	unix.Close(pair[1])
	for _, f := range frames {
		unix.Write(pair[0], []byte(f))
	}
	unix.Close(pair[0])
}

// attachedTo shows the lines of the step whose stepd does so, and which noded knows so in
// the end.
func attachedTo(t *testing.T, do func(c *net.UnixConn), last *step.Record, lastErr error) (code int, said string, err error) {
	t.Helper()
	d := fakeStepd(t, do)
	a := newAttached(&attachOptions{}, &step.Record{ID: attachedID, NTasks: 1, UID: uint32(os.Getuid())}, func() (*step.Record, error) { return last, lastErr })
	stderr := os.Stderr
	file, ferr := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if ferr != nil {
		t.Fatal(ferr)
	}
	os.Stderr = file
	defer func() { os.Stderr = stderr; file.Close() }()
	code, err = a.show(d, &stepapi.Watch{ReadOnly: true}, nil)
	b, rerr := os.ReadFile(file.Name())
	if rerr != nil {
		t.Fatal(rerr)
	}
	return code, string(b), err
}

// TestAttachEnds: the step's end, the loss of stepd or of noded, a refusal and a record
// that cannot be read are told apart, each with the step's name.
func TestAttachEnds(t *testing.T) {
	zero := 0
	killed := &step.Record{ID: attachedID, State: step.Failed, Reason: "stepd was killed by SIGKILL"}
	end := string((&replay.Frame{Kind: replay.KindEnd}).Append(nil))
	noNoded := api.NewError(api.Unavailable, `cannot connect to noded at "/run/x.sock": start it (systemctl start noded)`)
	for name, tt := range map[string]struct {
		do      func(c *net.UnixConn)
		last    *step.Record
		lastErr error
		code    int
		said    string // on stderr
		err     string
	}{
		"end": {
			do: func(c *net.UnixConn) {
				shows(c, end)
				tell(c, `{"type":"result","record":{"job_id":7,"state":"COMPLETED","exit_code":0}}`)
			},
			last: &step.Record{ExitCode: &zero},
		},
		"a failed end": {
			do: func(c *net.UnixConn) {
				shows(c, end)
				tell(c, `{"type":"result","record":{"job_id":7,"state":"FAILED","reason":"task 0","exit_code":9}}`)
			},
			code: 9, said: "stepctl: step 7.0: FAILED: task 0\n",
		},
		"stepd is lost": {
			do: func(c *net.UnixConn) { shows(c) }, last: killed,
			code: 1, said: "stepctl: the connection to the stepd of step 7.0 is lost\nstepctl: step 7.0: FAILED: stepd was killed by SIGKILL\n",
		},
		"stepd and noded are lost": {
			do: func(c *net.UnixConn) { shows(c) }, lastErr: noNoded,
			err: `the connection to the stepd of step 7.0 is lost, and what became of the step is not known: cannot connect to noded at "/run/x.sock": start it (systemctl start noded)`,
		},
		"stepd is lost before it answers": {
			do: hello, last: killed,
			err: "step 7.0 has ended (FAILED): `stepctl output 7.0` shows what is kept of its output",
		},
		"stepd is lost at once, and noded refuses": {
			do: func(*net.UnixConn) {}, lastErr: api.Errorf(api.NotFound, "no such step %q", "7.0"),
			err: `the connection to the stepd of step 7.0 is lost, and what became of the step is not known: no such step "7.0"`,
		},
		"a step that is about to end": {
			do: func(c *net.UnixConn) {
				hello(c)
				tell(c, fmt.Sprintf(`{"type":"reply","seq":%d,"error":"the step has ended","ended":true}`, uint32(watchSeq)))
			},
			last: &step.Record{ID: attachedID, State: step.Completed},
			err:  "step 7.0 has ended (COMPLETED): `stepctl output 7.0` shows what is kept of its output",
		},
		"stepd is gone before it is asked": {
			do: func(c *net.UnixConn) {
				tell(c, `{"type":"hello","version":1}`)
				c.Close()
			},
			last: &step.Record{ID: attachedID, State: step.Completed},
			err:  "step 7.0 has ended (COMPLETED): `stepctl output 7.0` shows what is kept of its output",
		},
		"a refusal": {
			do:  func(c *net.UnixConn) { tell(c, `{"type":"hello","version":1,"error":"permission denied"}`) },
			err: "cannot see the output of step 7.0: permission denied",
		},
		"a refusal with the words of an end": {
			do: func(c *net.UnixConn) {
				hello(c)
				tell(c, fmt.Sprintf(`{"type":"reply","seq":%d,"error":"the step has ended"}`, uint32(watchSeq)))
			},
			lastErr: errors.New("noded is not to be asked"),
			err:     "cannot see the output of step 7.0: the step has ended",
		},
		"a malformed answer": {
			do:  func(c *net.UnixConn) { hello(c); tell(c, `{"type":"re`) },
			err: "cannot read what the stepd of step 7.0 says: cannot parse record: unexpected end of JSON input",
		},
		"an answer without a connection": {
			do: func(c *net.UnixConn) {
				hello(c)
				tell(c, fmt.Sprintf(`{"type":"reply","seq":%d,"watched":{"stdout":true}}`, uint32(watchSeq)))
				_, _ = c.Read(make([]byte, 1)) // until the client leaves
			},
			err: "cannot read what the stepd of step 7.0 says: the answer has 0 descriptors of the output, want 1",
		},
		"a malformed record": {
			do:  func(c *net.UnixConn) { shows(c, end); tell(c, `{"type":7}`) },
			err: "cannot read what the stepd of step 7.0 says: cannot parse record: type: json: cannot unmarshal number into Go value of type stepapi.Type",
		},
		"a result without a record": {
			do:  func(c *net.UnixConn) { shows(c, end); tell(c, `{"type":"result"}`) },
			err: "cannot read what the stepd of step 7.0 says: its result has no record",
		},
		"a malformed frame": {
			do: func(c *net.UnixConn) {
				shows(c, "\xff")
				_, _ = c.Read(make([]byte, 1)) // until the client leaves
			},
			code: 1, said: "stepctl: error: cannot read the output of step 7.0: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			code, said, err := attachedTo(t, tt.do, tt.last, tt.lastErr)
			if tt.err != "" {
				if err == nil || err.Error() != tt.err {
					t.Errorf("got %v, want %q", err, tt.err)
				}
				return
			}
			if err != nil || code != tt.code || !strings.HasPrefix(said, tt.said) || tt.said == "" && said != "" {
				t.Errorf("got code %d, %v, and it says %q; want %d and %q", code, err, said, tt.code, tt.said)
			}
		})
	}
}

// TestAttachNoStepd: a socket that is not served is the loss of stepd, one that may not be
// opened is not.
func TestAttachNoStepd(t *testing.T) {
	d := &Dialer{Socket: filepath.Join(t.TempDir(), "noded.sock")}
	a := newAttached(&attachOptions{}, &step.Record{ID: attachedID}, func() (*step.Record, error) {
		return &step.Record{ID: attachedID, State: step.NodeFail}, nil
	})
	if _, err := a.show(d, &stepapi.Watch{}, nil); err == nil || !strings.HasPrefix(err.Error(), "step 7.0 has ended (NODE_FAIL)") {
		t.Errorf("without a socket: %v", err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(d.Socket), "steps"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := a.show(d, &stepapi.Watch{}, nil); err == nil || !strings.HasSuffix(err.Error(), "not a directory") {
		t.Errorf("with a file in the directory's place: %v", err)
	}
}
