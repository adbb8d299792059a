package store

import (
	"bytes"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
)

// fakeDisk is a folder that fails, hangs, and loses power.
type fakeDisk struct {
	mu    sync.Mutex
	names map[string]*fakeFile
	// past are the names since the last sync of the folder, the oldest first.
	past []map[string]*fakeFile
	// fail returns the error of an operation, and how much a write of n bytes writes all the
	// same; nil is none.
	fail func(op string, n int) (int, error)
	hang chan struct{} // while it is not nil everything waits for its end
	hung chan struct{} // gets one for each that waits, as far as it has room
}

type fakeFile struct {
	disk         *fakeDisk
	data, stable []byte
	same         int // data and stable are the same up to here, if not further
}

type openFile struct {
	*fakeFile
	closed bool
}

func newDisk() *fakeDisk {
	return &fakeDisk{names: make(map[string]*fakeFile), hung: make(chan struct{}, 1)}
}

// do is the way of every operation; it returns with mu held.
func (d *fakeDisk) do(op string, n int) (int, error) {
	d.mu.Lock()
	for d.hang != nil {
		hang := d.hang
		d.mu.Unlock()
		select {
		case d.hung <- struct{}{}:
		default:
		}
		<-hang
		d.mu.Lock()
	}
	if d.fail != nil {
		return d.fail(op, n)
	}
	return n, nil
}

func (d *fakeDisk) setFail(f func(op string, n int) (int, error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = f
}

// stop makes everything wait until its end is called.
func (d *fakeDisk) stop() (end func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	hang := make(chan struct{})
	d.hang = hang
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.hang = nil
		close(hang)
	}
}

func (d *fakeDisk) open(name string, flags int) (file, error) {
	_, err := d.do("open", 0)
	defer d.mu.Unlock()
	if err != nil {
		return nil, err
	}
	f := d.names[name]
	switch {
	case f == nil && flags&os.O_CREATE == 0:
		return nil, os.ErrNotExist
	case f != nil && flags&os.O_EXCL != 0:
		return nil, os.ErrExist
	case f == nil:
		f = &fakeFile{disk: d}
		d.change(func() { d.names[name] = f })
	case flags&os.O_TRUNC != 0:
		f.data, f.same = nil, 0
	}
	return &openFile{fakeFile: f}, nil
}

func (d *fakeDisk) change(f func()) {
	d.past = append(d.past, maps.Clone(d.names))
	f()
}

func (d *fakeDisk) rename(from, to string) error {
	_, err := d.do("rename", 0)
	defer d.mu.Unlock()
	if err == nil {
		d.change(func() {
			d.names[to] = d.names[from]
			delete(d.names, from)
		})
	}
	return err
}

func (d *fakeDisk) sync() error {
	_, err := d.do("syncdir", 0)
	defer d.mu.Unlock()
	if err == nil {
		d.past = nil
	}
	return err
}

func (d *fakeDisk) close() error { return nil }

func (f *openFile) ReadAt(b []byte, off int64) (int, error) {
	_, err := f.disk.do("read", len(b))
	defer f.disk.mu.Unlock()
	if f.closed {
		return 0, os.ErrClosed
	}
	if err != nil {
		return 0, err
	}
	return bytes.NewReader(f.data).ReadAt(b, off)
}

func (f *openFile) WriteAt(b []byte, off int64) (int, error) {
	n, err := f.disk.do("write", len(b))
	defer f.disk.mu.Unlock()
	f.data = append(f.data, make([]byte, max(0, int(off)+n-len(f.data)))...)
	f.same = min(f.same, int(off))
	copy(f.data[off:], b[:n])
	return n, err
}

func (f *openFile) Truncate(size int64) error {
	_, err := f.disk.do("truncate", 0)
	defer f.disk.mu.Unlock()
	if err == nil {
		f.data, f.same = f.data[:size:size], min(f.same, int(size))
	}
	return err
}

func (f *openFile) Sync() error {
	_, err := f.disk.do("sync", 0)
	defer f.disk.mu.Unlock()
	if err == nil {
		f.stable = append(f.stable[:min(f.same, len(f.stable))], f.data[min(f.same, len(f.stable)):]...)
		f.same = len(f.data)
	}
	return err
}

func (f *openFile) Close() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	f.closed = true
	return nil
}

func (f *openFile) stat() (size int64, named bool, err error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	for _, of := range f.disk.names {
		named = named || of == f.fakeFile
	}
	return int64(len(f.data)), named, nil
}

// copy returns the disk as another process would find it now.
func (d *fakeDisk) copy() *fakeDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := newDisk()
	for name, f := range d.names {
		c.names[name] = &fakeFile{disk: c, data: slices.Clone(f.data), stable: slices.Clone(f.stable)}
	}
	return c
}

// crash returns what a power failure leaves: of what was not synced, any names and blocks.
func (d *fakeDisk) crash(rng *rand.Rand) *fakeDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	states := append(slices.Clone(d.past), d.names)
	c := newDisk()
	for name, f := range states[rng.IntN(len(states))] {
		c.names[name] = &fakeFile{disk: c, data: f.crash(rng)}
	}
	return c
}

func (f *fakeFile) crash(rng *rand.Rand) []byte {
	if bytes.Equal(f.data, f.stable) {
		return slices.Clone(f.data)
	}
	least, most := min(len(f.data), len(f.stable)), max(len(f.data), len(f.stable))
	size := least + rng.IntN(most-least+1)
	if rng.IntN(2) == 0 {
		size = len(f.data)
	}
	out := make([]byte, size)
	for at := 0; at < size; at += blockSize {
		from := f.stable
		if rng.IntN(2) == 0 {
			from = f.data
		}
		if at < len(from) {
			copy(out[at:min(at+blockSize, size)], from[at:])
		}
	}
	return out
}

// get returns a file's contents, and set changes them.
func (d *fakeDisk) get(name string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.names[name]; f != nil {
		return slices.Clone(f.data)
	}
	return nil
}

func (d *fakeDisk) set(name string, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.names[name] = &fakeFile{disk: d, data: slices.Clone(data), stable: slices.Clone(data)}
}

// rig is a store on two disks.
type rig struct {
	spool, run *fakeDisk
	cfg        Config
}

func newRig() *rig {
	return &rig{newDisk(), newDisk(), Config{Spool: "/spool", Run: "/run", Durable: []string{"batch"}, Boot: "boot-1", Deadline: 10 * time.Second}}
}

func (r *rig) open() (*Store, error) {
	return openIn(r.cfg, func(path string) (folder, error) {
		d := map[string]*fakeDisk{"/spool": r.spool, "/run": r.run}[path]
		_, err := d.do("opendir", 0)
		d.mu.Unlock()
		return d, err
	})
}

func (r *rig) mustOpen(t testing.TB) *Store {
	t.Helper()
	s, err := r.open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// rebooted is the rig in the next boot, with an empty run directory.
func (r *rig) rebooted() *rig {
	next := *r
	next.run, next.cfg.Boot = newDisk(), r.cfg.Boot+"'"
	return &next
}

var _ io.ReaderAt = inline{}
