package stepnet

import (
	"cmp"
	"net"
	"time"

	"stepd/step"
)

// Config is what a stepd must know to join its step's tree.
type Config struct {
	ID     step.ID
	Self   int // node id
	Layout *step.Layout
	// Key is the private key (ECDSA P-256, PKCS #8, DER) of this node's entry in
	// the layout.
	Key []byte
	// Listener is where the children, and node 0's launcher, come in. New takes
	// it over.
	Listener net.Listener
	// InputNodes are those whose tasks read the launcher's standard input.
	InputNodes []int
	// Handler is the step on this node.
	Handler Handler
	// Watch takes a connection of one who has proved the key of the layout's Watcher, on
	// node 0. It returns when it needs it no more; it is closed then, and when the Node is.
	Watch func(conn net.Conn)
	// Log writes a line for the administrator.
	Log    func(text string)
	Limits Limits
}

// Handler is the step on this node, as the tree sees it. Its methods are called by
// the tree's own goroutines, and must not wait.
type Handler interface {
	// LauncherReady says that the launcher is there, and all nodes between.
	LauncherReady()
	// LauncherLost says that it went away before the step's end.
	LauncherLost()
	// NodeLost says that a node of the step is lost: err names it. It is said once for
	// all nodes, and once for each where the step goes on without it (Layout.NoKill).
	NodeLost(err *LostError)
	// Told is what another node told all by Node.Tell.
	Told(from int, words []byte)
	// Ordered is what the launcher told all.
	Ordered(words []byte)
}

// Limits bound what the tree waits for and holds. The zero value is the defaults.
type Limits struct {
	// FanOut is how many children a node has: 16. All nodes of a step, the
	// launcher among them, have the same.
	FanOut int
	// Connect is how long a node waits for its parent and its children: 10 minutes,
	// since another node's prolog may be running. Refused is how long it goes on
	// where nobody listens, and Launcher how long node 0 waits for that: 30 s and 60 s.
	Connect, Refused, Launcher time.Duration
	// Hurry is how long those who have not connected are waited for when the step
	// ends: 2 s.
	Hurry time.Duration
	// Handshake bounds one that has begun: 10 s.
	Handshake time.Duration
	// Silence is how long one who has connected may say nothing: 2 s.
	Silence time.Duration
	// Who bounds the question who has not come to a gathering: 2 s.
	Who time.Duration
	// Ping is how often a node that has nothing else to say says so; one that was
	// not heard for three of them is lost: 5 s.
	Ping time.Duration
	// Drain is how long, after the tasks' ends, output that does not move is kept
	// for the launcher: 60 s.
	Drain time.Duration
	// Message bounds the data of one Call, answer or word to all: 16 MiB.
	Message int
	// Gather bounds what one Allgather brings together, and GatherAll all those
	// that go on at a time: 64 MiB and four times as much.
	Gather, GatherAll int
	// Calls is how many calls of one node wait for their answers, and how many
	// are answered on one node at a time: 256.
	Calls int
}

// limitsOf are a step's: what its layout says, beneath those of a test.
func limitsOf(l Limits, layout *step.Layout) Limits {
	conf := layout.Net
	if layout.NoKill {
		l.FanOut = max(l.FanOut, len(layout.Nodes)) // no node is between two others but node 0
	}
	l.Ping, l.Drain = cmp.Or(l.Ping, conf.Keepalive), cmp.Or(l.Drain, conf.Drain)
	l.Message, l.Gather = cmp.Or(l.Message, conf.MessageBytes), cmp.Or(l.Gather, conf.GatherBytes)
	return l.withDefaults()
}

// window is what may be on its way on one hop for one channel, in bytes.
const window = 256 << 10

// chunk is the most that is read from a stream at once.
const chunk = 32 << 10

func (l Limits) withDefaults() Limits {
	l.FanOut = cmp.Or(l.FanOut, 16)
	l.Connect = cmp.Or(l.Connect, 10*time.Minute)
	l.Refused = cmp.Or(l.Refused, 30*time.Second)
	l.Launcher = cmp.Or(l.Launcher, time.Minute)
	l.Hurry = cmp.Or(l.Hurry, 2*time.Second)
	l.Handshake = cmp.Or(l.Handshake, 10*time.Second)
	l.Silence = cmp.Or(l.Silence, 2*time.Second)
	l.Who = cmp.Or(l.Who, 2*time.Second)
	l.Ping = cmp.Or(l.Ping, 5*time.Second)
	l.Drain = cmp.Or(l.Drain, time.Minute)
	l.Message = cmp.Or(l.Message, 16<<20)
	l.Gather = cmp.Or(l.Gather, 64<<20)
	l.GatherAll = cmp.Or(l.GatherAll, 4*l.Gather)
	l.Calls = cmp.Or(l.Calls, 256)
	return l
}

// frameMax bounds a frame's body: the largest that the limits allow, with what is
// around it.
func (l Limits) frameMax() int { return max(l.Message, l.Gather) + 64<<10 + 8*step.NodesMax }
