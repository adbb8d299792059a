package store

import (
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// What is lost of a journal but for single lines: the file cannot be read, or it is gone.

// unreadable reports whether the disk does not give back what a file has, for ever.
func unreadable(err error) bool {
	switch errno, _ := errors.AsType[syscall.Errno](err); errno {
	case unix.EIO, unix.EUCLEAN, unix.EBADMSG, unix.EISDIR: // some file systems return the second and the third where their own checksums fail
		return true
	}
	return false
}

// moveAside keeps a journal that cannot be read under another name: a new one is begun.
func (j *journal) moveAside() (*replayed, error) {
	kept := j.name + damagedSuffix()
	if err := j.dir.rename(j.name, kept); err != nil {
		return nil, err
	}
	j.f.Close()
	j.f = nil
	return &replayed{index: make(index), aside: kept}, nil
}

func damagedSuffix() string { return ".damaged-" + time.Now().UTC().Format("20060102T150405.000") }

// noteLost notes the journals that cannot be read, and a volatile journal that is gone in the
// boot in which it was written. Of a durable one that is gone nothing is lost then: the volatile
// journal has everything. Where both are gone only the caller can have traces of that.
func (s *Store) noteLost(durable, volatile *replayed) error {
	var err error
	for _, l := range []struct {
		j *journal
		r *replayed
	}{{s.durable, durable}, {s.volatile, volatile}} {
		if l.r.aside != "" {
			err = errors.Join(err, s.add(id{KindDamage, l.r.aside}, Damage{Journal: l.j.path, Kept: l.j.path + l.r.aside[len(l.j.name):], Pieces: 1}))
		}
	}
	// A journal begins with what was kept and the header: without that it is gone, or cut.
	// The durable one is begun after the volatile one.
	gone := volatile.header.Boot == "" && len(volatile.bad) == 0 && volatile.aside == ""
	if gone && durable.header.Boot == s.cfg.Boot && s.cfg.Boot != "" {
		err = errors.Join(err, s.add(id{KindDamage, s.volatile.name}, Damage{Journal: s.volatile.path}))
	}
	return err
}

// Lose notes that the caller misses something: Damage returns it.
func (tx *Tx) Lose(d Damage) error { return tx.Put(KindDamage, "missing", d) }
