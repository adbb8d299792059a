package slurmconf

import (
	"maps"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"stepd/step"
)

// Stepd is stepd.conf: our own keys, in a file of their own because a real
// slurmd stops at keys that it does not know.
type Stepd struct {
	// HookTimeout bounds each call of a SPANK hook; 0, the default, is no bound.
	HookTimeout time.Duration
	// SpankAllowReleases are further releases of plugins to accept: "20.11",
	// or "any".
	SpankAllowReleases []string
	// QuarantineAfter crashes in a row a plugin is left out; 0, the default, is
	// never.
	QuarantineAfter int
	// SpankStrict makes the failure of a required plugin's hook fail the step
	// where Slurm lets it succeed.
	SpankStrict bool
	// NoNewPrivs sets no_new_privs for every task.
	NoNewPrivs bool
	// RequireSafePlugins refuses plugins and plugstack files that somebody
	// other than root may change.
	RequireSafePlugins bool
	// MetricsListen is the address of the metrics page: "IP:PORT", or "unix" for a
	// socket in the run directory; "", the default, is none.
	MetricsListen string
	// UserStepsMax, UserConnectionsMax, UserRequestBytes and UserReplayBytes bound what
	// one user other than root has of the node; 0, the default, is noded's.
	UserStepsMax, UserConnectionsMax, UserRequestBytes int
	UserReplayBytes                                    int64
	// SpoolTimeout is how long the spool may take to answer before noded refuses what
	// needs it. Default 20 s.
	SpoolTimeout time.Duration
	// KeepSteps ended steps stay visible whatever their age. Default 1000.
	KeepSteps int
	// ReplayBytes of output are kept for those who attach later; 0, the
	// default, is none.
	ReplayBytes int64
	// SpawnStepsMax bounds the steps of a job that its MPI programs have spawned and
	// that run; 0, the default, is noded's 128.
	SpawnStepsMax int
	// PublishedNamesMax bounds the names that the MPI programs of a job have
	// published; 0, the default, is noded's 1024.
	PublishedNamesMax int
	// PMI2 bounds what ranks may ask by PMI-1 and PMI-2; zero fields are pmi2's
	// defaults.
	PMI2 step.PMI2Conf

	// TLSCertificate, TLSKey and TLSCA are PEM files, absolute, all of them or none:
	// what this node shows the other ones, and whom it believes. "", the default:
	// no other node is served or asked.
	TLSCertificate, TLSKey, TLSCA string
	// ListenAddress is the address at which other nodes are served; "", the
	// default, is every one. The port is NodePort's.
	ListenAddress string
	// StepPorts are the ports of steps' own connections between nodes, the first
	// and the last; zero, the default, is any free one.
	StepPorts [2]int
	// KeepaliveTime is how often a silent connection to another node is tried,
	// default 10 s; KeepaliveTimeout how long the answer may take, default 5 s.
	// NodeTimeout is how long a noded that does not answer is asked again before its
	// node is lost for the steps that it has part in; default 60 s.
	KeepaliveTime, KeepaliveTimeout, NodeTimeout time.Duration
	// Net bounds what the stepds of a step of several nodes wait for and hold; zero
	// fields are stepnet's defaults.
	Net step.NetConf
}

// keys are those of a file in dir.
func (s *Stepd) keys(dir string) keySet {
	keys := keySet{
		"hooktimeout":        seconds(&s.HookTimeout),
		"spankallowreleases": releases(&s.SpankAllowReleases),
		"quarantineafter":    count(&s.QuarantineAfter, 0, 1000),
		"spankstrict":        boolean(&s.SpankStrict),
		"nonewprivs":         boolean(&s.NoNewPrivs),
		"requiresafeplugins": boolean(&s.RequireSafePlugins),
		"metricslisten":      listenAt(&s.MetricsListen),
		"userstepsmax":       count(&s.UserStepsMax, 1, 1_000_000),
		"userconnectionsmax": count(&s.UserConnectionsMax, 8, 1_000_000),
		"userrequestbytes":   count(&s.UserRequestBytes, 1<<20, 1<<40),
		"userreplaybytes":    count(&s.UserReplayBytes, 1<<16, 1<<40),
		"keepsteps":          count(&s.KeepSteps, 0, 1_000_000),
		"spooltimeout":       secondsFrom1(&s.SpoolTimeout),
		"spawnstepsmax":      count(&s.SpawnStepsMax, 1, 65533),
		"publishednamesmax":  count(&s.PublishedNamesMax, 1, 1_000_000),
		"replaybytes":        count(&s.ReplayBytes, 0, 1<<30),
		"tlscertificate":     beside(&s.TLSCertificate, dir),
		"tlskey":             beside(&s.TLSKey, dir),
		"tlsca":              beside(&s.TLSCA, dir),
		"listenaddress":      address(&s.ListenAddress),
		"stepports":          portRange(&s.StepPorts),
		"keepalivetime":      secondsFrom(&s.KeepaliveTime, keepaliveMin),
		"keepalivetimeout":   secondsFrom1(&s.KeepaliveTimeout),
		"nodetimeout":        secondsFrom1(&s.NodeTimeout),
		"stepkeepalive":      secondsFrom1(&s.Net.Keepalive),
		"stepdraintimeout":   secondsFrom1(&s.Net.Drain),
		"stepgatherbytes":    count(&s.Net.GatherBytes, 1<<16, 1<<30),
		"stepmessagebytes":   count(&s.Net.MessageBytes, 1<<16, 1<<30),
	}
	maps.Copy(keys, pmi2Keys(&s.PMI2))
	return keys
}

// keepaliveMin is gRPC's lowest KeepaliveTime, in seconds.
const keepaliveMin = 10

// address takes an IP address without a port.
func address(field *string) setter {
	return func(v string) *flaw {
		if _, err := netip.ParseAddr(v); err != nil {
			return wrong("write an address such as 10.1.0.7", "not an IP address")
		}
		*field = v
		return nil
	}
}

// listenAt takes "127.0.0.1:9817", or "unix".
func listenAt(field *string) setter {
	return func(v string) *flaw {
		const remedy = "write an address and a port such as 127.0.0.1:9817, or unix"
		if strings.EqualFold(v, "unix") {
			*field = "unix"
			return nil
		}
		a, err := netip.ParseAddrPort(v)
		if err != nil || a.Port() == 0 {
			return wrong(remedy, "not an IP address with a port")
		}
		*field = a.String()
		if !a.Addr().IsLoopback() {
			return &flaw{SeverityWarning, "everybody who reaches this address may read the page", "write 127.0.0.1 or ::1, or keep others away by a firewall"}
		}
		return nil
	}
}

// portRange takes "60001-63000".
func portRange(field *[2]int) setter {
	const remedy = "write FIRST-LAST, such as 60001-63000"
	return func(v string) *flaw {
		var ports [2]int
		from, to, ok := strings.Cut(v, "-")
		if !ok {
			return wrong(remedy, "not a range")
		}
		for i, text := range []string{from, to} {
			if f := count(&ports[i], 1, portMax)(text); f != nil {
				return wrong(remedy, "%s", f.why)
			}
		}
		if ports[0] > ports[1] {
			return wrong(remedy, "it is empty")
		}
		*field = ports
		return nil
	}
}

func releases(field *[]string) setter {
	release := regexp.MustCompile(`^([0-9]{2}\.[0-9]{2}|any)$`)
	return func(v string) *flaw {
		out := words(v)
		for _, w := range out {
			if !release.MatchString(w) {
				return wrong("write releases such as 20.11,27.02, or any", "%q is no release", w)
			}
		}
		*field = out
		return nil
	}
}
