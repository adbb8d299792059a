package store

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Config is what a store is made of.
type Config struct {
	// Spool and Run are the directories of the durable and of the volatile journal.
	Spool, Run string
	// Durable are the kinds of records that survive a power failure.
	Durable []string
	// Boot names the host's boot: linux.BootID.
	Boot string
	// Deadline is how long a write, or an opening, may take; 0 is 10 s.
	Deadline time.Duration
	// Silent is called, in a goroutine of its own, when a journal has not answered a write
	// within the deadline; the error wraps ErrSilent. It is called with nil when the journal
	// answers again. nil is nothing.
	Silent func(error)
}

// deadline is Config's Deadline where none is given.
const deadline = 10 * time.Second

// What Get and Update may return, wrapped.
var (
	// ErrNotFound is that no record has the name.
	ErrNotFound = errors.New("not in the state store")
	// ErrClosed is that the store is closed.
	ErrClosed = errors.New("the state store is closed")
	// ErrSilent is that a journal's file system has not answered within the deadline.
	ErrSilent = errors.New("it waits for a server or a disk: bring that back")
)

// Store is an open store. Its methods may be called from several goroutines.
type Store struct {
	cfg               Config
	durable, volatile *journal
	kinds             map[string]bool // that are durable

	// order is held while a batch is made and queued: it sees what came before it.
	order sync.Mutex
	mu    sync.Mutex
	seq   uint64 // guarded by mu: the last that was given to a batch
	// pending are the batches that the volatile journal does not have yet, in their order.
	pending map[id][]*batch // guarded by mu
	closed  bool            // guarded by mu
}

// batch is what an Update or a Record changes.
type batch struct {
	seq     uint64
	values  map[id][]byte
	ids     []id // in the order in which they were changed first
	durable bool // a kind of it is
	fact    bool // guarded by the store's mu: it is true, whatever becomes of its writing
	// durably and volatile are its entries; volatile is made when it is true, or asks for no
	// other.
	durably, volatile *entry
}

// valueMax bounds a value, in bytes: a line has several.
const valueMax = 64 << 20

// Tx is a batch that is being made. It is not to be used after the function that has it.
type Tx struct {
	s *Store
	b *batch
}

// Put stores a value as JSON. The error is encoding/json's.
func (tx *Tx) Put(kind, key string, value any) error {
	doc, err := json.Marshal(value)
	if err != nil {
		return err
	}
	tx.put(id{kind, key}, doc)
	return nil
}

// Delete removes a record; that there is none is fine.
func (tx *Tx) Delete(kind, key string) { tx.put(id{kind, key}, deleted) }

func (tx *Tx) put(k id, value []byte) {
	if _, again := tx.b.values[k]; !again {
		tx.b.ids = append(tx.b.ids, k)
	}
	tx.b.values[k] = value
	tx.b.durable = tx.b.durable || tx.s.kinds[k.kind]
}

// Get reads a value, as the batches before this one and this one itself leave it. The error
// wraps ErrNotFound.
func (tx *Tx) Get(kind, key string, value any) error {
	k := id{kind, key}
	doc, err := tx.read(k)
	if err != nil {
		return err
	}
	return decode(k, doc, value)
}

// Has reports whether Get would find a record, of which it decodes nothing.
func (tx *Tx) Has(kind, key string) bool {
	doc, err := tx.read(id{kind, key})
	return err == nil && !bytes.Equal(doc, deleted)
}

func (tx *Tx) read(k id) ([]byte, error) {
	if doc, ok := tx.b.values[k]; ok {
		return doc, nil
	}
	return tx.s.read(k, func(*batch) bool { return true })
}

func decode(k id, doc []byte, value any) error {
	if bytes.Equal(doc, deleted) {
		return fmt.Errorf("%s: %w", k, ErrNotFound)
	}
	if err := json.Unmarshal(doc, value); err != nil {
		return fmt.Errorf("%s: %w", k, err)
	}
	return nil
}

// Get reads the value of a record that is stored. The error wraps ErrNotFound.
func (s *Store) Get(kind, key string, value any) error {
	k := id{kind, key}
	doc, err := s.read(k, func(b *batch) bool { return b.fact })
	if err != nil {
		return err
	}
	return decode(k, doc, value)
}

// read returns the value of the last pending batch that counts, or what is stored where that
// is later.
func (s *Store) read(k id, counts func(*batch) bool) ([]byte, error) {
	for {
		s.mu.Lock()
		p, ok := s.volatile.index[k.kind][k.key]
		for _, b := range slices.Backward(s.pending[k]) {
			if ok && p.seq > b.seq { // a later batch has overtaken it, which waits for the disk
				break
			}
			if counts(b) {
				s.mu.Unlock()
				return b.values[k], nil
			}
		}
		closed := s.closed
		s.mu.Unlock()
		if !ok {
			return deleted, nil
		}
		doc, err := p.read()
		if errors.Is(err, os.ErrClosed) && !closed {
			continue // the journal was written anew
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", k, ioError("read", s.volatile.path, err))
		}
		return doc, nil
	}
}

// Size is the size of the value of a record that is stored, in bytes; 0 is that there is none.
func (s *Store) Size(kind, key string) int {
	k := id{kind, key}
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.volatile.index[kind][key]
	for _, b := range slices.Backward(s.pending[k]) {
		if ok && p.seq > b.seq {
			break
		}
		if v := b.values[k]; b.fact && !bytes.Equal(v, deleted) {
			return len(v)
		} else if b.fact {
			return 0
		}
	}
	if !ok || p.dead {
		return 0
	}
	return p.size
}

// Keys returns the keys of the kind's records that begin with the prefix, in no order.
func (s *Store) Keys(kind, prefix string) (keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	index := s.volatile.index[kind]
	for key, p := range index {
		if !p.dead && strings.HasPrefix(key, prefix) && s.pending[id{kind, key}] == nil {
			keys = append(keys, key)
		}
	}
	for k, of := range s.pending {
		if k.kind != kind || !strings.HasPrefix(k.key, prefix) {
			continue
		}
		p, stored := index[k.key]
		is := stored && !p.dead
		for _, b := range of {
			if b.fact && !(stored && p.seq > b.seq) {
				is = !bytes.Equal(b.values[k], deleted)
			}
		}
		if is {
			keys = append(keys, k.key)
		}
	}
	return keys
}

// Update stores what f changes for a request: all of it, or nothing where it returns an
// error, which is f's, or says that a journal cannot be written to or does not answer
// (ErrSilent). What a journal stores after the request was refused is taken back.
func (s *Store) Update(f func(tx *Tx) error) error {
	b, err := s.begin(f, false)
	if err != nil || b == nil {
		return err
	}
	if !b.durable {
		return s.refused(b.volatile, s.wait(s.volatile, b.volatile))
	}
	if err := s.wait(s.durable, b.durably); err != nil {
		return s.refused(b.durably, err)
	}
	// It is true by now. Where the volatile journal cannot take it, it is tried again.
	_ = s.wait(s.volatile, b.volatile)
	return nil
}

// OwedError is that a Record is stored, in the volatile journal, but not in the durable one
// yet, for the cause that it wraps.
type OwedError struct{ Cause error }

func (e *OwedError) Error() string { return e.Cause.Error() }
func (e *OwedError) Unwrap() error { return e.Cause }

// Record stores what f changes because it has happened: it is true from now on. After an
// error of a journal it is not stored there yet, and is as soon as the journal can be
// written to. An OwedError is one of the durable journal alone: what the volatile journal
// has, the next Open stores in the durable one. The error may be f's as well: then nothing
// has changed.
func (s *Store) Record(f func(tx *Tx) error) error {
	b, err := s.begin(f, true)
	if err != nil || b == nil {
		return err
	}
	err = s.wait(s.volatile, b.volatile)
	if !b.durable {
		return err
	}
	owed := s.wait(s.durable, b.durably)
	if err == nil && owed != nil {
		return &OwedError{owed}
	}
	return errors.Join(err, owed)
}

// begin makes a batch and queues it; nil is one that changes nothing.
func (s *Store) begin(f func(tx *Tx) error, fact bool) (*batch, error) {
	s.order.Lock()
	defer s.order.Unlock()
	b := &batch{values: make(map[id][]byte), fact: fact}
	if err := f(&Tx{s, b}); err != nil {
		return nil, err
	}
	for k, v := range b.values {
		if err := k.check(); err != nil {
			return nil, err
		}
		if len(v) > valueMax {
			return nil, fmt.Errorf("cannot store %s: it has %d bytes, and may have %d", k, len(v), valueMax)
		}
	}
	if len(b.ids) == 0 {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	silent := s.volatile.silence()
	if b.durable {
		silent = cmp.Or(s.durable.silence(), silent)
	}
	if silent != nil && !fact {
		return nil, silent
	}
	s.seq++
	b.seq = s.seq
	if b.durable {
		b.durably = newEntry(b, fact, func(k id) bool { return s.kinds[k.kind] })
		s.durable.add(b.durably)
	}
	for _, k := range b.ids {
		s.pending[k] = append(s.pending[k], b)
	}
	if fact || !b.durable {
		s.toVolatile(b)
	}
	return b, nil
}

// toVolatile queues a batch for the volatile journal; the caller holds mu.
func (s *Store) toVolatile(b *batch) {
	b.volatile = newEntry(b, b.fact, func(id) bool { return true })
	s.volatile.add(b.volatile)
}

func newEntry(b *batch, fact bool, has func(id) bool) *entry {
	e := &entry{batch: b, seq: b.seq, fact: fact, done: make(chan error, 1)}
	for _, k := range b.ids {
		if has(k) {
			e.records = append(e.records, record{id: k, value: b.values[k]})
		}
	}
	return e
}

// wrote is what follows when a journal has written an entry, or has refused it; the caller
// holds mu.
func (s *Store) wrote(j *journal, e *entry, written bool) {
	b := e.batch
	switch {
	case b == nil: // it only tried
	case j == s.volatile || !written:
		for _, k := range b.ids {
			left := slices.DeleteFunc(s.pending[k], func(p *batch) bool { return p == b })
			if s.pending[k] = left; len(left) == 0 {
				delete(s.pending, k)
			}
		}
	case !b.fact && !e.answered:
		b.fact = true // nothing can refuse it any more
		s.toVolatile(b)
	}
}

// wait waits for an entry's result, no longer than the deadline.
func (s *Store) wait(j *journal, e *entry) error {
	select {
	case err := <-e.done:
		return err
	case <-time.After(s.cfg.Deadline):
		j.giveUp(e)
		return <-e.done
	}
}

// refused takes back what a journal may have of a batch that it has refused.
func (s *Store) refused(e *entry, err error) error {
	s.mu.Lock()
	unsure := e.unsure
	s.mu.Unlock()
	if err == nil || !unsure {
		return err
	}
	b, again := s.begin(func(tx *Tx) error {
		for i := range e.records {
			k := e.records[i].id // at is still being written
			doc, err := s.read(k, func(b *batch) bool { return b.fact })
			if err != nil {
				return err
			}
			tx.put(k, doc)
		}
		return nil
	}, true)
	if again == nil && b != nil {
		again = s.wait(s.volatile, b.volatile) // where the next process finds it
	}
	return errors.Join(err, again)
}

// Silence returns why a journal is not to be written to: it has not answered within the
// deadline, and does not yet. The error wraps ErrSilent; nil is that both answer.
func (s *Store) Silence() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.durable.silence(), s.volatile.silence())
}

// Check returns why nothing can be stored; nil is that it can. Where a write to a journal has
// failed another one is tried every second.
func (s *Store) Check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Or(s.durable.silence(), s.volatile.silence(), s.durable.failed, s.volatile.failed)
}

// Close writes what is queued and closes the journals. What it cannot write in time is in
// the volatile journal, and the next Open stores it; the error says so. After an ErrSilent
// the caller ends its process, since what hangs may go on.
func (s *Store) Close() error {
	s.mu.Lock()
	again := s.closed
	s.closed = true
	s.mu.Unlock()
	if again {
		return nil
	}
	// Until the durable journal is written, it queues for the volatile one.
	return errors.Join(s.durable.close(s.cfg.Deadline), s.volatile.close(s.cfg.Deadline))
}

// A series of numbers has no number twice, through power failures as well. Numbers are taken
// from a block of which the end is durable, so that most of them cost no write to the spool:
// the volatile journal knows the last. Without it the next block is begun.

// Last returns the last number of a series that was given out, 0 where there is none.
func (tx *Tx) Last(series string) (last uint64, err error) {
	err = tx.Get(kindNumber, series, &last)
	if errors.Is(err, ErrNotFound) {
		return 0, nil
	}
	return last, err
}

// Spend gives out a number that is greater than the last one, and with it those below.
func (tx *Tx) Spend(series string, number uint64) error {
	last, err := tx.Last(series)
	if err != nil {
		return err
	}
	if number <= last {
		return fmt.Errorf("internal error: number %d of %q is spent: the last is %d", number, series, last)
	}
	// A block that is not on the disk yet is none: this batch would not wait for it.
	var end uint64
	if err := tx.s.Get(kindBlock, series, &end); err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	if number > end {
		if err := tx.Put(kindBlock, series, number+numberBlock-1); err != nil {
			return err
		}
	}
	return tx.Put(kindNumber, series, number)
}

// Last returns the last number of a series that was given out and stored, 0 where there is
// none.
func (s *Store) Last(series string) (last uint64, err error) {
	err = s.Get(kindNumber, series, &last)
	if errors.Is(err, ErrNotFound) {
		return 0, nil
	}
	return last, err
}

// kinds of what numbers are made of: how far the block in use goes, and the last given out.
const (
	kindBlock  = "block"
	kindNumber = "number"
)

// numberBlock is how many are given out for one durable record.
const numberBlock = 1000

// restoreNumbers makes each series go on behind its block where the volatile journal may not
// know the last number. One damaged piece may have been the last block's.
func (s *Store) restoreNumbers(trusted bool, damaged int) error {
	if trusted {
		return nil // where it has no number of a block, none of that was given out
	}
	for series := range maps.Clone(s.volatile.index[kindBlock]) {
		doc, err := s.volatile.index[kindBlock][series].read()
		if err != nil {
			return err
		}
		var end uint64
		if err := decode(id{kindBlock, series}, doc, &end); err != nil {
			return err
		}
		if err := s.add(id{kindNumber, series}, end+uint64(damaged)*numberBlock); err != nil {
			return err
		}
	}
	return nil
}
