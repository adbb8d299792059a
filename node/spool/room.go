package spool

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Trouble is something that an administrator should mend, and how.
type Trouble struct{ Text, Remedy string }

const (
	// roomMin is the room of a file system below which a spool cannot be worked with:
	// the state of a step is some kilobytes, its event log up to megabytes.
	roomMin = 16 << 20
	// inodesMin is how many files must still go there.
	inodesMin = 100
)

// Room looks at the file system that dir is in: whether it answers, may be
// written to, and has room. dir is called what in the texts.
type Room struct {
	What, Dir string

	mu    sync.Mutex
	asked chan struct{} // guarded by mu: closed when the question that is under way is answered; nil is none
	st    unix.Statfs_t // guarded by mu: the last answer
	err   error         // guarded by mu
}

// Look asks, no longer than ctx lasts. A file system whose server is gone answers
// never: one question at a time waits for it, however often Look is called.
func (d *Room) Look(ctx context.Context) []Trouble {
	d.mu.Lock()
	asked := d.asked
	if asked == nil {
		asked = make(chan struct{})
		d.asked = asked
		go d.ask(asked) // ends with the answer
	}
	d.mu.Unlock()
	select {
	case <-asked:
	case <-ctx.Done():
		return []Trouble{{
			fmt.Sprintf("the %s %q does not answer: its file system waits for a server or a disk", d.What, d.Dir),
			"bring the server back, or put the directory on a local file system",
		}}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return roomTroubles(d.What, d.Dir, &d.st, d.err)
}

func (d *Room) ask(asked chan struct{}) {
	var st unix.Statfs_t
	err := unix.Statfs(d.Dir, &st)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.st, d.err, d.asked = st, err, nil
	close(asked)
}

func roomTroubles(what, dir string, st *unix.Statfs_t, err error) (found []Trouble) {
	if err != nil {
		return []Trouble{{fmt.Sprintf("cannot ask the file system of the %s %q: %v", what, dir, err), "make the directory, owned by root, or write another one"}}
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		found = append(found, Trouble{fmt.Sprintf("the %s %q is on a file system that is mounted read-only", what, dir), "mount -o remount,rw, or look in dmesg why the kernel has made it so"})
	}
	if room := st.Bavail * uint64(st.Bsize); room < roomMin {
		found = append(found, Trouble{fmt.Sprintf("the file system of the %s %q has %d bytes left", what, dir, room), fmt.Sprintf("make room: less than %d MiB is too little", roomMin>>20)})
	}
	if st.Files > 0 && st.Ffree < inodesMin {
		found = append(found, Trouble{fmt.Sprintf("the file system of the %s %q has room for %d more files", what, dir, st.Ffree), "remove files, or make it with more inodes"})
	}
	return found
}
