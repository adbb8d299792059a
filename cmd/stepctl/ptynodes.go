package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"stepd/stepio/replay"
	"stepd/stepnet"
)

// The terminal of a step of several nodes comes over the network: each piece of rank 0's
// stdout is a frame as stepd's own socket would have it, and each piece of input one back.
// A pair of sockets between the two shows it as that of a step of this node.

// openScreen makes the pair. It is closed by closeScreen.
func (t *nodeLaunch) openScreen() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("cannot show the step's terminal: %w", err)
	}
	t.terminal, t.screen = os.NewFile(uintptr(pair[0]), "the step's terminal"), os.NewFile(uintptr(pair[1]), "the step's terminal")
	return nil
}

// showScreen begins to show the terminal in the client's own, and to send what is typed.
func (t *nodeLaunch) showScreen(a *stepnet.Launcher) {
	s := t.l.screen
	if err := s.begin(t.screen, false); err != nil {
		s.leave(leaving{code: 1, words: err.Error() + ": detached"})
	}
	go s.guarded(func() { // ends with the client's part, or with the process
		<-s.left
		t.closeScreen() // before: a launcher that does not read does not end
		a.Close()
	})
	go s.guarded(func() {
		buf := make([]byte, replay.FrameHead+replay.FrameMax)
		for {
			n, err := t.terminal.Read(buf)
			if err != nil || n == 0 || a.Input(append([]byte(nil), buf[:n]...)) != nil {
				return
			}
		}
	})
}

// toScreen hands over a frame; it waits for the screen, and the step's terminal with it.
// Once the screen is gone, what comes is dropped.
func (t *nodeLaunch) toScreen(frame []byte) {
	if len(frame) > 0 {
		_, _ = t.terminal.Write(frame)
	}
}

// closeScreen lets the screen end when it has shown what has come.
func (t *nodeLaunch) closeScreen() { t.terminal.Close() }
