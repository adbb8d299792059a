package spawn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"stepd/internal/linux"
	"stepd/internal/quickjson"
	"stepd/slurm/wire"
)

// Inbox is the step's socket to which slurmds pass records on: srun's, and other step daemons'.
// Open begins, and Close ends it.
type Inbox struct {
	// Spawned is called with a report of a step that this one has spawned, and Result with
	// srun's word of one. Cancel is called when the step that has spawned this one wants its end.
	// nil is not interested.
	Spawned func(Report)
	Result  func(wire.SpawnResult)
	Cancel  func(reason string)
	Log     func(text string)
	// Path is where slurmd passes records on (Address). UID and GID are the step's user's, who
	// may send as srun.
	Path     string
	UID, GID uint32

	mu       sync.Mutex
	listener *net.UnixListener // guarded by mu, nil before Open
	serving  sync.WaitGroup
	slots    chan struct{}
}

const (
	// recordPatience is how long a slurmd may take for a record.
	recordPatience = 10 * time.Second
	// inboxClients bounds the records that are read at a time: the user may connect as well.
	inboxClients = 32
)

// Open makes the socket, once, as Slurm's own step daemon does. The user owns it:
// slurmd connects as the sender.
func (b *Inbox) Open() (err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.listener != nil {
		return nil
	}
	if err := os.Remove(b.Path); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a step that was killed
		return fmt.Errorf("cannot listen for srun: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: b.Path, Net: "unix"})
	if err != nil {
		return fmt.Errorf("cannot listen for srun: %w (the name may have 107 bytes: give slurmd a shorter SlurmdSpoolDir)", err)
	}
	if err := errors.Join(os.Chmod(b.Path, 0o700), os.Lchown(b.Path, int(b.UID), int(b.GID))); err != nil {
		l.Close()
		return fmt.Errorf("cannot listen for srun: %w", err)
	}
	b.listener, b.slots = l, make(chan struct{}, inboxClients)
	b.serving.Go(b.accept)
	return nil
}

// accept serves slurmds until the socket is closed.
func (b *Inbox) accept() {
	for {
		c, err := b.listener.AcceptUnix()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				b.Log(fmt.Sprintf("cannot take records of srun any more: %v", err))
			}
			return
		}
		b.slots <- struct{}{}
		b.serving.Go(func() {
			defer func() { <-b.slots }()
			defer c.Close()
			if err := b.take(c); err != nil {
				b.Log(fmt.Sprintf("dropped a record of srun or another step: %v", err))
			}
		})
	}
}

// take reads one record. slurmd writes the sender's uid and the length before it; a process
// that is not root's is its own sender.
func (b *Inbox) take(c *net.UnixConn) error {
	c.SetReadDeadline(time.Now().Add(recordPatience))
	cred, err := linux.PeerCred(c)
	if err != nil {
		return err
	}
	var word [4]byte
	if _, err := io.ReadFull(c, word[:]); err != nil {
		return err
	}
	sender := binary.BigEndian.Uint32(word[:])
	if cred.Uid != 0 {
		sender = cred.Uid
	}
	record, err := readSized(c, recordMax)
	if err != nil {
		return err
	}
	return b.act(sender, record)
}

// act acts on a record of a sender's. The user speaks for srun alone.
func (b *Inbox) act(sender uint32, record []byte) error {
	if len(record) < 2 {
		return errors.New("it has no command")
	}
	command, body := binary.BigEndian.Uint16(record), record[2:]
	switch {
	case sender != 0 && sender != b.UID:
		return fmt.Errorf("it is uid %d's", sender)
	case command == uint16(wire.PMISpawnResult) && b.Result != nil:
		m, err := wire.ParseSpawnResult(body)
		if err != nil {
			return err
		}
		b.Result(m)
	case sender != 0:
		return fmt.Errorf("command %#x is not the user's to give", command)
	case command == commandReport && b.Spawned != nil:
		var m Report
		if err := quickjson.Unmarshal(body, &m); err != nil {
			return fmt.Errorf("cannot read a report of a spawned step: %w", err)
		}
		b.Spawned(m)
	case command == commandCancel && b.Cancel != nil:
		var m cancel
		if err := quickjson.Unmarshal(body, &m); err != nil {
			return fmt.Errorf("cannot read a cancel of a spawned step: %w", err)
		}
		b.Cancel(m.Reason)
	default:
		return fmt.Errorf("command %#x is not known", command)
	}
	return nil
}

// Close ends the socket, and waits until nothing more is called.
func (b *Inbox) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.listener != nil {
		b.listener.Close() // which removes the file
		b.serving.Wait()
	}
}
