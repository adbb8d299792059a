// Package serve is noded's API (docs/api.md): JSON by HTTP/1.1 on a unix socket. It reads
// requests, decides which client may do what, bounds what each user has under way, and writes
// the replies.
//
// It does not start, end or follow steps: a Backend does, which is package node's Node. Which
// user a new step belongs to, and who may launch a reservation, is the Backend's to decide.
//
// Begin with the table in calls.go: a request goes through ServeHTTP to its row there, and to
// the Backend. call.go reads and writes documents, clients.go counts connections and bytes.
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

	"stepd/api"
	"stepd/internal/printable"
	"stepd/step"
)

// Launcher makes steps and jobs for a client. It decides which user they belong to. The errors
// of all of a Backend's methods are api.Errors.
type Launcher interface {
	Run(context.Context, api.Peer, *api.RunRequest) (*api.RunReply, error)
	DryRun(context.Context, api.Peer, *api.RunRequest) (*api.DryRunReply, error)
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
	// List returns the steps that have not ended, with all the ended ones as well.
	List(all bool) []step.ID
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
	Signal(ctx context.Context, ref api.StepRef, signal int, scope string) error
	Cancel(ctx context.Context, ref api.StepRef, reason string) error
	Suspend(ctx context.Context, ref api.StepRef, by uint32) error
	Unsuspend(ctx context.Context, ref api.StepRef, by uint32) error
	// Release ends a job of Alloc's, and waits until nothing is left of it.
	Release(ctx context.Context, job uint32) error
}

// Machine is the node as a whole.
type Machine interface {
	Status(context.Context) api.Node
	ClientConfig() *api.ConfigReply
	Drain(reason string) error
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
	// Request is one request that was answered with code after dur.
	Request(verb, code string, dur time.Duration)
}

// Config is what a Server needs beside its Backend.
type Config struct {
	// Version is the program's, for clients of other releases; "" is not known.
	Version string
	// Connections bounds a user's connections, RequestBytes the bytes of a user's requests
	// and replies that are under way. Neither bounds root.
	Connections, RequestBytes int
	Meter                     Meter
	Log                       *logrus.Logger
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
)

// Server serves the API. Make it with New.
type Server struct {
	Config
	node     Backend
	table    map[string]verb
	http     *http.Server
	clients  *clients
	refusals refusals
	// replyTime is the constant; tests have another.
	replyTime time.Duration
}

// New returns the server of the backend's requests.
func New(b Backend, c Config) *Server {
	if c.PeerOf == nil {
		c.PeerOf = api.PeerOf
	}
	c.Version = cmp.Or(c.Version, "of an unknown release")
	s := &Server{Config: c, node: b, clients: newClients(c.Connections, c.RequestBytes), replyTime: replyTime}
	s.table = s.verbs()
	s.http = &http.Server{
		Handler: s, MaxHeaderBytes: headMax, ReadHeaderTimeout: headTime, IdleTimeout: idleTime,
		DisableGeneralOptionsHandler: true,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, c.(*clientConn))
		},
		ErrorLog: stdlog.New(httpLog{c.Log}, "", 0),
	}
	return s
}

// Serve answers the requests that come by the listener until Shutdown, or an error of the
// listener's.
func (s *Server) Serve(l net.Listener) error {
	err := s.http.Serve(&clientListener{l, s})
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

// logRefused logs a line about a user's requests, unless the user has caused too many.
func (s *Server) logRefused(uid uint32, format string, args ...any) {
	ok, silent := s.refusals.tell(uid, time.Now())
	if !ok {
		return
	}
	log := s.Log.WithField("uid", uid)
	if silent > 0 {
		log.Infof("%d further requests were refused, and not told here", silent)
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
	// and then one in each refusalEvery: a user must not fill root's disk.
	refusalBurst = 20
	refusalEvery = time.Second
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
