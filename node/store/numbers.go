package store

import (
	"errors"
	"fmt"
	"maps"
)

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
