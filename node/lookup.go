package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"stepd/node/child"
	"stepd/step"
)

// ErrNoUser is wrapped by the error for a uid that no name service knows.
var ErrNoUser = errors.New("no such user")

const (
	// lookupDeadline bounds one question: a name service may hang for minutes.
	lookupDeadline = 10 * time.Second
	// lookupKeep is how long an answer serves further steps of the user: a
	// change of groups is seen after at most this time.
	lookupKeep = 10 * time.Second
	// lookupMax bounds the answer: 65536 groups (NGROUPS_MAX) of 11 bytes, and the rest.
	lookupMax = 1 << 20
)

// Lookup asks the C library who a user is: sites have LDAP and SSSD behind it,
// which a static Go program does not see (design §4). Each question is a child
// of its own, `spankhost --lookup`, because a module of the name service may
// hang, crash or leak. It implements Users.
type Lookup struct {
	program string
	// deadline bounds a question, keep the life of an answer; tests shorten them.
	deadline, keep time.Duration
	mu             sync.Mutex
	known          map[uint32]*lookupEntry // guarded by mu
}

// lookupEntry is one question; done is closed when user, err and at are set.
type lookupEntry struct {
	done chan struct{}
	user step.User
	err  error
	at   time.Time
}

// NewLookup returns a Lookup that runs the spankhost program, an absolute path.
func NewLookup(program string) *Lookup {
	return &Lookup{program: program, deadline: lookupDeadline, keep: lookupKeep, known: make(map[uint32]*lookupEntry)}
}

// ByUID implements Users. Answers are kept for 10 s, errors are not; questions
// for one uid at the same time are asked once.
func (l *Lookup) ByUID(ctx context.Context, uid uint32) (step.User, error) {
	e, mine := l.entry(uid)
	if mine {
		// Not the caller's context: others may wait for the same answer.
		go func() {
			e.user, e.err = l.ask(context.WithoutCancel(ctx), uid)
			e.at = time.Now()
			close(e.done)
		}()
	}
	select {
	case <-e.done:
		return e.user, e.err
	case <-ctx.Done():
		return step.User{}, context.Cause(ctx)
	}
}

// entry returns the question that is under way or answered of late, or a new
// one, which is then the caller's to ask.
func (l *Lookup) entry(uid uint32) (e *lookupEntry, mine bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.known[uid]; e != nil {
		select {
		case <-e.done:
			if e.err == nil && time.Since(e.at) < l.keep {
				return e, false
			}
		default:
			return e, false
		}
	}
	l.dropOld()
	e = &lookupEntry{done: make(chan struct{})}
	l.known[uid] = e
	return e, true
}

// dropOld keeps the table from growing with every uid ever seen. The caller
// holds mu.
func (l *Lookup) dropOld() {
	for uid, e := range l.known {
		select {
		case <-e.done:
			if time.Since(e.at) >= l.keep {
				delete(l.known, uid)
			}
		default:
		}
	}
}

func (l *Lookup) ask(ctx context.Context, uid uint32) (step.User, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, l.deadline,
		fmt.Errorf("the name service did not answer within %v (see nsswitch.conf)", l.deadline))
	defer cancel()
	ctx, overflow := context.WithCancelCause(ctx)
	defer overflow(nil)
	cmd := exec.CommandContext(ctx, l.program, "--lookup")
	out, diag := &limited{max: lookupMax, over: overflow}, &limited{max: 4096, over: overflow}
	cmd.Env = []string{"PATH=" + child.SafePath, "LC_ALL=C"}
	cmd.Dir = "/"
	cmd.Stdin = strings.NewReader(fmt.Sprintf("uid %d\n", uid))
	cmd.Stdout, cmd.Stderr = out, diag
	// A module may have forked: its children hold the pipes, so the whole group goes.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return step.User{}, fmt.Errorf("cannot look up uid %d: %w", uid, context.Cause(ctx))
	case errors.As(err, &exit) && exit.ExitCode() == 2:
		return step.User{}, fmt.Errorf("cannot look up uid %d: %w", uid, ErrNoUser)
	case err != nil:
		return step.User{}, fmt.Errorf("cannot look up uid %d: %w: %.200q", uid, err, strings.TrimSpace(diag.buf.String()))
	}
	u, err := parseUser(out.buf.Bytes())
	if err != nil {
		return step.User{}, fmt.Errorf("cannot look up uid %d: %w", uid, err)
	}
	if u.UID != uid {
		return step.User{}, fmt.Errorf("cannot look up uid %d: the answer is about uid %d", uid, u.UID)
	}
	return u, nil
}

// limited is a buffer for at most max bytes; more ends the child, by over. The
// buffer is not embedded: io.Copy would call its ReadFrom, past the limit.
type limited struct {
	buf  bytes.Buffer
	max  int
	over context.CancelCauseFunc
}

func (b *limited) Write(p []byte) (int, error) {
	if b.buf.Len()+len(p) > b.max {
		err := fmt.Errorf("output of more than %d bytes", b.max)
		b.over(err)
		return 0, err
	}
	return b.buf.Write(p)
}
