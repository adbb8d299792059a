package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/pierrec/lz4/v4"
	"golang.org/x/sys/unix"

	"stepd/api/stepapi"
	"stepd/step"
)

// progressed is how far files are that are read or sent, for who looks meanwhile. The
// zero value is of none.
type progressed struct {
	whole, moved atomic.Int64
	name         atomic.Pointer[string]
}

// begin begins anew with files.
func (p *progressed) begin(paths []string) {
	var whole int64
	for _, path := range paths {
		if st, err := os.Stat(path); err == nil {
			whole += st.Size()
		}
	}
	p.moved.Store(0)
	p.whole.Store(whole)
	if len(paths) > 0 {
		name := filepath.Base(paths[0])
		p.name.Store(&name)
	}
}

// Write counts bytes.
func (p *progressed) Write(b []byte) (int, error) {
	p.moved.Add(int64(len(b)))
	return len(b), nil
}

// words are what is done where, and how much of it; "" where nothing is left of it.
func (p *progressed) words(doing, where string) string {
	name, whole, moved := p.name.Load(), p.whole.Load(), p.moved.Load()
	if name == nil || whole == 0 || moved >= whole {
		return ""
	}
	return fmt.Sprintf("%s %q%s: %d%% of %s", doing, *name, where, moved*100/whole, size(&whole))
}

// sentFile is a file as it was when it was read for its digest.
type sentFile struct {
	path string
	as   unix.Stat_t
}

// describe reads a file for its size and digest.
func describe(path string, read io.Writer) (sentFile, step.SentFile, error) {
	file := sentFile{path: path}
	f, err := os.Open(path)
	if err != nil {
		return file, step.SentFile{}, fmt.Errorf("cannot send a file: %w", err)
	}
	defer f.Close()
	sum := sha256.New()
	if err = unix.Fstat(int(f.Fd()), &file.as); err == nil {
		_, err = io.Copy(io.MultiWriter(sum, read), io.LimitReader(f, file.as.Size))
	}
	if err == nil {
		err = file.unchanged(f)
	}
	if err != nil {
		return file, step.SentFile{}, fmt.Errorf("cannot send %q: %w", path, err)
	}
	return file, step.SentFile{Size: file.as.Size, Mode: file.as.Mode & 0o777, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

// unchanged tells whether the file that is open is still the one that was read.
func (s *sentFile) unchanged(f *os.File) error {
	var now unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &now); err != nil {
		return err
	}
	switch was := &s.as; {
	case now.Dev != was.Dev || now.Ino != was.Ino:
		return errors.New("another file has taken its place")
	case now.Size != was.Size:
		return fmt.Errorf("it has changed meanwhile: it had %d bytes, and has %d now", was.Size, now.Size)
	case now.Mtim != was.Mtim:
		return errors.New("it has changed meanwhile: it was written to")
	}
	return nil
}

// send sends the files. What a node says against it comes as its answer.
func (o *bcastOptions) send(to orderer) error {
	var paths []string
	for i := range o.files {
		paths = append(paths, o.files[i].path)
	}
	o.moved.begin(paths)
	for i := range o.files {
		if err := o.sendFile(to, i); err != nil {
			return fmt.Errorf("cannot send %q: %w", o.files[i].path, err)
		}
	}
	return nil
}

// sendFile sends as many bytes as the file had. It is looked at once more at the end:
// else a node would tell of another digest, and nobody why.
func (o *bcastOptions) sendFile(to orderer, number int) error {
	file := &o.files[number]
	f, err := os.Open(file.path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := file.unchanged(f); err != nil {
		return err
	}
	left := file.as.Size
	buf := make([]byte, step.SentChunk)
	packer := packer{on: o.lz4}
	for left > 0 {
		n, err := io.ReadFull(f, buf[:min(left, int64(len(buf)))])
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return fmt.Errorf("it has changed meanwhile: %d bytes of %d are gone", left-int64(n), file.as.Size)
		case err != nil:
			return err
		}
		left -= int64(n)
		if left == 0 {
			if err := file.unchanged(f); err != nil {
				return err
			}
		}
		m := stepapi.Msg{Type: stepapi.TypeFile, File: number}
		m.Data, m.LZ4 = packer.pack(buf[:n])
		if err := to.Send(&m); err != nil {
			return nil // the step has ended, and says why
		}
		o.moved.moved.Add(int64(n))
	}
	return nil
}

// packer compresses pieces of a file, if it is on.
type packer struct {
	on    bool
	lz4   lz4.Compressor
	block []byte
}

// pack returns the piece, or what it is as an LZ4 block where that is worth the while;
// it is valid until the next call.
func (p *packer) pack(data []byte) (out []byte, isLZ4 bool) {
	if !p.on {
		return data, false
	}
	if p.block == nil {
		p.block = make([]byte, lz4.CompressBlockBound(step.SentChunk))
	}
	n, err := p.lz4.CompressBlock(data, p.block)
	if err != nil || n == 0 || n > len(data)-len(data)/16 {
		return data, false
	}
	return p.block[:n], true
}

// sendFiles sends what the step is to be sent, and ends it where that cannot be.
func (l *launch) sendFiles(to orderer) {
	if err := l.opt.bcast.send(to); err != nil {
		say("error: --bcast: %s", err)
		_ = to.Send(&stepapi.Msg{Type: stepapi.TypeCancel, Reason: "its program cannot be sent"})
	}
}
