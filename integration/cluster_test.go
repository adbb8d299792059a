package integration

import (
	"cmp"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"stepd/internal/testkit"
)

// cluster is several nodes, each in a network namespace of its own: n1, n2, … at
// 10.213.77.1, .2, …, joined by a bridge in one more namespace. Tests of a cluster run
// beside each other, but for those whose MPI library makes files in /dev/shm that it
// names by the host: these must not be parallel.
type cluster struct {
	dir   string // below workRoot: slurm.conf, stepd.conf, tls/
	nodes []*node
	names []string // of the network namespaces; the last one is the bridge's
}

// clusters counts them: the namespaces of each have names of their own.
var clusters atomic.Int32

// clusterSite is what a test writes down before it starts a cluster. Stepd is
// added to what the harness writes into each node's stepd.conf.
type clusterSite struct {
	site
	// CPUs of each node, default 4.
	CPUs int
	// Timeout is NodeTimeout, default 4 s.
	Timeout int
	// Without are the certificates: no other node is served.
	Without bool
	// Tamper is called when all files are there, before any noded was started.
	Tamper func(c *cluster)
}

// addr is the address of node i, from 0.
func (c *cluster) addr(i int) string { return fmt.Sprintf("10.213.77.%d", i+1) }

// startCluster starts n nodes. When the test ends they get SIGTERM, and nothing
// of them may be left.
func startCluster(t *testing.T, n int, s clusterSite) *cluster {
	t.Helper()
	testkit.RequireRoot(t)
	noded := binary(t, "noded")
	user := testUser(t)
	dir, err := os.MkdirTemp(workRoot, "stepd-cl-")
	must(t, err)
	t.Cleanup(func() {
		if !t.Failed() || os.Getenv("KEEP") == "" {
			os.RemoveAll(dir)
		}
	})
	must(t, os.Chmod(dir, 0o755))
	c := &cluster{dir: dir}
	if s.CPUs == 0 {
		s.CPUs = 4
	}
	var lines strings.Builder
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("n%d", i+1))
		fmt.Fprintf(&lines, "NodeName=n%d NodeAddr=%s CPUs=%d\n", i+1, c.addr(i), s.CPUs)
	}
	out, err := exec.Command(noded, append([]string{"--bootstrap-ca", filepath.Join(dir, "tls")}, names...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("noded --bootstrap-ca: %v: %s", err, out)
	}
	c.network(t, n)
	for i, name := range names {
		m := &node{dir: filepath.Join(dir, name), bin: binary(t, "stepctl"), netns: c.names[i], name: name}
		m.wd, m.run = filepath.Join(dir, "wd"), m.path("run")
		must(t, os.Mkdir(m.dir, 0o755))
		for _, d := range []string{m.wd, m.path("home")} {
			must(t, os.MkdirAll(d, 0o755))
			must(t, os.Chown(d, int(user.uid), int(user.gid)))
		}
		// A name of its own, as a host has: Open MPI names its shared memory by it, in the
		// one /dev/shm that the nodes have here.
		m.before = append(inNetwork(c.names[i]), "unshare", "--uts", "sh", "-c", `hostname "$0" && exec "$@"`, name)
		m.before = append(m.before, s.Before...)
		m.write(t, "slurm.conf", "ClusterName=golden\n"+lines.String()+s.Node+"\nPartitionName=p Nodes=ALL Default=YES\n"+s.Slurm)
		tls := ""
		if !s.Without {
			tls = fmt.Sprintf("TLSCertificate=%s/tls/%s.pem\nTLSKey=%s/tls/%s.key\nTLSCA=%s/tls/ca.pem\n", dir, name, dir, name, dir)
		}
		// A cut line is to be noticed while a test waits.
		m.write(t, "stepd.conf", tls+fmt.Sprintf("KeepaliveTimeout=2\nNodeTimeout=%d\n", cmp.Or(s.Timeout, 4))+s.Stepd)
		for file, text := range map[string]string{"plugstack.conf": s.Plugstack, "cgroup.conf": s.Cgroup} {
			if text != "" {
				m.write(t, file, text)
			}
		}
		c.nodes = append(c.nodes, m)
	}
	if s.Tamper != nil {
		s.Tamper(c)
	}
	for _, m := range c.nodes {
		m.boot(t)
		t.Cleanup(func() { m.shutdown(t) })
	}
	return c
}

// network makes the namespaces, and takes them away when the test ends.
func (c *cluster) network(t *testing.T, n int) {
	t.Helper()
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	if _, err := exec.LookPath("ip"); err != nil {
		missing(t, "ip(8) is not installed (Debian: iproute2)")
	}
	id := clusters.Add(1)
	for i := range n + 1 {
		c.names = append(c.names, fmt.Sprintf("stepd-%d-%d-%d", os.Getpid(), id, i+1))
	}
	t.Cleanup(func() {
		for _, name := range c.names {
			// One that was never made is no matter.
			_ = exec.Command("ip", "netns", "del", name).Run()
		}
	})
	bridge := c.names[n]
	for _, name := range c.names {
		_ = exec.Command("ip", "netns", "del", name).Run() // of a test that was killed
		ip("netns", "add", name)
		ip("-n", name, "link", "set", "lo", "up")
	}
	ip("-n", bridge, "link", "add", "br0", "type", "bridge")
	ip("-n", bridge, "link", "set", "br0", "up")
	for i := range n {
		port := fmt.Sprintf("p%d", i+1)
		ip("-n", bridge, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", c.names[i])
		ip("-n", bridge, "link", "set", port, "master", "br0", "up")
		ip("-n", c.names[i], "addr", "add", c.addr(i)+"/24", "dev", "eth0")
		ip("-n", c.names[i], "link", "set", "eth0", "up")
	}
}

// cut takes node i (from 0) off the network, as a pulled cable does; join puts it
// back.
func (c *cluster) cut(t testing.TB, i int)  { c.link(t, i, "down") }
func (c *cluster) join(t testing.TB, i int) { c.link(t, i, "up") }

func (c *cluster) link(t testing.TB, i int, state string) {
	t.Helper()
	bridge := c.names[len(c.names)-1]
	if out, err := exec.Command("ip", "-n", bridge, "link", "set", fmt.Sprintf("p%d", i+1), state).CombinedOutput(); err != nil {
		t.Fatalf("ip link set %s: %v: %s", state, err, out)
	}
}

// inNetwork is what a command is run by to be in a network namespace, and in all
// else where the test is: "ip netns exec" would give it another /sys.
func inNetwork(netns string) []string { return []string{"nsenter", "--net=/run/netns/" + netns, "--"} }

// settled waits until no step is left on any node, nor its stepd, which ends after it.
func (c *cluster) settled(t testing.TB) {
	t.Helper()
	eventually(t, callTimeout, "the end of all steps", func() error {
		for _, n := range c.nodes {
			if n.exited() {
				continue
			}
			if steps := n.ps(t); len(steps) > 0 {
				return fmt.Errorf("%s still has step %s, %s", n.name, steps[0].id(), steps[0].State)
			}
			for _, p := range n.processes() {
				if p.comm == "stepd" {
					return fmt.Errorf("%s still has %s", n.name, p)
				}
			}
		}
		return nil
	})
}

// free waits until no node has a job.
func (c *cluster) free(t testing.TB) {
	t.Helper()
	for _, n := range c.nodes {
		n.idle(t)
	}
}

// TestRootClusterNetwork: the harness's own nodes reach each other, and a cut one
// does not.
func TestRootClusterNetwork(t *testing.T) {
	waits(t)
	c := startCluster(t, 2, clusterSite{})
	reach := func() error {
		words := append(inNetwork(c.names[0]), "timeout", "2", "bash", "-c", "exec 3<>/dev/tcp/"+c.addr(1)+"/6818")
		out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
		if err != nil {
			return errors.New(string(out) + err.Error())
		}
		return nil
	}
	eventually(t, callTimeout, "n2 to be reached", reach)
	c.cut(t, 1)
	if err := reach(); err == nil {
		t.Error("n1 reaches n2, which was cut off")
	}
	c.join(t, 1)
	eventually(t, callTimeout, "n2 to be reached again", reach) // ARP may have to ask once more
}

// expire replaces a node's certificate by one of the same CA whose time is over.
func expire(t *testing.T, dir, name string) {
	t.Helper()
	read := func(file string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, file))
		must(t, err)
		block, _ := pem.Decode(b)
		return block.Bytes
	}
	ca, err := x509.ParseCertificate(read("ca.pem"))
	must(t, err)
	caKey, err := x509.ParsePKCS8PrivateKey(read("ca.key"))
	must(t, err)
	cert, err := x509.ParseCertificate(read(name + ".pem"))
	must(t, err)
	cert.NotBefore, cert.NotAfter = time.Now().Add(-30*time.Minute), time.Now().Add(-time.Minute)
	der, err := x509.CreateCertificate(rand.Reader, cert, ca, cert.PublicKey, caKey)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
}
