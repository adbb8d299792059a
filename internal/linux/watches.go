package linux

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Watches reports changes of files to many goroutines by one instance of inotify(7), of which a
// user may have 128. It has the instance only while something is watched. The zero value is
// ready.
type Watches struct {
	mu   sync.Mutex
	f    *os.File                         // guarded by mu: nil where nothing is watched
	byWD map[int32]map[chan struct{}]bool // guarded by mu: of f
}

// Add watches path for the events of mask (unix.IN_…), which are the same for all watches of a
// file. changed has a word when something has happened since its last word. The caller ends the
// watch with stop.
func (w *Watches) Add(path string, mask uint32) (changed <-chan struct{}, stop func(), err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.f == nil {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			return nil, nil, fmt.Errorf("cannot create an inotify instance: %w", err)
		}
		w.f, w.byWD = os.NewFile(uintptr(fd), "inotify"), make(map[int32]map[chan struct{}]bool)
		go w.read(w.f) // ends with the last watch
	}
	f := w.f
	var wd int
	if err = OnFD(f, func(fd int) (err error) { wd, err = unix.InotifyAddWatch(fd, path, mask); return err }); err != nil {
		w.closeIdle()
		return nil, nil, fmt.Errorf("cannot watch %q: %w", path, err)
	}
	of := w.byWD[int32(wd)]
	if of == nil {
		of = make(map[chan struct{}]bool)
		w.byWD[int32(wd)] = of
	}
	c := make(chan struct{}, 1) // size 1: the word stays until it is read
	of[c] = true
	return c, func() { w.drop(int32(wd), c) }, nil
}

// drop ends one watch.
func (w *Watches) drop(wd int32, c chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := w.byWD[wd]
	if delete(of, c); len(of) > 0 {
		return
	}
	delete(w.byWD, wd)
	// EINVAL: the file is gone, and the watch with it.
	_ = OnFD(w.f, func(fd int) error { _, err := unix.InotifyRmWatch(fd, uint32(wd)); return err })
	w.closeIdle()
}

// closeIdle closes an instance that watches nothing; the caller holds mu.
func (w *Watches) closeIdle() {
	if len(w.byWD) == 0 {
		w.f.Close()
		w.f, w.byWD = nil, nil
	}
}

// read passes the events on until the instance is closed.
func (w *Watches) read(f *os.File) {
	buf := make([]byte, 16<<10)
	for {
		n, err := f.Read(buf)
		if err != nil {
			return
		}
		w.mu.Lock()
		for b := buf[:n]; w.f == f && len(b) >= unix.SizeofInotifyEvent; {
			wd, size := int32(binary.NativeEndian.Uint32(b)), unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:]))
			b = b[size:]
			if wd >= 0 {
				tellAll(w.byWD[wd])
				continue
			}
			for _, of := range w.byWD { // IN_Q_OVERFLOW: events were lost
				tellAll(of)
			}
		}
		w.mu.Unlock()
	}
}

func tellAll(of map[chan struct{}]bool) {
	for c := range of {
		select {
		case c <- struct{}{}:
		default: // it has a word
		}
	}
}
