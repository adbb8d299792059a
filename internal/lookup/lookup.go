// Package lookup answers who a user is, through the C library: by a program of its own, since a
// module of the name service may hang, crash or leak.
//
// It does not decide as whom a step runs. Begin with Service.ByUID.
package lookup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"stepd/srunopt"
	"stepd/step"
)

// ErrNoUser is wrapped by the error for a uid that no name service knows.
var ErrNoUser = errors.New("no such user")

const (
	// deadline bounds one question: a name service may hang for minutes.
	deadline = 10 * time.Second
	// keep is how long an answer serves further steps of the user: a
	// change of groups is seen after at most this time.
	keep = 10 * time.Second
	// answerMax bounds the answer: 65536 groups (NGROUPS_MAX) of 11 bytes, and the rest.
	answerMax = 1 << 20
)

// Service asks the C library who a user is: sites have LDAP and SSSD behind it,
// which a static Go program does not see (design §4). Each question is a child
// of its own, `spankhost --lookup`. It implements node.Users.
type Service struct {
	program string
	// deadline bounds a question, keep the life of an answer; tests shorten them.
	deadline, keep time.Duration
	mu             sync.Mutex
	known          map[uint32]*entry // guarded by mu
}

// entry is one question; done is closed when user, err and at are set.
type entry struct {
	done chan struct{}
	user step.User
	err  error
	at   time.Time
}

// New returns a Service that runs the spankhost program, an absolute path.
func New(program string) *Service {
	return &Service{program: program, deadline: deadline, keep: keep, known: make(map[uint32]*entry)}
}

// ByUID implements Users. Answers are kept for 10 s, errors are not; questions
// for one uid at the same time are asked once.
func (l *Service) ByUID(ctx context.Context, uid uint32) (step.User, error) {
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
func (l *Service) entry(uid uint32) (e *entry, mine bool) {
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
	e = &entry{done: make(chan struct{})}
	l.known[uid] = e
	return e, true
}

// dropOld keeps the table from growing with every uid ever seen. The caller
// holds mu.
func (l *Service) dropOld() {
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

func (l *Service) ask(ctx context.Context, uid uint32) (step.User, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, l.deadline,
		fmt.Errorf("the name service did not answer within %v (see nsswitch.conf)", l.deadline))
	defer cancel()
	ctx, overflow := context.WithCancelCause(ctx)
	defer overflow(nil)
	cmd := exec.CommandContext(ctx, l.program, "--lookup")
	out, diag := &limited{max: answerMax, over: overflow}, &limited{max: 4096, over: overflow}
	cmd.Env = []string{"PATH=" + step.SafePath, "LC_ALL=C"}
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

// groupsMax is NGROUPS_MAX of limits.h: setgroups(2) takes no more.
const groupsMax = 65536

// parseUser reads the answer of `spankhost --lookup`: lines key=value, of
// which uid, gid and name must be there. Unknown keys are ignored.
func parseUser(b []byte) (step.User, error) {
	var u step.User
	seen := make(map[string]bool)
	for line := range strings.Lines(string(b)) {
		key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if !ok {
			return step.User{}, fmt.Errorf("cannot parse line %.80q of the lookup: want key=value", line)
		}
		if seen[key] {
			return step.User{}, fmt.Errorf("cannot parse the lookup: %.80q comes twice", key)
		}
		seen[key] = true
		if err := setUser(&u, key, value); err != nil {
			return step.User{}, fmt.Errorf("cannot parse %.80q of the lookup: %w", key, err)
		}
	}
	for _, key := range []string{"uid", "gid", "name"} {
		if !seen[key] {
			return step.User{}, fmt.Errorf("cannot parse the lookup: it has no %q", key)
		}
	}
	// initgroups(3) adds the primary group; so must its stand-in.
	if !slices.Contains(u.Groups, u.GID) {
		u.Groups = append([]uint32{u.GID}, u.Groups...)
	}
	return u, nil
}

func setUser(u *step.User, key, value string) (err error) {
	switch key {
	case "uid":
		u.UID, err = parseNumericID(value)
	case "gid":
		u.GID, err = parseNumericID(value)
	case "name":
		if value == "" {
			return errors.New("is empty")
		}
		u.Name, err = value, checkWord(value)
	case "groups":
		u.Groups, err = parseGroups(value)
	}
	return err
}

func parseGroups(s string) ([]uint32, error) {
	if s == "" {
		return nil, nil
	}
	if n := strings.Count(s, ",") + 1; n > groupsMax {
		return nil, fmt.Errorf("%d groups: the kernel takes at most %d", n, groupsMax)
	}
	var groups []uint32
	for _, f := range strings.Split(s, ",") {
		g, err := parseNumericID(f)
		if err != nil {
			return nil, err
		}
		groups = append(groups, g)
	}
	return groups, nil
}

// parseNumericID reads a uid or gid; -1 means "leave as it is" to the kernel
// and is none.
func parseNumericID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || uint32(n) == ^uint32(0) {
		return 0, fmt.Errorf("%.20q is not a user or group id", s)
	}
	return uint32(n), nil
}

// checkWord refuses what would forge lines in logs and listings.
func checkWord(s string) error {
	if len(s) > srunopt.PathMax || strings.IndexFunc(s, unicode.IsControl) >= 0 {
		return fmt.Errorf("%.80q is too long or holds a control character", s)
	}
	return nil
}
