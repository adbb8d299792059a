package lint

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"syscall"
)

// Limits of an ELF file. What a linker writes is far below them; a file that
// claims more is no plugin.
const (
	imageReadMax = 256 << 20 // bytes that are read of one file
	tableMax     = 64 << 20  // bytes of one table
	loadsMax     = 1024
	nameMax      = 4096
	chainMax     = 1 << 16 // symbols of one hash value
	readCost     = 512     // bytes that a shorter reading counts as
)

// image is an ELF file as the dynamic linker sees it: its segments, and never
// its sections, which a file need not have and which may say something else.
type image struct {
	r       io.ReaderAt
	order   binary.ByteOrder
	kind    elf.Type
	machine elf.Machine
	loads   []elf.Prog64
	dynamic elf.Prog64
	left    int64 // that may still be read
}

// openImage opens a regular file; O_NONBLOCK keeps a FIFO in its place from
// holding us. The caller closes the file.
func openImage(path string) (*image, *os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	m, err := func() (*image, error) {
		if info, err := f.Stat(); err != nil {
			return nil, err
		} else if !info.Mode().IsRegular() {
			return nil, errors.New("not a regular file")
		}
		return readImage(f)
	}()
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return m, f, nil
}

// readImage reads the headers of a 64-bit ELF file (elf(5)).
func readImage(r io.ReaderAt) (*image, error) {
	m := &image{r: r, left: imageReadMax}
	ident, err := m.read(0, elf.EI_NIDENT)
	if err != nil || string(ident[:4]) != elf.ELFMAG {
		return nil, errors.New("invalid ELF header")
	}
	switch elf.Data(ident[elf.EI_DATA]) {
	case elf.ELFDATA2LSB:
		m.order = binary.LittleEndian
	case elf.ELFDATA2MSB:
		m.order = binary.BigEndian
	default:
		return nil, errors.New("invalid ELF byte order")
	}
	if c := elf.Class(ident[elf.EI_CLASS]); c != elf.ELFCLASS64 {
		return nil, fmt.Errorf("wrong ELF class: %v", c)
	}
	var h elf.Header64
	if err := m.decode(0, &h); err != nil {
		return nil, err
	}
	m.kind, m.machine = elf.Type(h.Type), elf.Machine(h.Machine)
	if int(h.Phentsize) != binary.Size(elf.Prog64{}) || h.Phoff > math.MaxInt64/2 {
		return nil, errors.New("invalid ELF program headers")
	}
	progs := make([]elf.Prog64, h.Phnum)
	if err := m.decode(int64(h.Phoff), progs); err != nil {
		return nil, err
	}
	for _, p := range progs {
		switch elf.ProgType(p.Type) {
		case elf.PT_LOAD:
			m.loads = append(m.loads, p)
		case elf.PT_DYNAMIC:
			m.dynamic = p
		}
	}
	if len(m.loads) > loadsMax {
		return nil, fmt.Errorf("%d segments are to be loaded, and %d is the limit", len(m.loads), loadsMax)
	}
	return m, nil
}

// decode reads a value of a fixed size at a file offset.
func (m *image) decode(off int64, v any) error {
	data, err := m.read(off, int64(binary.Size(v)))
	if err != nil {
		return err
	}
	return binary.Read(bytes.NewReader(data), m.order, v)
}

// read reads n bytes at a file offset.
func (m *image) read(off, n int64) ([]byte, error) {
	if n > tableMax || n > m.left {
		return nil, fmt.Errorf("a table of %d bytes is too large", n)
	}
	m.left -= max(n, readCost)
	// In pieces, so that a lie about the size costs no memory.
	var out []byte
	for int64(len(out)) < n {
		piece := make([]byte, min(n-int64(len(out)), 1<<20))
		got, err := m.r.ReadAt(piece, off+int64(len(out)))
		out = append(out, piece[:got]...)
		if got < len(piece) {
			return nil, fmt.Errorf("the file ends within a table: %w", err)
		}
	}
	return out, nil
}

// at reads n bytes at an address of the loaded file. Beyond a segment's part of
// the file there are zeros.
func (m *image) at(addr, n uint64) ([]byte, error) {
	for _, p := range m.loads {
		if addr < p.Vaddr || addr-p.Vaddr > p.Memsz || n > p.Memsz-(addr-p.Vaddr) {
			continue
		}
		into := addr - p.Vaddr
		if n > tableMax || p.Off > math.MaxInt64/4 || into > math.MaxInt64/4 {
			return nil, fmt.Errorf("a table of %d bytes is too large", n)
		}
		filed := uint64(0)
		if into < p.Filesz {
			filed = min(n, p.Filesz-into)
		}
		data, err := m.read(int64(p.Off+into), int64(filed))
		if err != nil || filed == n {
			return data, err
		}
		return append(data, make([]byte, n-filed)...), nil
	}
	return nil, fmt.Errorf("no segment holds address %#x to %#x", addr, addr+n)
}
