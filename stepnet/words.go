package stepnet

import (
	"fmt"
	"sync"
	"time"
)

const (
	// wordsMax bounds one piece of words for the launcher.
	wordsMax = 64 << 10
	// linesMax bounds the lines that wait for a launcher; more are dropped.
	linesMax = 1024
	// linePatience is how long a burst of lines waits for room, once.
	linePatience = time.Second
)

// words are what this node has to say to the launcher.
type words struct {
	wordsMu   sync.Mutex
	said      []said // guarded by wordsMu
	sending   bool   // guarded by wordsMu: one is between the queue and the link
	noMore    bool   // guarded by wordsMu
	impatient bool   // guarded by wordsMu: room was waited for in vain
	wordsWake chan struct{}
	silence   *sync.Cond // nothing is left to be sent
	slots     chan struct{}
}

type said struct {
	f    frame
	line bool // it holds a slot
}

func (w *words) init() {
	w.wordsWake = make(chan struct{}, 1)
	w.slots = make(chan struct{}, linesMax) // a place for each line that waits
	w.silence = sync.NewCond(&w.wordsMu)
}

// TellLauncher sends words to the launcher, after all that was sent to it
// before. It does not wait.
func (n *Node) TellLauncher(words []byte) error {
	if len(words) > wordsMax {
		return fmt.Errorf("cannot tell the launcher %d bytes: at most %d", len(words), wordsMax)
	}
	n.say(said{f: wordsFrame(kindRecord, n.self, words)})
	return nil
}

// TellLine is TellLauncher for what may be dropped where the launcher does not
// keep up: it may wait for a second, and false says that it was dropped.
func (n *Node) TellLine(words []byte) bool {
	if len(words) > wordsMax || !n.slot() {
		return false
	}
	n.say(said{wordsFrame(kindRecord, n.self, words), true})
	return true
}

func (n *Node) slot() bool {
	n.wordsMu.Lock()
	impatient := n.impatient
	n.wordsMu.Unlock()
	select {
	case n.slots <- struct{}{}:
		n.setImpatient(false)
		return true
	default:
	}
	if impatient {
		return false
	}
	t := time.NewTimer(linePatience)
	defer t.Stop()
	select {
	case n.slots <- struct{}{}:
		return true
	case <-n.ctx.Done():
	case <-t.C:
		n.setImpatient(true)
	}
	return false
}

func (w *words) setImpatient(to bool) {
	w.wordsMu.Lock()
	w.impatient = to
	w.wordsMu.Unlock()
}

func (w *words) say(s said) {
	w.wordsMu.Lock()
	defer w.wordsMu.Unlock()
	w.said = append(w.said, s)
	w.nudgeWords()
}

func (w *words) nudgeWords() {
	select {
	case w.wordsWake <- struct{}{}:
	default:
	}
}

// tellRecords sends words when there is room for them.
func (n *Node) tellRecords() {
	for {
		n.wordsMu.Lock()
		if len(n.said) == 0 {
			n.sending = false
			n.silence.Broadcast()
			end := n.noMore
			n.wordsMu.Unlock()
			if end {
				return
			}
			<-n.wordsWake
			continue
		}
		s := n.said[0]
		n.said, n.sending = n.said[1:], true
		n.wordsMu.Unlock()
		n.send(chanRecord, s.f)
		if s.line {
			<-n.slots
		}
	}
}

// drainWords returns when all words were sent.
func (n *Node) drainWords() {
	n.wordsMu.Lock()
	defer n.wordsMu.Unlock()
	for len(n.said) > 0 || n.sending {
		n.silence.Wait()
	}
}

func (w *words) close() {
	w.wordsMu.Lock()
	w.noMore = true
	w.wordsMu.Unlock()
	w.nudgeWords()
}
