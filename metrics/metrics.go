package metrics

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	"stepd/eventlog"
	"stepd/node"
	"stepd/step"
)

var _ node.Meter = (*Metrics)(nil)

const (
	// phasesMax and pluginsMax bound the values of two labels: more than any release
	// has stages, and more than any site has plugins.
	phasesMax  = 64
	pluginsMax = 128
	other      = "other"
)

// Metrics are the counters of one noded. Make it with New.
type Metrics struct {
	registry *prometheus.Registry

	requests *prometheus.CounterVec
	answers  *prometheus.HistogramVec

	ended    *prometheus.CounterVec
	launch   prometheus.Observer
	phases   *prometheus.HistogramVec
	hooks    *prometheus.CounterVec
	hookTime *prometheus.CounterVec
	hookBad  *prometheus.CounterVec
	crashes  *prometheus.CounterVec
	kills    *prometheus.CounterVec
	ooms     prometheus.Counter
	streams  *prometheus.CounterVec
	leaks    *prometheus.CounterVec
	adopted  prometheus.Counter
	adoption prometheus.Gauge
	unread   prometheus.Counter

	// reading is held while a log is read: one at a time.
	reading sync.Mutex
	phase   names // guarded by reading
	plugin  names // guarded by reading
}

// launchBuckets and callBuckets are upper bounds in seconds: a launch takes
// milliseconds, and minutes where a prolog or a file system hangs.
var (
	launchBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	callBuckets   = []float64{.0005, .001, .0025, .005, .01, .05, .1, .5, 1, 5, 30, 300}
)

// New makes counters that stand at zero.
func New() *Metrics {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	auto := promauto.With(registry)
	counter := func(name, help string) prometheus.Counter {
		return auto.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return auto.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	histograms := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return auto.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	m := &Metrics{
		registry: registry, phase: newNames(phasesMax), plugin: newNames(pluginsMax),
		requests: counters("stepd_requests_total", "Requests that noded has answered.", "verb", "code"),
		answers:  histograms("stepd_request_seconds", "How long the answers took; of Wait and Events as long as the client waited.", callBuckets, "verb"),
		ended:    counters("stepd_steps_ended_total", "Steps of this node that have ended, by their final state.", "state"),
		launch:   histograms("stepd_launch_seconds", "From the request to the exec of the last task.", launchBuckets).WithLabelValues(),
		phases:   histograms("stepd_launch_phase_seconds", "How long the stages of launches took.", launchBuckets, "phase"),
		hooks:    counters("stepd_hook_calls_total", "Calls of SPANK hooks in steps.", "plugin", "hook"),
		hookTime: counters("stepd_hook_seconds_total", "Time that calls of SPANK hooks took.", "plugin", "hook"),
		hookBad:  counters("stepd_hook_failures_total", "Calls of SPANK hooks that returned an error, or never.", "plugin", "hook"),
		crashes:  counters("stepd_plugin_crashes_total", "Steps whose SPANK host a plugin has taken down.", "plugin"),
		kills:    counters("stepd_kills_total", "Signals that have ended the tasks of steps.", "signal"),
		ooms:     counter("stepd_oom_kills_total", "Processes of steps that the kernel has ended for want of memory."),
		streams:  counters("stepd_stream_bytes_total", "Bytes of tasks' output that stepds have carried to clients, of steps that have ended.", "stream"),
		leaks:    counters("stepd_leaks_found_total", "What was found left behind, by kind.", "kind"),
		adopted:  counter("stepd_adopted_steps_total", "Running steps that were taken over from an earlier noded."),
		adoption: auto.NewGauge(prometheus.GaugeOpts{Name: "stepd_adoption_seconds", Help: "How long this noded took at its start to find what an earlier one has left."}),
		unread:   counter("stepd_event_logs_unread_total", "Event logs that could not be read: their steps count in stepd_steps_ended_total alone."),
	}
	// What has not happened yet is 0, not absent: a rate needs a first value.
	for _, s := range []step.State{step.Completed, step.Failed, step.Cancelled, step.Timeout, step.OutOfMemory, step.NodeFail} {
		m.ended.WithLabelValues(string(s))
	}
	for _, k := range []node.LeakKind{node.LeakStep, node.LeakFile, node.LeakScript, node.LeakProcess} {
		m.leaks.WithLabelValues(string(k))
	}
	return m
}

// Request is node.Meter's.
func (m *Metrics) Request(verb, code string, took time.Duration) {
	m.requests.WithLabelValues(verb, code).Inc()
	m.answers.WithLabelValues(verb).Observe(took.Seconds())
}

// Leak is node.Meter's.
func (m *Metrics) Leak(kind node.LeakKind) { m.leaks.WithLabelValues(string(kind)).Inc() }

// Adopted is node.Meter's.
func (m *Metrics) Adopted(steps int, took time.Duration) {
	m.adopted.Add(float64(steps))
	m.adoption.Set(took.Seconds())
}

// StepEnded is node.Meter's: it counts the step, and reads its log.
func (m *Metrics) StepEnded(rec *step.Record, open func() (io.ReadCloser, error)) {
	m.ended.WithLabelValues(string(rec.State)).Inc()
	m.ooms.Add(float64(len(rec.OOM)))
	for stream, bytes := range map[string]*int64{"stdout": rec.StdoutBytes, "stderr": rec.StderrBytes} {
		if bytes != nil {
			m.streams.WithLabelValues(stream).Add(float64(*bytes))
		}
	}
	m.reading.Lock()
	defer m.reading.Unlock()
	if c := rec.PluginCrash; c != nil {
		m.crashes.WithLabelValues(m.plugin.of(base(c.Path))).Inc()
	}
	log, err := open()
	if err != nil {
		m.unread.Inc()
		return
	}
	defer log.Close()
	if err := m.read(log); err != nil {
		m.unread.Inc()
	}
}

// names bounds the values of a label: the first so many are themselves.
type names struct {
	max   int
	known map[string]bool
}

func newNames(most int) names { return names{most, map[string]bool{}} }

func (n *names) of(name string) string {
	if n.known[name] {
		return name
	}
	if len(n.known) >= n.max || name == "" {
		return other
	}
	n.known[name] = true
	return name
}

// Source is the node as it is when it is asked.
type Source interface{ Figures() node.Figures }

// Watch shows the figures of source beside the counters, as they are at each
// request. It is called once.
func (m *Metrics) Watch(source Source) { m.registry.MustRegister(now{source}) }

// now makes gauges of the node's figures when the page is read.
type now struct{ source Source }

// gauge describes one of them.
func gauge(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	descState       = gauge("stepd_node_state", "1 of the state that the node is in.", "state")
	descSteps       = gauge("stepd_steps", "Steps of this node that have not ended, by state.", "state")
	descJobs        = gauge("stepd_jobs", "Jobs that have not ended.")
	descCPUs        = gauge("stepd_cpus", "CPUs of the node.")
	descFreeCPUs    = gauge("stepd_cpus_free", "CPUs that no job has.")
	descMemory      = gauge("stepd_memory_bytes", "Memory that the node gives out, 0 where it gives out none.")
	descUsed        = gauge("stepd_memory_given_bytes", "Memory that jobs were given.")
	descGres        = gauge("stepd_gres", "Generic resources of the node.", "name", "type")
	descGresUsed    = gauge("stepd_gres_used", "Generic resources that jobs have.", "name", "type")
	descUnkillable  = gauge("stepd_unkillable_steps", "Steps of which processes are left that SIGKILL does not end.")
	descFallbacks   = gauge("stepd_fallbacks", "What the node does in a lesser way than it was asked to.")
	descConnections = gauge("stepd_connections", "Connections of clients.")
)

// Describe is prometheus.Collector's: no description makes the collector unchecked.
func (now) Describe(chan<- *prometheus.Desc) {}

// Collect is prometheus.Collector's.
func (n now) Collect(ch chan<- prometheus.Metric) {
	f := n.source.Figures()
	tell := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, s := range []string{"IDLE", "ALLOCATED", "DRAINING", "DRAINED"} {
		is := 0.0
		if s == f.State {
			is = 1
		}
		tell(descState, is, s)
	}
	for _, s := range []step.State{step.Pending, step.Starting, step.Running, step.Completing} {
		tell(descSteps, float64(f.Steps[s]), string(s))
	}
	tell(descJobs, float64(f.Jobs))
	tell(descCPUs, float64(f.CPUs))
	tell(descFreeCPUs, float64(f.FreeCPUs))
	tell(descMemory, float64(f.MemoryMB<<20))
	tell(descUsed, float64(f.UsedMB<<20))
	for _, g := range f.Gres {
		tell(descGres, float64(g.Count), g.Name, g.Type)
		tell(descGresUsed, float64(g.Used), g.Name, g.Type)
	}
	tell(descUnkillable, float64(f.Unkillable))
	tell(descFallbacks, float64(f.Fallbacks))
	tell(descConnections, float64(f.Connections))
}

const (
	// logMax bounds what is read of one step's log, in bytes: the log of a thousand
	// tasks under twenty plugins fits.
	logMax = 8 << 20
	// lineMax bounds a line. A longer one ends the reading.
	lineMax = 1 << 20
)

// read counts the events of a step's log. m.reading is held.
func (m *Metrics) read(log io.Reader) error {
	lines := bufio.NewScanner(io.LimitReader(log, logMax))
	lines.Buffer(make([]byte, 0, 64<<10), lineMax)
	var l launched
	for lines.Scan() {
		line := lines.Bytes()
		if eventlog.EachHookCall(line, m.hookCall) {
			continue
		}
		m.line(line, &l)
	}
	l.tell(m)
	if err := lines.Err(); err != nil {
		return fmt.Errorf("cannot read the event log: %w", err)
	}
	return nil
}

// launched is what a log says about the launch as a whole.
type launched struct{ asked, ran time.Time }

func (l *launched) tell(m *Metrics) {
	if !l.asked.IsZero() && l.ran.After(l.asked) {
		m.launch.Observe(l.ran.Sub(l.asked).Seconds())
	}
}

// line counts one event. Most of a log's lines are of no interest, and are not parsed.
func (m *Metrics) line(line []byte, l *launched) {
	_, rest, ok := bytes.Cut(line[:min(len(line), 96)], []byte(`"event":"`))
	if !ok {
		return
	}
	name, _, _ := bytes.Cut(rest, []byte(`"`))
	switch string(name) {
	case eventlog.EventRequest, eventlog.EventStageEnd, eventlog.EventTaskExec, eventlog.EventKill:
	default:
		return
	}
	var e eventlog.Event
	if json.Unmarshal(line, &e) != nil {
		return // the end of stepd may have cut it
	}
	switch e.Event {
	case eventlog.EventRequest:
		l.asked = e.Time
	case eventlog.EventTaskExec:
		l.ran = e.Time
	case eventlog.EventStageEnd:
		if e.DurUS != nil {
			m.phases.WithLabelValues(m.phase.of(e.Phase)).Observe(float64(*e.DurUS) / 1e6)
		}
	case eventlog.EventKill:
		m.kills.WithLabelValues(signalName(e.Signal)).Inc()
	}
}

// signalName is "SIGTERM"; stepd's own end, after which noded has killed the rest,
// has no number in the log.
func signalName(n *int) string {
	if n == nil {
		return "SIGKILL"
	}
	if name := unix.SignalName(syscall.Signal(*n)); name != "" {
		return name
	}
	return other
}

func (m *Metrics) hookCall(c eventlog.HookCall) {
	plugin, hook := m.plugin.of(base(c.Plugin)), hookName(c.Hook)
	m.hooks.WithLabelValues(plugin, hook).Inc()
	m.hookTime.WithLabelValues(plugin, hook).Add(c.Took.Seconds())
	if !c.Returned || c.RC != 0 {
		m.hookBad.WithLabelValues(plugin, hook).Inc()
	}
}

// hookName is "task_init" of "slurm_spank_task_init".
func hookName(hook string) string {
	name := strings.TrimPrefix(hook, "slurm_spank_")
	switch name {
	case "init", "init_post_opt", "local_user_init", "user_init", "task_init_privileged", "task_init", "task_post_fork", "task_exit",
		"exit", "job_prolog", "job_epilog", "slurmd_exit":
		return name
	}
	return other
}

func base(path string) string { return filepath.Base(path) }

const (
	// connsMax bounds the connections to the page, scrapesMax the requests for it that
	// are answered at a time.
	connsMax   = 256
	scrapesMax = 4
	// readMax is how long a request may take to come, writeMax how long its answer may,
	// idleMax how long a connection stays without one: connections that ask for nothing make room
	// for others soon.
	readMax  = 2 * time.Second
	writeMax = 30 * time.Second
	idleMax  = 2 * time.Second
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
		if err := s.http.Serve(netutil.LimitListener(l, connsMax)); !errors.Is(err, http.ErrServerClosed) {
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
