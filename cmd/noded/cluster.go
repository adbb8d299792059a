package main

import (
	"cmp"
	"net"
	"slices"
	"strconv"

	"github.com/sirupsen/logrus"

	"stepd/api"
	"stepd/node"
	"stepd/slurmconf"
)

// cluster is what the node is told of the others; nil where there are none. What
// is wrong with its certificate is an error: a node that nobody can reach is not
// what the site wanted.
func (s *site) cluster(log *logrus.Logger) (*node.Cluster, error) {
	if len(s.conf.Nodes) == 0 {
		return nil, nil
	}
	own := &s.conf.Stepd
	c := &node.Cluster{
		List: slurmconf.CompressHosts, Expand: expandHosts,
		Partition: s.conf.PartitionNodes, ListenAddress: own.ListenAddress, Addr: s.conf.Node.NodeAddr, StepPorts: own.StepPorts,
		KeepaliveTime: own.KeepaliveTime, KeepaliveTimeout: own.KeepaliveTimeout, NodeTimeout: own.NodeTimeout, Net: own.Net,
	}
	for _, n := range s.conf.Nodes {
		port := strconv.Itoa(cmp.Or(n.Port, s.conf.SlurmdPort))
		c.Nodes = append(c.Nodes, node.ClusterNode{Name: n.Name, Addr: net.JoinHostPort(n.NodeAddr, port)})
	}
	if own.TLSCertificate == "" {
		return c, nil
	}
	c.TLS = &api.PeerTLS{
		Certificate: own.TLSCertificate, Key: own.TLSKey, CA: own.TLSCA, Node: s.conf.Node.Name,
		Known:   func(name string) bool { return slices.Contains(s.conf.NodeNames, name) },
		Refused: func(addr string, err error) { log.Warnf("refused a node at %s: %v", addr, err) },
	}
	expired, err := c.TLS.Check()
	if err != nil {
		return nil, err
	}
	if expired != nil {
		log.Errorf("no other node will speak with this one: %v", expired)
	}
	return c, nil
}

// expandHosts reads a list that CompressHosts has written; of another one it knows
// no name.
func expandHosts(list string) []string {
	names, err := slurmconf.ExpandHosts(list)
	if err != nil {
		return nil
	}
	return names
}
