package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"stepd/node"
	"stepd/step"
)

// Source is the node as it is when it is asked.
type Source interface{ Figures() node.Figures }

// Watch shows the figures of source beside the counters, as they are at each
// request. It is called once.
func (m *Metrics) Watch(source Source) { m.registry.MustRegister(now{source}) }

// now makes gauges of the node's figures when the page is read.
type now struct{ source Source }

var (
	descState       = prometheus.NewDesc("stepd_node_state", "1 of the state that the node is in.", []string{"state"}, nil)
	descSteps       = prometheus.NewDesc("stepd_steps", "Steps of this node that have not ended, by state.", []string{"state"}, nil)
	descJobs        = prometheus.NewDesc("stepd_jobs", "Jobs that have not ended.", nil, nil)
	descCPUs        = prometheus.NewDesc("stepd_cpus", "CPUs of the node.", nil, nil)
	descFreeCPUs    = prometheus.NewDesc("stepd_cpus_free", "CPUs that no job has.", nil, nil)
	descMemory      = prometheus.NewDesc("stepd_memory_bytes", "Memory that the node gives out, 0 where it gives out none.", nil, nil)
	descUsed        = prometheus.NewDesc("stepd_memory_given_bytes", "Memory that jobs were given.", nil, nil)
	descGres        = prometheus.NewDesc("stepd_gres", "Generic resources of the node.", []string{"name", "type"}, nil)
	descGresUsed    = prometheus.NewDesc("stepd_gres_used", "Generic resources that jobs have.", []string{"name", "type"}, nil)
	descUnkillable  = prometheus.NewDesc("stepd_unkillable_steps", "Steps of which processes are left that SIGKILL does not end.", nil, nil)
	descFallbacks   = prometheus.NewDesc("stepd_fallbacks", "What the node does in a lesser way than it was asked to.", nil, nil)
	descConnections = prometheus.NewDesc("stepd_connections", "Connections of clients.", nil, nil)
)

// Describe is prometheus.Collector's.
func (now) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descState, descSteps, descJobs, descCPUs, descFreeCPUs, descMemory, descUsed, descGres, descGresUsed, descUnkillable, descFallbacks, descConnections} {
		ch <- d
	}
}

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
