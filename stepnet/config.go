package stepnet

import (
	"cmp"
	"net"
	"time"

	"stepd/step"
)

// Config is what a stepd must know to join its step's tree.
type Config struct {
	// Names are the step's nodes by node id, and Self is this one's id.
	Names []string
	Self  int
	// Up is the connection to the parent, nil of node 0; Down are those to the children by
	// node id (Children). New takes them over.
	Up   net.Conn
	Down map[int]net.Conn
	// Lost is called once when a node of the step is lost: then the tree does not hold any
	// more. It must not wait, and may be nil.
	Lost func(err *LostError)
	// Log writes a line for the administrator; it may be nil.
	Log    func(text string)
	Limits Limits
}

// Limits bound what the tree waits for and holds. The zero value is the defaults.
type Limits struct {
	// FanOut is how many children a node has: 16. All nodes of a step have the same.
	FanOut int
	// Who bounds the question who has not come to a gathering: 2 s.
	Who time.Duration
	// Ping is how often a node that has nothing else to say says so; one that was
	// not heard for three of them is lost: 5 s.
	Ping time.Duration
	// Message bounds the data of one Call, and of its answer: 16 MiB.
	Message int
	// Gather bounds what one Allgather brings together, and GatherAll all those
	// that go on at a time: 64 MiB and four times as much.
	Gather, GatherAll int
	// Calls is how many calls of one node wait for their answers: 256.
	Calls int
}

func (l Limits) withDefaults() Limits {
	l.FanOut = cmp.Or(l.FanOut, 16)
	l.Who = cmp.Or(l.Who, 2*time.Second)
	l.Ping = cmp.Or(l.Ping, 5*time.Second)
	l.Message = cmp.Or(l.Message, 16<<20)
	l.Gather = cmp.Or(l.Gather, 64<<20)
	l.GatherAll = cmp.Or(l.GatherAll, 4*l.Gather)
	l.Calls = cmp.Or(l.Calls, 256)
	return l
}

// frameMax bounds a frame's body: the largest that the limits allow, with what is
// around it.
func (l Limits) frameMax() int { return max(l.Message, l.Gather) + 64<<10 + 8*step.NodesMax }
