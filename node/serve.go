package node

import (
	"context"
	"errors"
	"fmt"
	stdlog "log"
	"maps"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/api"
	"stepd/internal/printable"
)

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

// Server serves noded's API, JSON by HTTP/1.1 on a unix socket (docs/api.md). Make it with
// Node.Server.
type Server struct {
	n     *Node
	verbs map[string]verb
	http  *http.Server
	// peerOf and replyTime are api.PeerOf and the constant; tests have others.
	peerOf    func(*net.UnixConn) (api.Peer, error)
	replyTime time.Duration
}

// verb answers one request.
type verb func(c *call) error

// Server returns the server of the node's requests, for the listener of Listen.
func (n *Node) Server() *Server {
	s := &Server{n: n, verbs: (&service{n: n}).verbs(), peerOf: api.PeerOf, replyTime: replyTime}
	s.http = &http.Server{
		Handler: s, MaxHeaderBytes: headMax, ReadHeaderTimeout: headTime, IdleTimeout: idleTime,
		DisableGeneralOptionsHandler: true,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, c.(*clientConn))
		},
		ErrorLog: stdlog.New(httpLog{n.log}, "", 0),
	}
	return s
}

// Serve answers the requests that come by the listener until Shutdown, or an error of the
// listener's.
func (s *Server) Serve(l net.Listener) error {
	err := s.http.Serve(&clientListener{Listener: l, clients: s.n.clients, peerOf: s.peerOf, refused: s.turnedAway})
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
func (s *Server) Verbs() []string { return slices.Sorted(maps.Keys(s.verbs)) }

// peerKey is the context key of a connection's *clientConn.
type peerKey struct{}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &call{s: s, w: w, r: r, ctx: r.Context(), control: http.NewResponseController(w)}
	conn, ok := r.Context().Value(peerKey{}).(*clientConn)
	if !ok {
		c.refuse(api.NewError(api.Unauthenticated, "internal error: a request without a peer"))
		return
	}
	c.peer, c.ctx = conn.peer, withPeer(r.Context(), conn.peer)
	if r.Method == "PRI" { // the preface of HTTP/2 (RFC 9113, 3.4)
		s.refuseHTTP2(c)
		return
	}
	name, serve, err := s.verbOf(r)
	if err == nil && conn.refusal != "" {
		err = api.NewError(api.ResourceExhausted, conn.refusal)
	}
	if err != nil {
		c.refuse(err)
		return
	}
	s.answer(c, name, serve)
}

// answer serves a known verb. A mistake in one request must not end the daemon that all
// steps depend on.
func (s *Server) answer(c *call, name string, serve verb) {
	var err error
	defer func(begin time.Time) { s.n.cfg.Meter.Request(name, string(api.CodeOf(err)), time.Since(begin)) }(time.Now())
	defer func() {
		if p := recover(); p != nil {
			s.n.log.Errorf("internal error: %s: %v\n%s", name, p, debug.Stack())
			err = api.Errorf(api.Internal, "internal error: %v", p)
		}
		defer c.uncount(&c.counted) // finish may panic
		c.finish(name, err)
	}()
	if err = c.count(callBytes, &c.counted); err == nil {
		err = serve(c)
	}
}

// verbOf finds the verb of a request, and refuses other versions of the API.
func (s *Server) verbOf(r *http.Request) (string, verb, error) {
	version, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if v := r.Header.Get(api.VersionHeader); v != "" && v != strconv.Itoa(api.Schema) || version != "v"+strconv.Itoa(api.Schema) {
		who := r.UserAgent()
		if who == "" {
			who = "the client"
		}
		if v == "" {
			v = strings.TrimPrefix(version, "v")
		}
		return "", nil, api.Errorf(api.FailedPrecondition, "noded is %s and speaks version %d of its API, %.80q speaks version %.20q: use the programs of one release", s.n.version(), api.Schema, who, v)
	}
	serve := s.verbs[name]
	switch {
	case serve == nil:
		return "", nil, api.Errorf(api.Unimplemented, "noded %s has no request %.40q: it has %s", s.n.version(), name, strings.Join(s.Verbs(), ", "))
	case r.Method != http.MethodPost:
		return "", nil, api.Errorf(api.InvalidArgument, "the method is %.20q: want POST", r.Method)
	}
	return name, serve, nil
}

// version is noded's, for people.
func (n *Node) version() string {
	if n.cfg.Version == "" {
		return "of an unknown release"
	}
	return n.cfg.Version
}

// turnedAway logs that a connection is closed without a word.
func (s *Server) turnedAway(p api.Peer, err error) {
	s.n.logRefused(p.UID, fmt.Sprintf("connection closed: %v", err))
}

// httpLog is where net/http writes what is wrong with a connection: its client's affair.
type httpLog struct{ *logrus.Logger }

func (l httpLog) Write(b []byte) (int, error) {
	l.Debug(printable.Line(strings.TrimSpace(string(b)), 400))
	return len(b), nil
}
