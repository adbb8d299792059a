package keeper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// An estate is what a daemon leaves to the orphan: a will, which is written once, and marks,
// which are set while the step runs. It is a memory file, mapped by the daemon: what has been
// written to it outlives the daemon.
//
//	u32 magic, u32 number of marks, u32 length of the will, marks (a u32 each), will
type estate struct {
	file  *os.File
	bytes []byte // all of it, mapped
	marks int
}

const (
	estateMagic = 0x32574b53 // "SKW2"
	estateHead  = 12
	markSize    = 4
	// marksMax and willMax bound an estate that is read: as many tasks as a node may have,
	// and names for each.
	marksMax = 1 << 20
	willMax  = 64 << 20
)

func newEstate(will []byte, marks int) (*estate, error) {
	if marks < 0 || marks > marksMax || len(will) > willMax {
		return nil, fmt.Errorf("internal error: an estate of %d marks and %d bytes", marks, len(will))
	}
	fd, err := unix.MemfdCreate("estate", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot make a memory file: %w", err)
	}
	e := &estate{file: os.NewFile(uintptr(fd), "estate"), marks: marks}
	size := estateHead + markSize*marks + len(will)
	if err = unix.Ftruncate(fd, int64(size)); err == nil {
		e.bytes, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		e.file.Close()
		return nil, fmt.Errorf("cannot map a memory file of %d bytes: %w", size, err)
	}
	binary.NativeEndian.PutUint32(e.bytes, estateMagic)
	binary.NativeEndian.PutUint32(e.bytes[4:], uint32(marks))
	binary.NativeEndian.PutUint32(e.bytes[8:], uint32(len(will)))
	copy(e.bytes[estateHead+markSize*marks:], will)
	return e, nil
}

// mark sets bits of a mark.
func (e *estate) mark(i int, bits uint32) {
	if i < 0 || i >= e.marks {
		return
	}
	at := e.bytes[estateHead+markSize*i:]
	binary.NativeEndian.PutUint32(at, binary.NativeEndian.Uint32(at)|bits)
}

func (e *estate) close() {
	_ = unix.Munmap(e.bytes)
	e.bytes = nil
	e.file.Close()
}

// Estate is a dead daemon's, as its orphan finds it.
type Estate struct {
	// Will is what the daemon gave to Start.
	Will  []byte
	marks []byte
}

// Mark returns the bits of a mark that the daemon had set.
func (e *Estate) Mark(i int) uint32 {
	if i < 0 || i >= len(e.marks)/markSize {
		return 0
	}
	return binary.NativeEndian.Uint32(e.marks[markSize*i:])
}

// Inherited reads the estate that the keeper, which this process was, has left. It is for the
// daemon's program, run with the argument Orphan.
func Inherited() (*Estate, error) {
	f := os.NewFile(fdEstate, "estate")
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("cannot read what the step daemon has left: %w (%s is run by stepkeeper)", err, Orphan)
	}
	if st.Size() > estateHead+markSize*marksMax+willMax {
		return nil, fmt.Errorf("cannot read what the step daemon has left: it has %d bytes", st.Size())
	}
	b := make([]byte, st.Size())
	if _, err := f.ReadAt(b, 0); err != nil {
		return nil, fmt.Errorf("cannot read what the step daemon has left: %w", err)
	}
	return parseEstate(b)
}

func parseEstate(b []byte) (*Estate, error) {
	if len(b) < estateHead || binary.NativeEndian.Uint32(b) != estateMagic {
		return nil, errors.New("cannot read what the step daemon has left: it is no estate")
	}
	marks, will := uint64(binary.NativeEndian.Uint32(b[4:])), uint64(binary.NativeEndian.Uint32(b[8:]))
	if uint64(len(b)) != estateHead+markSize*marks+will {
		return nil, fmt.Errorf("cannot read what the step daemon has left: %d marks and %d bytes are not in %d", marks, will, len(b))
	}
	b = b[estateHead:]
	return &Estate{marks: b[:markSize*marks], Will: b[markSize*marks:]}, nil
}
