package slurmstepd

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"stepd/slurm/socket"
	"stepd/slurmconf"
)

// names are the user's of the credential, for nss_slurm.
func (d *daemon) names() socket.Names {
	cred := d.cred()
	n := socket.Names{User: cred.Name, UID: cred.UID, GID: cred.GID, Gecos: cred.Gecos, Home: cred.Dir, Shell: cred.Shell, Host: d.address}
	if len(cred.GroupNames) == len(cred.GIDs) {
		for i, name := range cred.GroupNames {
			n.Groups = append(n.Groups, socket.UserGroup{Name: name, GID: cred.GIDs[i]})
		}
	}
	return n
}

// addressPatience bounds the question for a node's address.
const addressPatience = 5 * time.Second

// address is where slurm.conf has a node of the job. A node is looked for once: any user may ask.
func (d *daemon) address(node string) (netip.Addr, bool) {
	if known, ok := d.addresses.Load(node); ok {
		return known.(netip.Addr), true
	}
	hosts, err := slurmconf.ExpandHosts(d.cred().JobHosts)
	if err != nil || !slices.Contains(hosts, node) {
		return netip.Addr{}, false
	}
	where := node
	if at, err := slurmconf.Addresses(d.conf.File, []string{node}); err == nil {
		where = at[node].Host
	}
	ctx, cancel := context.WithTimeout(context.Background(), addressPatience)
	defer cancel()
	found, err := new(net.Resolver).LookupNetIP(ctx, "ip", where)
	if err != nil || len(found) == 0 {
		return netip.Addr{}, false
	}
	addr := found[0].Unmap()
	d.addresses.Store(node, addr)
	return addr, true
}
