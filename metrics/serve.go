package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// connsMax bounds the connections to the page, scrapesMax the requests for it that
	// are answered at a time.
	connsMax   = 32
	scrapesMax = 4
	// readMax is how long a request may take to come, writeMax how long its answer may,
	// idleMax how long a connection stays without one.
	readMax  = 5 * time.Second
	writeMax = 30 * time.Second
	idleMax  = time.Minute
	// askMax bounds the questions of /livez and /readyz.
	askMax = 2 * time.Second
)

// Ready says why the node takes no steps, a line each; none is that it does.
type Ready func(ctx context.Context) []string

// Server serves the page. Make it with Serve.
type Server struct {
	http http.Server
	wg   sync.WaitGroup
}

// Serve serves the page on l, which it closes at Close. failed is called with an error
// that ends it earlier.
func (m *Metrics) Serve(l net.Listener, ready Ready, failed func(error)) *Server {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: scrapesMax, Timeout: writeMax, Registry: m.registry}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), askMax)
		defer cancel()
		answer(w, ready(ctx))
	})
	s := &Server{http: http.Server{
		Handler: mux, ReadTimeout: readMax, WriteTimeout: writeMax + readMax, IdleTimeout: idleMax, MaxHeaderBytes: 16 << 10,
	}}
	s.wg.Go(func() {
		if err := s.http.Serve(&bounded{Listener: l, slots: make(chan struct{}, connsMax), done: make(chan struct{})}); !errors.Is(err, http.ErrServerClosed) {
			failed(fmt.Errorf("cannot serve metrics any more: %w", err))
		}
	})
	return s
}

// Close ends the page and its connections.
func (s *Server) Close() {
	_ = s.http.Close() // its listener's error says that it was closed
	s.wg.Wait()
}

// answer is "ok", or 503 with a line for each reason.
func answer(w http.ResponseWriter, why []string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	text := "ok\n"
	if len(why) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		text = strings.Join(why, "\n") + "\n"
	}
	_, _ = io.WriteString(w, text) // the client may be gone
}

// bounded takes so many connections at a time; the next ones wait.
type bounded struct {
	net.Listener
	slots chan struct{}
	done  chan struct{} // closed by Close
	once  sync.Once
}

// Close ends an Accept that waits, for whatever.
func (b *bounded) Close() error {
	b.once.Do(func() { close(b.done) })
	return b.Listener.Close()
}

// Accept waits for a slot, then for a connection.
func (b *bounded) Accept() (net.Conn, error) {
	select {
	case b.slots <- struct{}{}:
	case <-b.done:
		return nil, net.ErrClosed
	}
	c, err := b.Listener.Accept()
	if err != nil {
		<-b.slots
		return nil, err
	}
	return &slotted{Conn: c, free: sync.OnceFunc(func() { <-b.slots })}, nil
}

// slotted gives its slot back when it is closed.
type slotted struct {
	net.Conn
	free func()
}

// Close closes the connection.
func (c *slotted) Close() error {
	defer c.free()
	return c.Conn.Close()
}
