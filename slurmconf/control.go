package slurmconf

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"strconv"
	"strings"
	"time"
)

// Control is where the cluster's controllers are, and how daemons prove to them who they
// are (slurm.conf(5)). Only LoadSlurmd fills it in.
type Control struct {
	// Addrs are the controllers as HOST:PORT, the first one first (SlurmctldHost).
	Addrs []string
	// User is SlurmUser, a name or a number: root by default.
	User string
	// AuthType is "munge" by default. AuthSocket is munged's socket (AuthInfo=socket=), "" is
	// where munged has it by default.
	AuthType, AuthSocket string
	// Timeout bounds one exchange of messages: 10 s by default (MessageTimeout). Connect bounds
	// the connection before it: 2 s (TCPTimeout).
	Timeout, Connect time.Duration
	// UsePAM: a step has a PAM session.
	UsePAM bool
	// Digest is of all files that were read: another one where a file has changed.
	Digest string
}

// LoadSlurmd is LoadAs for a step daemon under slurmd: with the controllers, and with
// Slurm's defaults where noded's are others. Neither unknown keys nor wrong values are
// reported: slurmd has read the file before, and has reported them. Nothing is read of
// partitions and generic resources, nor of nodes where node is given.
func LoadSlurmd(path, hostname, node string) (*Config, error) {
	l := &loader{
		cfg: slurmdDefaults(node), mpiTypes: slurmMPITypes, hostname: hostname, nodeName: node,
		nodeSeen: map[string]statement{}, told: map[string]statement{}, control: new(controlLines),
	}
	l.probs.unread = true
	digest := sha256.New()
	l.digest = digest
	c, _, err := run(l, path)
	if err != nil {
		return nil, err
	}
	c.Control.Digest = hex.EncodeToString(digest.Sum(nil))
	return c, nil
}

func slurmdDefaults(node string) *Config {
	c := defaults(node)
	c.TaskPlugin = nil
	c.Control = Control{User: "root", AuthType: "munge", Timeout: 10 * time.Second, Connect: 2 * time.Second}
	return c
}

// controlLines are the lines that say where the controllers are.
type controlLines struct {
	hosts                                  []string // SlurmctldHost
	machine, machineAddr, backup, backAddr string   // of older files
	addr, port                             string
}

// host reads a line of one controller, HOST or HOST(ADDRESS).
func (lines *controlLines) host(s statement) { lines.hosts = append(lines.hosts, s.pairs[0].value) }

// keys are the keys of slurm.conf by which daemons find and trust each other.
func (lines *controlLines) keys(c *Control) keySet {
	return keySet{
		"controlmachine": text(&lines.machine), "controladdr": text(&lines.machineAddr),
		"backupcontroller": text(&lines.backup), "backupaddr": text(&lines.backAddr),
		"slurmctldaddr": text(&lines.addr), "slurmctldport": text(&lines.port),
		"slurmuser":      text(&c.User),
		"usepam":         boolean(&c.UsePAM),
		"authtype":       parsed(&c.AuthType, func(v string) (string, *flaw) { return bare(v, "auth/"), nil }),
		"authinfo":       parsed(&c.AuthSocket, authSocket),
		"messagetimeout": seconds(&c.Timeout), "tcptimeout": seconds(&c.Connect),
	}
}

// authSocket finds socket= in AuthInfo.
func authSocket(v string) (string, *flaw) {
	for _, word := range strings.Split(v, ",") {
		if path, ok := strings.CutPrefix(strings.TrimSpace(word), "socket="); ok {
			return path, nil
		}
	}
	return "", nil
}

// slurmctldPort is where slurmctld listens by default.
const slurmctldPort = 6817

// addrs are the controllers' addresses. Of several ports the first is enough: slurmctld
// listens on each of them.
func (lines *controlLines) addrs() (list []string) {
	first, _, _ := strings.Cut(lines.port, "-")
	port := cmp.Or(first, strconv.Itoa(slurmctldPort))
	hosts := lines.hosts
	if len(hosts) == 0 {
		for _, old := range [][2]string{{lines.machine, lines.machineAddr}, {lines.backup, lines.backAddr}} {
			if host := cmp.Or(old[1], old[0]); host != "" {
				hosts = append(hosts, host)
			}
		}
	}
	if lines.addr != "" { // one address for whichever controls
		hosts = []string{lines.addr}
	}
	for _, h := range hosts {
		name, addr, ok := strings.Cut(strings.TrimSuffix(h, ")"), "(")
		if ok && addr != "" {
			name = addr
		}
		list = append(list, net.JoinHostPort(name, port))
	}
	return list
}
