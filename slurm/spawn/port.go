package spawn

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"stepd/slurm/wire"
)

// portPatience bounds an exchange with srun, which serves its step daemons one after the other.
const portPatience = 30 * time.Second

// answerMax bounds an answer of srun's, in bytes.
const answerMax = 1 << 20

// port is srun's server of PMI-2, HOST:PORT.
type port string

// ask sends a frame and returns the answer, without its length.
func (p port) ask(ctx context.Context, frame []byte) (answer []byte, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, portPatience, fmt.Errorf("it has not answered within %v", portPatience))
	defer cancel()
	defer func() {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			<-ctx.Done() // the dialer's clock is ahead
		}
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			err = fmt.Errorf("cannot ask srun at %s: %w", string(p), err)
		}
	}()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", string(p))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := conn.Write(frame); err != nil {
		return nil, err
	}
	return readSized(conn, answerMax)
}

// readSized reads bytes with their length before them.
func readSized(in io.Reader, most uint32) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(in, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > most {
		return nil, fmt.Errorf("there are %d bytes to read, and %d is the limit", n, most)
	}
	b, err := io.ReadAll(io.LimitReader(in, int64(n)))
	if err == nil && len(b) < int(n) {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

// name publishes or unpublishes a name.
func (p port) name(ctx context.Context, c wire.PMICommand, name, value string) error {
	b, err := p.ask(ctx, wire.PMINameFrame(c, name, value))
	if err != nil {
		return err
	}
	rc, err := wire.PMINameResult(b)
	if err == nil && rc != 0 {
		err = fmt.Errorf("srun has refused the name %.64q: it answers %d", name, int32(rc))
	}
	return err
}

// lookup finds a name.
func (p port) lookup(ctx context.Context, name string) (value string, found bool, err error) {
	b, err := p.ask(ctx, wire.PMINameFrame(wire.PMILookup, name, ""))
	if err != nil {
		return "", false, err
	}
	return wire.PMIPort(b)
}

// errNoSrun is the answer where srun could not start another.
var errNoSrun = errors.New("srun could not start another srun (its standard error may say why)")

// spawn has srun start a step. It returns srun's number of the spawn.
func (p port) spawn(ctx context.Context, m *wire.PMISpawnRequest) (seq uint32, err error) {
	b, err := p.ask(ctx, m.Frame())
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("it has not taken the request: is its munged another one? (%w)", err)
	}
	if err != nil {
		return 0, err
	}
	r, err := wire.ParseSpawnResult(b)
	if err == nil && r.RC != 0 {
		err = errNoSrun
	}
	return r.Seq, err
}
