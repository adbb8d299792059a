package slurmconf

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// topology is what a NodeName line says of a node's processors.
type topology struct{ boards, sockets, socketsPerBoard, cores, threads int }

// nodeLine reads one NodeName line; NodeName=DEFAULT changes what later ones
// begin with (slurm.conf(5)).
func (l *loader) nodeLine(ln line) {
	name := ln.pairs[0]
	n := l.template
	top := topology{}
	addr, host := "", ""
	for _, p := range ln.pairs[1:] {
		var err error
		switch strings.ToLower(p.key) {
		case "nodeaddr":
			addr = p.value
		case "nodehostname":
			host = p.value
		case "cpus", "procs":
			n.CPUs, err = count(p.value)
		case "realmemory":
			n.RealMemoryMB, err = strconv.ParseUint(p.value, 10, 40)
		case "tmpdisk":
			n.TmpDiskMB, err = strconv.ParseUint(p.value, 10, 40)
		case "boards":
			top.boards, err = count(p.value)
		case "sockets":
			top.sockets, err = count(p.value)
		case "socketsperboard":
			top.socketsPerBoard, err = count(p.value)
		case "corespersocket":
			top.cores, err = count(p.value)
		case "threadspercore":
			top.threads, err = count(p.value)
		case "gres":
			n.Gres = p.value
		case "feature", "features":
			n.Features = strings.Split(p.value, ",")
		}
		if err != nil {
			l.mistake(ln, p, "want a number above 0")
		}
	}
	if n.CPUs == 0 {
		n.CPUs = top.cpus()
	}
	if strings.EqualFold(name.value, "DEFAULT") {
		l.template = n
		return
	}
	if err := l.addNodes(name.value, addr, host, n); err != nil {
		l.mistake(ln, name, err.Error())
	}
}

func count(v string) (int, error) {
	n, err := strconv.Atoi(v)
	if err == nil && (n < 1 || n > 65536) {
		err = errors.New("out of range")
	}
	return n, err
}

// cpus is the product of what the line says, 0 when it says nothing.
func (t topology) cpus() int {
	if t == (topology{}) {
		return 0
	}
	sockets := t.sockets
	if sockets == 0 {
		sockets = max(1, t.socketsPerBoard) * max(1, t.boards)
	}
	return sockets * max(1, t.cores) * max(1, t.threads)
}

// addNodes adds every node that the expressions name.
func (l *loader) addNodes(names, addrs, hosts string, n Node) error {
	expanded, err := ExpandHosts(names)
	if err != nil {
		return err
	}
	addr, err := sameLength("NodeAddr", addrs, len(expanded))
	if err != nil {
		return err
	}
	host, err := sameLength("NodeHostname", hosts, len(expanded))
	if err != nil {
		return err
	}
	if len(l.conf.Nodes)+len(expanded) > hostsMax {
		return errTooManyHosts
	}
	for i, name := range expanded {
		n.Name, n.Host, n.Addr = name, name, name
		if host != nil {
			n.Host, n.Addr = host[i], host[i]
		}
		if addr != nil {
			n.Addr = addr[i]
		}
		l.conf.Nodes = append(l.conf.Nodes, n)
	}
	return nil
}

func sameLength(key, expr string, want int) ([]string, error) {
	if expr == "" {
		return nil, nil
	}
	out, err := ExpandHosts(expr)
	if err != nil {
		return nil, err
	}
	if len(out) != want {
		return nil, fmt.Errorf("%s=%s names %d hosts, NodeName %d", key, expr, len(out), want)
	}
	return out, nil
}
