package stepnet

import (
	"context"
	"os"
	"sync"
)

// inputAhead is how many pieces are read ahead for a reader that is slower than
// the others.
const inputAhead = 8

// input is the launcher's standard input, for this node's tasks and those below.
type input struct {
	inMu   sync.Mutex
	local  []*os.File    // guarded by inMu: this node's, until takeInput has them
	set    chan struct{} // closed by Input
	setOne sync.Once
	feeds  map[int]*feed // guarded by inMu: by child, or by -1-i for a task's
	early  map[int]bool  // guarded by inMu: children that were done before there were feeds
	open   int           // guarded by inMu: feeds that are read
	ending chan struct{} // closed by endInput
	endOne sync.Once
}

// feed is one reader.
type feed struct {
	chunks chan []byte // nil is the end
	gone   chan struct{}
	one    sync.Once
}

func (f *feed) close() { f.one.Do(func() { close(f.gone) }) }

func (in *input) init() {
	in.set, in.ending = make(chan struct{}), make(chan struct{})
	in.feeds, in.early = make(map[int]*feed), make(map[int]bool)
}

// Input gives the write ends of the pipes from which this node's tasks read; it
// is called once, with none where there are none. It takes the files over.
func (n *Node) Input(files []*os.File) {
	n.setOne.Do(func() {
		n.inMu.Lock()
		n.local = files
		n.inMu.Unlock()
		close(n.set)
	})
}

// takeInput hands each piece of input to all who read, in order. One that does not
// read holds the others back.
func (n *Node) takeInput() {
	select {
	case <-n.set:
	case <-n.ctx.Done():
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	n.inMu.Lock()
	for i, f := range n.local {
		fd := n.newFeed(-1 - i)
		wg.Go(func() { n.feedTask(fd, f) })
	}
	for c, used := range n.inUse {
		if used && !n.early[c] {
			fd := n.newFeed(c)
			wg.Go(func() { n.feedChild(fd, n.down[c]) })
		}
	}
	feeds, nobody := n.feeds, n.open == 0
	n.inMu.Unlock()
	if nobody {
		n.up.push(plainFrame(kindInputClosed))
	}
	n.wg.Go(func() { // the end of input, where nobody sends it
		select {
		case <-n.ending:
		case <-n.ctx.Done():
		}
		n.up.in[chanInput].close()
	})
	ended := false
	n.up.in[chanInput].consume(func(i item) {
		end, data, err := parseWords(i.body)
		if err != nil || ended {
			return
		}
		ended = end != 0
		for _, f := range feeds {
			f.put(data, ended)
		}
	}, n.up.credit(chanInput))
	for _, f := range feeds {
		if !ended {
			f.put(nil, true)
		}
	}
}

// put hands a piece over, and the end.
func (f *feed) put(data []byte, end bool) {
	send := func(b []byte) {
		select {
		case f.chunks <- b:
		case <-f.gone:
		}
	}
	if len(data) > 0 {
		send(data)
	}
	if end {
		send(nil)
	}
}

// newFeed is called with inMu held.
func (n *Node) newFeed(key int) *feed {
	f := &feed{chunks: make(chan []byte, inputAhead), gone: make(chan struct{})}
	n.feeds[key] = f
	n.open++
	return f
}

// feedTask writes to one task's pipe until the end, or until it reads no more.
func (n *Node) feedTask(f *feed, w *os.File) {
	defer n.dropFeed(f)
	defer w.Close()
	defer context.AfterFunc(n.ctx, func() { w.Close() })()
	for {
		select {
		case b := <-f.chunks:
			if b == nil {
				return
			}
			if _, err := w.Write(b); err != nil {
				return
			}
		case <-n.ctx.Done():
			return
		}
	}
}

// feedChild passes on to one child.
func (n *Node) feedChild(f *feed, l *link) {
	defer n.dropFeed(f)
	for {
		select {
		case b := <-f.chunks:
			out := wordsFrame(kindInput, b2i(b == nil), b)
			if !l.out[chanInput].take(len(out)) {
				return
			}
			l.pushBulk(out)
			if b == nil {
				return
			}
		case <-f.gone:
			return
		case <-n.ctx.Done():
			return
		}
	}
}

// dropFeed notes that one reads no more, and tells above when nobody does.
func (n *Node) dropFeed(f *feed) {
	f.close()
	n.inMu.Lock()
	n.open--
	nobody := n.open == 0
	n.inMu.Unlock()
	if nobody {
		n.up.push(plainFrame(kindInputClosed))
	}
}

// inputClosed hears that nobody below a child reads.
func (n *Node) inputClosed(child int) {
	n.inMu.Lock()
	defer n.inMu.Unlock()
	f := n.feeds[child]
	if f == nil {
		n.early[child] = true
	} else {
		f.close()
	}
}

// endInput ends the input that will not come any more.
func (n *Node) endInput() { n.endOne.Do(func() { close(n.ending) }) }
