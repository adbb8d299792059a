package slurmconf

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// Address is where a node's slurmd is, as slurm.conf says.
type Address struct {
	// Host is NodeAddr, a name or an address.
	Host string
	Port int
	// Spool is SlurmdSpoolDir as it is on that node.
	Spool string
}

// HostPort is "HOST:PORT".
func (a Address) HostPort() string { return net.JoinHostPort(a.Host, strconv.Itoa(a.Port)) }

// slurmdPort and slurmdSpool are the defaults of SlurmdPort and SlurmdSpoolDir.
const (
	slurmdPort  = 6818
	slurmdSpool = "/var/spool/slurmd"
)

// Addresses finds nodes in slurm.conf at path. The error names a node that it does not have.
func Addresses(path string, nodes []string) (map[string]Address, error) {
	lines, err := statements(path)
	if err != nil {
		return nil, err
	}
	port, spool := strconv.Itoa(slurmdPort), slurmdSpool
	for _, s := range lines {
		switch first := s.pairs[0]; {
		case first.is("SlurmdPort"):
			port = first.value
		case first.is("SlurmdSpoolDir"):
			spool = first.value
		}
	}
	found := make(map[string]Address, len(nodes))
	var defaultPort string
	for _, s := range lines {
		if !s.pairs[0].is("NodeName") {
			continue
		}
		if strings.EqualFold(s.pairs[0].value, "DEFAULT") {
			defaultPort = cmp.Or(s.value("Port"), defaultPort)
			continue
		}
		line := addressLine{s, cmp.Or(s.value("Port"), defaultPort, port), spool}
		if err := line.find(nodes, found); err != nil {
			return nil, fmt.Errorf("cannot find nodes in %s:%d: %w", s.file, s.line, err)
		}
	}
	for _, name := range nodes {
		if _, ok := found[name]; !ok {
			return nil, fmt.Errorf("cannot find node %q in %s", name, path)
		}
	}
	return found, nil
}

// value is a key's in a line, "" without it.
func (s statement) value(key string) string {
	for _, p := range s.pairs {
		if p.is(key) {
			return p.value
		}
	}
	return ""
}

// addressLine is a NodeName line.
type addressLine struct {
	statement
	ports, spool string
}

// find adds the nodes that the line has.
func (l addressLine) find(nodes []string, found map[string]Address) error {
	names, err := ExpandHosts(l.pairs[0].value)
	if err != nil || !slices.ContainsFunc(names, func(n string) bool { return slices.Contains(nodes, n) }) {
		return err
	}
	lists := [3][]string{}
	for i, list := range []string{l.value("NodeHostname"), l.value("NodeAddr"), l.ports} {
		if lists[i], err = ExpandHosts(list); err != nil {
			return err
		}
	}
	// at is a list's entry of a node: the list has one for each, one for all, or none.
	at := func(list []string, i int) string {
		switch {
		case len(list) == 1:
			return list[0]
		case i < len(list):
			return list[i]
		}
		return ""
	}
	for i, name := range names {
		if !slices.Contains(nodes, name) {
			continue
		}
		host := cmp.Or(at(lists[0], i), name)
		port, err := strconv.ParseUint(at(lists[2], i), 10, 16)
		if err != nil || port == 0 {
			return fmt.Errorf("%q are no ports of %d nodes", l.ports, len(names))
		}
		found[name] = Address{
			Host: cmp.Or(at(lists[1], i), host), Port: int(port),
			Spool: strings.NewReplacer("%h", host, "%n", name).Replace(l.spool),
		}
	}
	return nil
}
