package slurmstepd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	fields "stepd/internal/wire"
	others "stepd/slurm/peers"
	"stepd/slurm/place"
	"stepd/slurm/rpc"
	"stepd/slurm/wire"
	"stepd/slurmconf"
	"stepd/step"
	"stepd/step/launch"
	"stepd/stepnet"
)

// group is what joins an MPI step's daemons on its nodes, nil of a step that needs no other node.
type group struct {
	*others.Group
	d *daemon
	// telling are the words to the others that MPI has ended the step here.
	telling sync.WaitGroup
	// ctx ends condemnedPatience after a command has ended the step: nothing here waits then.
	ctx    context.Context
	cancel context.CancelFunc
	once   sync.Once
}

// mailboxName is a step's in the folder of stepd in slurmd's spool, by its MPIKey. A component of a
// heterogeneous job has a link by its ID there as well, by which a sweep finds its mailbox.
func mailboxName(key string) string { return mailboxPrefix + key }

const mailboxPrefix = "peers."

// removeMailbox removes what a step's daemon has left of its mailbox, and returns the step's
// MPIKey.
func removeMailbox(dir string, id step.ID) (key string, err error) {
	key = id.Key()
	path := filepath.Join(dir, mailboxName(key))
	if leads, err := os.Readlink(path); err == nil {
		key = strings.TrimPrefix(filepath.Base(leads), mailboxPrefix)
	}
	return key, errors.Join(os.RemoveAll(path), os.RemoveAll(filepath.Join(dir, mailboxName(key))))
}

// office sends mails to the step daemons of the nodes next to this one in the step's tree.
type office struct {
	client rpc.Client
	key    string // the step's MPIKey
	self   int    // this node's place among the step's
	nodes  map[int]slurmconf.Address
}

// newOffice is nil of a step that needs no other node.
func newOffice(d *daemon) (*office, error) {
	all := d.spec.MPISpec()
	if all.Layout == nil || d.spec.MPI == "" || d.spec.MPI == "none" || d.spec.ID.Step == step.InteractiveStep {
		return nil, nil
	}
	near, err := stepnet.Neighbours(int(all.NodeID), len(all.Layout.Nodes), 0)
	if err != nil {
		return nil, err
	}
	o := &office{client: d.peers.ctld, key: all.MPIKey(), self: int(all.NodeID)}
	// A step of nodes with several releases has the oldest one's messages, which srun has.
	o.client.Release = min(d.stream.Conf.Release, cmp.Or(d.stream.ClientRelease, d.stream.Conf.Release))
	o.nodes, err = addresses(d, all.Layout, near)
	return o, err
}

// deliver has a node's slurmd bring bytes into the mailbox there.
func (o *office) deliver(ctx context.Context, node int, data []byte) error {
	at, ok := o.nodes[node]
	if !ok {
		return fmt.Errorf("cannot send to node %d of the step: it is no neighbour", node)
	}
	to := rpc.Peer{Addr: at.HostPort(), Reader: 0, Signers: []uint32{0}}
	err := o.client.Send(ctx, to, &wire.ForwardData{Address: filepath.Join(place.Dir(at.Spool), mailboxName(o.key)), Data: data})
	if refused, ok := errors.AsType[*rpc.ReturnError](err); ok && refused.Code == uint32(unix.ENOENT) {
		return fmt.Errorf("slurmd of %s has no step daemon of the step", at.Host)
	}
	return err
}

// newGroup begins to join the step's other nodes, beside the launch.
func newGroup(d *daemon) (launch.Peers, error) {
	all, post := d.spec.MPISpec(), d.office
	names := make([]string, len(all.Layout.Nodes))
	for i := range names {
		names[i] = all.Layout.Nodes[i].Name
	}
	g := &group{d: d}
	signer := d.peers.ctld.Munge
	var err error
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.Group, err = others.New(others.Config{
		Job: all.ID.Job, Step: all.ID.Step, Names: names, Self: post.self,
		Mailbox: filepath.Join(place.Dir(d.stream.Conf.Spool), mailboxName(all.MPIKey())),
		Deliver: post.deliver, Ports: d.conf.Stepd.PeerPorts,
		Host: func(node int) (string, error) { return post.nodes[node].Host, nil },
		Hide: func(ctx context.Context, data []byte) (string, error) { return signer.Encode(ctx, 0, data) },
		Reveal: func(ctx context.Context, token string) ([]byte, error) {
			cred, err := signer.Decode(ctx, token)
			if err == nil && cred.UID != 0 {
				err = fmt.Errorf("it is uid %d's", cred.UID)
			}
			return cred.Payload, err
		},
		Lost: g.lost, Log: func(line string) { d.log.Info(line) },
	})
	if err != nil {
		g.cancel()
		return nil, err
	}
	if alias := g.alias(); alias != "" {
		if err := os.Symlink(mailboxName(all.MPIKey()), alias); err != nil {
			d.log.Warn(err) // a sweep would leave the mailbox
		}
	}
	d.group = g
	g.Handle(callAborted, g.abortedElsewhere)
	return g, nil
}

// alias is the link to the mailbox, "" without one.
func (g *group) alias() string {
	if g.d.spec.AllLayout == nil {
		return ""
	}
	return filepath.Join(place.Dir(g.d.stream.Conf.Spool), mailboxName(g.d.spec.ID.Key()))
}

// close ends the links to the others, and tells them why.
func (g *group) close(ctx context.Context, why string) {
	g.Group.Close(ctx, why)
	_ = os.Remove(g.alias())
}

// addresses are the neighbours', by node id.
func addresses(d *daemon, all *step.Layout, near []int) (map[int]slurmconf.Address, error) {
	var of []string
	for _, n := range near {
		of = append(of, all.Nodes[n].Name)
	}
	found, err := addressesIn(d, of)
	byID := make(map[int]slurmconf.Address)
	for i, n := range near {
		at, ok := found[of[i]]
		if !ok {
			return nil, fmt.Errorf("cannot find where node %q of the step is: %w", of[i], err)
		}
		byID[n] = at
	}
	return byID, nil
}

// addressesIn finds nodes of the job: from the credential, where the nodes are known to the
// controller alone, else from slurm.conf.
func addressesIn(d *daemon, of []string) (map[string]slurmconf.Address, error) {
	cred := d.cred()
	found, err := slurmconf.Addresses(d.conf.File, of)
	if hosts, expand := slurmconf.ExpandHosts(cred.JobHosts); expand == nil && len(cred.NodeAddrs) == len(hosts) && len(hosts) > 0 {
		if found == nil {
			found = make(map[string]slurmconf.Address)
		}
		for _, name := range of {
			at := slices.Index(hosts, name)
			if at < 0 || !cred.NodeAddrs[at].IsValid() {
				continue
			}
			a := found[name]
			a.Host, a.Port, a.Spool = cred.NodeAddrs[at].Addr().String(), int(cred.NodeAddrs[at].Port()), cmp.Or(a.Spool, d.stream.Conf.Spool)
			found[name] = a
		}
	}
	return found, err
}

// lost ends the step for a lost node. Those next to it in the tree say so to the step's users: they
// are few.
func (g *group) lost(err *stepnet.LostError) {
	g.d.log.Error(err)
	near := err.Node == g.Parent() || slices.Contains(g.Children(), err.Node)
	select {
	case <-g.d.wired:
		g.d.st.NodeLost(err.Error(), near)
	default: // no rank runs, nor will one wait: what it asks of the others fails
	}
}

// callAborted is the call by which a node says that MPI has ended the step there.
const callAborted = "aborted"

// aborted tells the other nodes that MPI has ended the step on this one. Where they are not all
// told in time, slurmctld ends the step.
func (g *group) aborted(rank, code int, text string) {
	if g == nil {
		return
	}
	w := fields.Writer{}
	w.U32(uint32(int32(rank)))
	w.U32(uint32(int32(code)))
	w.Str(text)
	g.telling.Go(func() {
		ctx, cancel := context.WithTimeout(g.ctx, abortPatience)
		defer cancel()
		var calls sync.WaitGroup
		nodes := g.d.spec.MPISpec().Layout.Nodes
		failed := make(chan error, len(nodes))
		for node := range nodes {
			if node == g.d.office.self {
				continue
			}
			calls.Go(func() {
				_, err := g.Call(ctx, node, callAborted, w.B)
				failed <- err
			})
		}
		calls.Wait()
		close(failed)
		for err := range failed {
			if err == nil || g.ctx.Err() != nil {
				continue
			}
			g.d.log.Errorf("%v: slurmctld is asked to end the step", err)
			g.d.peers.tellController(ctx, rpc.Retry{}, &wire.CancelStep{Step: g.d.id(), Signal: uint16(unix.SIGKILL)})
			return
		}
	})
}

// abortedElsewhere answers callAborted.
func (g *group) abortedElsewhere(_ context.Context, _ int, data []byte) ([]byte, error) {
	r := fields.Reader{B: data}
	rank, code, text := int(int32(r.U32())), int(int32(r.U32())), string(r.Bytes())
	if r.Err != nil {
		return nil, r.Err
	}
	go func() {
		<-g.d.aud.running // srun would take the end of a launch for its failure
		g.d.st.AbortedElsewhere(rank, code, text)
	}()
	return nil, nil
}

// condemn says that a command ends the step.
func (g *group) condemn() {
	if g != nil {
		g.once.Do(func() { time.AfterFunc(condemnedPatience, g.cancel) })
	}
}

// condemnedPatience is how long a node waits for the others from the command on that ends the step
// there: they are ended as well, and the first that leaves would be lost to them.
const condemnedPatience = time.Second

// leave ends this node's part, when the step's end here is reported. It relays for the others
// until they need nothing more.
func (g *group) leave(ctx context.Context) {
	if g == nil {
		return
	}
	g.telling.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(g.ctx, cancel)()
	defer g.cancel()
	why := "the tasks there were not started"
	if g.d.aud.launched {
		why = "the step there was ended"
		if err := g.Finish(ctx); err != nil {
			g.d.log.Info("the step's end on its other nodes is not waited for: it was ended here")
		}
	}
	g.close(ctx, why)
}

// abandon ends this node's part of a step that does not begin.
func (g *group) abandon(why error) {
	if g == nil {
		return
	}
	defer g.cancel()
	ctx, cancel := context.WithTimeout(g.ctx, condemnedPatience)
	defer cancel()
	g.close(ctx, why.Error())
}
