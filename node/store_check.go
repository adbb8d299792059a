package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// errDamaged is wrapped by the error of a state that cannot be read whole.
var errDamaged = errors.New("the state is damaged")

// checkStore reads the whole database without changing it: bbolt itself would end the
// process, or read beyond the end of a file that was cut. A missing file is fine.
func checkStore(path string) error {
	st, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && st.Size() == 0 {
		return nil
	}
	if err == nil {
		err = checkFile(path, st.Size())
	}
	if err == nil {
		err = walkStore(path)
	}
	if err != nil {
		return fmt.Errorf("cannot use state %q: %w", path, err)
	}
	return nil
}

func checkFile(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return checkSize(f, size)
}

// What bbolt writes into its first two pages (its meta.go): a page header of 16 bytes,
// then magic, version, page size, flags (4 bytes each), root and its sequence, the
// freelist, the first page beyond the last, the transaction (8 bytes each).
const (
	metaMagic = 0xED0CDAED
	metaAt    = 16
	metaPages = metaAt + 40
	metaTxn   = metaAt + 48
	metaSize  = metaAt + 64
)

// checkSize finds a file that is shorter than what the newer of its two heads says.
func checkSize(f io.ReaderAt, size int64) error {
	var newest, end uint64
	found := false
	for i := range int64(2) {
		head := make([]byte, metaSize)
		if _, err := f.ReadAt(head, i*int64(os.Getpagesize())); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if binary.NativeEndian.Uint32(head[metaAt:]) != metaMagic {
			continue
		}
		txn := binary.NativeEndian.Uint64(head[metaTxn:])
		if !found || txn > newest {
			newest = txn
			end = binary.NativeEndian.Uint64(head[metaPages:]) * uint64(binary.NativeEndian.Uint32(head[metaAt+8:]))
		}
		found = true
	}
	if !found {
		return fmt.Errorf("%w: it has no head of a database", errDamaged)
	}
	if end > uint64(size) {
		return fmt.Errorf("%w: it has %d bytes and should have %d", errDamaged, size, end)
	}
	return nil
}

// walkStore reads every key. What bbolt panics about is damage.
func walkStore(path string) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", errDamaged, r)
		}
	}()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, ReadOnly: true})
	if errors.Is(err, berrors.ErrInvalid) || errors.Is(err, berrors.ErrChecksum) {
		return fmt.Errorf("%w: %v", errDamaged, err)
	}
	if err != nil {
		return err
	}
	defer db.Close()
	return db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(k, v []byte) error {
				sum := byte(0)
				for _, c := range v { // every page is touched
					sum ^= c
				}
				_ = sum
				return nil
			})
		})
	})
}

// setAside makes room for an empty state and keeps the damaged one for whoever wants to
// look at it.
func setAside(path string, now time.Time) (aside string, err error) {
	aside = path + ".damaged-" + now.UTC().Format("20060102T150405")
	if err := os.Rename(path, aside); err != nil {
		return "", fmt.Errorf("cannot set the damaged state aside: %w", err)
	}
	return aside, nil
}
