// Package serve is noded's API (docs/api.md): JSON by HTTP/1.1 on a unix socket. It reads
// requests, decides which client may do what, bounds what each user has under way, and writes
// the replies.
//
// It does not start, end or follow steps: a Backend does, which is package node's Node. Which
// user a new step belongs to, and who may launch a reservation, is the Backend's to decide.
//
// Begin with the table in calls.go: a request goes through ServeHTTP to its row there, and to
// the Backend. call.go reads and writes documents, server.go counts connections and bytes.
package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/internal/printable"
	"stepd/step"
)

// Launcher makes steps and jobs for a client. It decides which user they belong to. The errors
// of all of a Backend's methods are api.Errors.
type Launcher interface {
	Run(context.Context, api.Peer, *api.RunRequest) (*api.RunReply, error)
	DryRun(context.Context, api.Peer, *api.RunRequest) (*api.DryRunReply, error)
	WillRun(context.Context, api.Peer, *api.RunRequest) (*api.WillRunReply, error)
	// Reserve and Alloc make what lives as long as the client's process.
	Reserve(context.Context, api.Peer, *api.RunRequest) (*api.RunReply, error)
	Launch(api.Peer, *api.LaunchRequest) (*api.RunReply, error)
	Alloc(context.Context, api.Peer, *api.RunRequest) (*api.AllocReply, error)
	// Adopt puts a process into a job, by the client's count of processes.
	Adopt(context.Context, api.Peer, *api.AdoptRequest) (*api.AdoptReply, error)
}

// Steps are the steps that run, and those that have ended and are still known.
type Steps interface {
	// IDs returns the steps that a reference names: none only of a job that runs.
	IDs(api.StepRef) ([]step.ID, error)
	// List returns the next steps behind one, by number, a bounded number: steps that have not
	// ended, with all the ended ones as well. None is the end.
	List(all bool, behind step.ID) []step.ID
	// Step returns the record of a step as it is now, Stat with its present usage.
	Step(step.ID) (*step.Record, error)
	Stat(context.Context, step.ID) (*step.Record, error)
	// Owner is the user of a job that runs, or is ending.
	Owner(job uint32) (uid uint32, ok bool)
	// Events hands each event of a step to send, with follow until the step has ended.
	Events(ctx context.Context, id step.ID, follow bool, send func([]byte) error) error
	// Output opens what is kept of the output of a step that has ended.
	Output(step.ID) (output io.ReadCloser, size int64, err error)
}

// Control acts on steps that run. A reference without a step names the job with all of its
// steps.
type Control interface {
	// Await waits for the end, and returns the steps that there are then.
	Await(context.Context, api.StepRef) ([]step.ID, error)
	// The notes of these three are for the user.
	Signal(ctx context.Context, ref api.StepRef, signal int, scope string) (notes []string, err error)
	Cancel(ctx context.Context, ref api.StepRef, reason string) (notes []string, err error)
	Fail(ctx context.Context, ref api.StepRef, reason string) (notes []string, err error)
	Suspend(ctx context.Context, ref api.StepRef, by uint32) error
	Unsuspend(ctx context.Context, ref api.StepRef, by uint32) error
	// Release ends a job of Alloc's, and waits until nothing is left of it.
	Release(ctx context.Context, job uint32) error
}

// Machine is the node as a whole.
type Machine interface {
	Status(context.Context) api.Node
	ClientConfig() *api.ConfigReply
	Drain(caller api.Peer, reason string) error
	Resume() error
}

// Backend does what clients ask for.
type Backend interface {
	Launcher
	Steps
	Control
	Machine
}

// Meter counts requests.
type Meter interface {
	// Request is one request that was answered with code after dur. The verb "connect" is a
	// connection that was refused, with the answer or by its end, "unknown" what is no request.
	Request(verb, code string, dur time.Duration)
}

// Config is what a Server needs beside its Backend.
type Config struct {
	// Version is the program's, for clients of other releases; "" is not known.
	Version string
	// Connections bounds a user's connections, AllConnections all users' connections, of which no
	// user has more than half; 0 is no bound. RequestBytes bounds the bytes of a user's requests and
	// replies that are under way. None of them bounds root.
	Connections, AllConnections, RequestBytes int
	// Known asks the name service for a user; nil knows every user.
	Known func(context.Context, uint32) (bool, error)
	Meter Meter
	Log   *logrus.Logger
	// PeerOf returns the client of a connection; nil is api.PeerOf.
	PeerOf func(*net.UnixConn) (api.Peer, error)
}

const (
	// headMax bounds the head of a request: a client of ours sends 200 bytes.
	headMax = 2 << 10
	// headTime, bodyTime and replyTime are how long a client may take to send the head of
	// a request and its body, and to read a piece of its reply. idleTime is how long a
	// connection may stay without a request.
	headTime  = 10 * time.Second
	bodyTime  = time.Minute
	replyTime = 2 * time.Minute
	idleTime  = 5 * time.Minute
	// followsMax is how many event logs a user may follow at a time.
	followsMax = 64
)

// Server serves the API. Make it with New.
type Server struct {
	Config
	node     Backend
	table    map[string]verb
	http     *http.Server
	clients  *clients
	payers   payers
	follows  counter // event logs that are followed
	refusals refusals
	pace     pace
	stopping chan struct{} // closed by Shutdown
	// replyTime is the constant; tests have another.
	replyTime time.Duration
}

// New returns the server of the backend's requests.
func New(b Backend, c Config) *Server {
	if c.PeerOf == nil {
		c.PeerOf = api.PeerOf
	}
	c.Version = cmp.Or(c.Version, "of an unknown release")
	s := &Server{Config: c, node: b, clients: newClients(c.Connections, c.AllConnections, c.RequestBytes), replyTime: replyTime, follows: counter{byUser: make(map[uint32]int)}, stopping: make(chan struct{})}
	s.table = s.verbs()
	s.http = &http.Server{
		Handler: s, MaxHeaderBytes: headMax, ReadHeaderTimeout: headTime, IdleTimeout: idleTime,
		DisableGeneralOptionsHandler: true,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, c.(*clientConn))
		},
		ErrorLog: stdlog.New(httpLog{c.Log}, "", 0),
	}
	s.http.RegisterOnShutdown(sync.OnceFunc(func() { close(s.stopping) }))
	return s
}

// Serve answers the requests that come by the listener until Shutdown, or an error of the
// listener's.
func (s *Server) Serve(l net.Listener) error {
	err := s.http.Serve(newClientListener(l, s))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Shutdown closes the listener and waits for the requests that are under way, no longer
// than ctx; then it closes their connections.
func (s *Server) Shutdown(ctx context.Context) {
	if s.http.Shutdown(ctx) != nil {
		_ = s.http.Close() // the listener's error: it is closed
	}
}

// Verbs are the names of the requests that are served, sorted.
func (s *Server) Verbs() []string { return slices.Sorted(maps.Keys(s.table)) }

// Connections is how many connections are open.
func (s *Server) Connections() int { return s.clients.open.total() }

// logRefused logs a line about a user's requests, unless the user, or payer, has caused too many.
func (s *Server) logRefused(payer, uid uint32, format string, args ...any) {
	ok, silent := s.refusals.tell(payer, time.Now())
	if !ok {
		return
	}
	log := s.Log.WithField("uid", uid)
	if silent > 0 {
		log.Infof("requests refused since, and not logged: %d", silent)
	}
	log.Info(fmt.Sprintf(format, args...))
}

// httpLog is where net/http writes what is wrong with a connection: its client's affair.
type httpLog struct{ *logrus.Logger }

func (l httpLog) Write(b []byte) (int, error) {
	l.Debug(printable.Line(strings.TrimSpace(string(b)), 400))
	return len(b), nil
}

const (
	// refusalBurst lines about refused requests of one user come at once into the log,
	// and then one in each refusalEvery, with the number of refusals in between: a user
	// must not fill root's disk.
	refusalBurst = 20
	refusalEvery = time.Minute
)

// refusals bounds the lines that users cause in the log.
type refusals struct {
	mu     sync.Mutex
	byUser map[uint32]*refusal // guarded by mu
}

type refusal struct {
	left   int       // lines that may come now
	at     time.Time // when left was right
	silent int       // lines that were left out
}

// tell reports whether a line about uid may come, and how many were left out since the last.
func (r *refusals) tell(uid uint32, now time.Time) (ok bool, silent int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byUser == nil {
		r.byUser = make(map[uint32]*refusal)
	}
	u := r.byUser[uid]
	if u == nil {
		for id, old := range r.byUser { // users that have been quiet for long
			if now.Sub(old.at) > (refusalBurst+1)*refusalEvery && old.silent == 0 {
				delete(r.byUser, id)
			}
		}
		u = &refusal{left: refusalBurst, at: now}
		r.byUser[uid] = u
	}
	if more := int(now.Sub(u.at) / refusalEvery); more > 0 {
		u.left = min(refusalBurst, u.left+more)
		u.at = now
	}
	if u.left == 0 {
		u.silent++
		return false, 0
	}
	u.left--
	silent, u.silent = u.silent, 0
	return true, silent
}

const (
	// vainFree requests of one user that came to nothing are answered at once, and then one in each
	// vainEvery: a client that asks on and on would take the processors from others. The user's
	// connections bound the time that one of them waits: each has one request.
	vainFree  = 100
	vainEvery = 5 * time.Millisecond
)

// pace is when the next request of each user that comes to nothing is answered: one that is
// refused, and one for a reservation until that is launched.
type pace struct {
	mu     sync.Mutex
	byUser map[uint32]time.Time // guarded by mu
}

// next returns how long such a request of uid waits. Root's do not.
func (p *pace) next(uid uint32, now time.Time) time.Duration {
	if uid == 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byUser == nil {
		p.byUser = make(map[uint32]time.Time)
	}
	due, free := p.byUser[uid], now.Add(-vainFree*vainEvery)
	if due.Before(free) {
		maps.DeleteFunc(p.byUser, func(_ uint32, due time.Time) bool { return due.Before(free) })
		due = free
	}
	due = due.Add(vainEvery)
	p.byUser[uid] = due
	return max(0, due.Sub(now))
}

// undo takes one back: a reservation was launched.
func (p *pace) undo(uid uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if due, ok := p.byUser[uid]; ok {
		p.byUser[uid] = due.Add(-vainEvery)
	}
}

// toldMax is how many connections beyond a user's limit are served, to be told so; any
// more are closed without a word.
const toldMax = 16

// counter counts what each user has, and bounds it for all but root.
type counter struct {
	most int
	all  int // bounds what all users other than root have together; 0 does not

	mu     sync.Mutex
	byUser map[uint32]int // guarded by mu
	users  int            // guarded by mu: of all but root
}

// add counts n more of uid, and returns how many there are then. It counts none, and returns
// false, where a user other than root would have more than most.
func (c *counter) add(uid uint32, n, most int) (have int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	have = c.byUser[uid] + n
	if uid != 0 && have > most {
		return have, false
	}
	c.byUser[uid] = have
	if uid != 0 {
		c.users += n
	}
	return have, true
}

// full reports whether the users other than root have more than all.
func (c *counter) full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all > 0 && c.users > c.all
}

func (c *counter) drop(uid uint32, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byUser[uid] -= n; c.byUser[uid] <= 0 {
		delete(c.byUser, uid)
	}
	if uid != 0 {
		c.users -= n
	}
}

func (c *counter) total() (all int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.byUser {
		all += n
	}
	return all
}

// clients counts the connections to noded's socket, and what comes and goes by them.
type clients struct {
	open     counter
	inFlight inFlight
}

func newClients(connections, all, requestBytes int) *clients {
	if all > 0 {
		connections = min(connections, all/2)
	}
	return &clients{
		open:     counter{most: connections, all: all, byUser: make(map[uint32]int)},
		inFlight: inFlight{counter{most: requestBytes, byUser: make(map[uint32]int)}, make(map[uint32]*turns)},
	}
}

// enter counts a connection of uid, or of unknownUsers. refusal is the answer to its requests,
// and the error that it is to be closed.
func (c *clients) enter(uid uint32) (refusal string, err error) {
	have, ok := c.open.add(uid, 1, c.open.most+toldMax)
	switch {
	case uid == 0:
		return "", nil
	case have > c.open.most && uid == unknownUsers:
		refusal = fmt.Sprintf("the uids that no name service knows have %d connections to noded, the limit of all of them (UserConnectionsMax)", c.open.most)
	case have > c.open.most:
		refusal = fmt.Sprintf("uid %d has %d connections to noded, the limit (UserConnectionsMax)", uid, c.open.most)
	case c.open.full(): // it is within the user's own limit, and there are told no more than those
		refusal = fmt.Sprintf("the users of this node have %d connections to noded, the limit of all of them (LimitNOFILE of noded.service)", c.open.all)
		c.open.drop(uid, 1)
		return "", fmt.Errorf("cannot serve another client: %s", refusal)
	}
	if !ok {
		return "", fmt.Errorf("cannot serve another client: %s", refusal)
	}
	return refusal, nil
}

// peerKey is the context key of a connection's *clientConn.
type peerKey struct{}

// clientConn is a client's connection, counted until it is closed.
type clientConn struct {
	*net.UnixConn
	peer    api.Peer
	payer   uint32 // the user for whom it counts, or unknownUsers
	refusal string // the answer to its requests, "" where they are served
	leave   func()
}

// Close closes the connection.
func (c *clientConn) Close() error {
	defer c.leave()
	return c.UnixConn.Close()
}

// whileConnected returns a context that ends with ctx, or when the client has closed its
// connection, and a function that ends the watch. net/http reports the close as well, but only
// while nothing that the client has sent behind its request lies unread. Without a connection
// in ctx, or a descriptor for the watch, it returns ctx.
func whileConnected(ctx context.Context) (connected context.Context, stop func()) {
	c, ok := ctx.Value(peerKey{}).(*clientConn)
	if !ok {
		return ctx, func() {}
	}
	f, err := c.File() // of its own in the poller, which reports each change to it as well
	if err != nil {
		return ctx, func() {}
	}
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return ctx, func() {}
	}
	connected, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if raw.Read(hungUp) == nil {
			cancel()
		}
	}()
	return connected, func() {
		_ = f.SetReadDeadline(time.Unix(0, 1)) // a socket has deadlines
		<-watched
		f.Close()
		cancel()
	}
}

// hungUp reports whether the other end of a stream socket sends no more.
func hungUp(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}

// inFlight counts the bytes of the requests and replies that are under way: a request from its
// first byte to its answer, a reply until it is written.
type inFlight struct {
	counter
	turns map[uint32]*turns // guarded by mu
}

// turns is the order in which the requests of one user make documents.
type turns struct {
	sync.Mutex
	waiting int // guarded by inFlight.mu: requests that have or want it
}

// turn returns when no other request of uid makes a document: what is not counted yet is
// one document of each user. The caller ends its turn by the function.
func (f *inFlight) turn(uid uint32) (done func()) {
	f.mu.Lock()
	t := f.turns[uid]
	if t == nil {
		t = new(turns)
		f.turns[uid] = t
	}
	t.waiting++
	f.mu.Unlock()
	t.Lock()
	return func() {
		t.Unlock()
		f.mu.Lock()
		defer f.mu.Unlock()
		if t.waiting--; t.waiting == 0 {
			delete(f.turns, uid)
		}
	}
}
