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
	"path/filepath"
	"strings"
	"syscall"
)

const (
	cachePath = "/etc/ld.so.cache"
	cacheMax  = 64 << 20
	// librariesMax bounds the libraries of one plugin, with the libraries that these
	// need.
	librariesMax = 1024
)

// loader finds and reads libraries as ld.so(8) does for a program whose
// environment has no LD_ variable.
type loader struct {
	cache   map[string][]string // of ldconfig(8); nil where there is none
	dirs    []string            // the usual places, last
	objects map[string]*loaded  // by path: what was read before
	machine elf.Machine
	lib     string            // what $LIB stands for
	note    func(path string) // is called for each before it is opened
}

type loaded struct {
	object *object
	err    error
}

// newLoader reads ld.so's cache. Where it cannot (musl has none), the usual
// directories have to do.
func newLoader(host *object, note func(path string)) *loader {
	l := &loader{objects: map[string]*loaded{}, machine: host.img.machine, lib: "lib64", note: note}
	if f, err := os.Open(cachePath); err == nil {
		data, err := io.ReadAll(io.LimitReader(f, cacheMax))
		f.Close()
		if err == nil {
			l.cache, _ = parseCache(data) // an unknown format is as good as none
		}
	}
	if triplet := map[elf.Machine]string{elf.EM_X86_64: "x86_64", elf.EM_AARCH64: "aarch64", elf.EM_PPC64: "powerpc64le", elf.EM_RISCV: "riscv64", elf.EM_S390: "s390x"}[l.machine]; triplet != "" {
		debian := triplet + "-linux-gnu"
		l.dirs = append(l.dirs, "/lib/"+debian, "/usr/lib/"+debian)
		if info, err := os.Stat("/usr/lib/" + debian); err == nil && info.IsDir() {
			l.lib = "lib/" + debian
		}
	}
	l.dirs = append(l.dirs, "/lib64", "/usr/lib64", "/lib", "/usr/lib")
	return l
}

// open reads an object once, however often it is asked for.
func (l *loader) open(path string) (*object, error) {
	if known, ok := l.objects[path]; ok {
		return known.object, known.err
	}
	l.note(path)
	o, err := openObject(path)
	if err == nil {
		err = l.loadable(o)
	}
	l.objects[path] = &loaded{o, err}
	return o, err
}

// loadable says why dlopen refuses what it can read.
func (l *loader) loadable(o *object) error {
	switch {
	case o.img.machine != l.machine:
		return fmt.Errorf("built for %v, and this is %v", o.img.machine, l.machine)
	case o.img.kind != elf.ET_DYN:
		return fmt.Errorf("not a shared object, but %v", o.img.kind)
	case o.pie:
		return errors.New("a program, not a shared object")
	}
	return nil
}

// find looks up a library that from needs; chain are the objects that led to
// it, from first.
func (l *loader) find(name string, from *object, chain []*object) (*object, error) {
	var refused error
	try := func(path string) *object {
		o, err := l.open(path)
		if err != nil {
			// A file for another machine is passed over, as by ld.so.
			if !isAbsent(err) && refused == nil {
				refused = fmt.Errorf("%q: %w", path, err)
			}
			return nil
		}
		return o
	}
	for _, path := range l.candidates(name, from, chain) {
		if o := try(path); o != nil {
			return o, nil
		}
	}
	if refused != nil {
		return nil, refused
	}
	return nil, os.ErrNotExist
}

func isAbsent(err error) bool {
	return os.IsNotExist(err) || isErrno(err, syscall.ENOTDIR)
}

// candidates lists where a library may be, the first first.
func (l *loader) candidates(name string, from *object, chain []*object) []string {
	if strings.Contains(name, "/") {
		return []string{l.expand(name, from)}
	}
	var out []string
	add := func(o *object, dirs []string) {
		for _, d := range dirs {
			if d = l.expand(d, o); filepath.IsAbs(d) {
				out = append(out, filepath.Join(d, name))
			}
		}
	}
	if len(from.runpath) == 0 {
		for i := len(chain) - 1; i >= 0; i-- {
			if len(chain[i].runpath) == 0 {
				add(chain[i], chain[i].rpath)
			}
		}
	}
	add(from, from.runpath)
	out = append(out, l.cache[name]...)
	add(from, l.dirs)
	return out
}

// expand puts in what the words with a dollar stand for (ld.so(8)). A plugin
// that uses $PLATFORM is found in none of its directories.
func (l *loader) expand(dir string, o *object) string {
	origin := filepath.Dir(o.path)
	if real, err := filepath.EvalSymlinks(o.path); err == nil {
		origin = filepath.Dir(real)
	}
	return strings.NewReplacer("$ORIGIN", origin, "${ORIGIN}", origin, "$LIB", l.lib, "${LIB}", l.lib).Replace(dir)
}

// missingLibrary is one that no place holds.
type missingLibrary struct {
	name, wantedBy string
	err            error
}

// scope lists an object and the libraries that it needs, breadth first, each
// once: the order in which symbols are looked up. Libraries of loaded, by
// their names, are loaded already and not looked for.
func (l *loader) scope(first *object, there []*object) (scope []*object, missing []missingLibrary) {
	known := map[string]bool{}
	know := func(o *object, name string) {
		known[name], known[filepath.Base(o.path)] = true, true
		if o.soname != "" {
			known[o.soname] = true
		}
	}
	for _, o := range there {
		know(o, filepath.Base(o.path))
	}
	type link struct {
		object *object
		chain  []*object
	}
	queue := []link{{first, []*object{first}}}
	for ; len(queue) > 0; queue = queue[1:] {
		from := queue[0]
		scope = append(scope, from.object)
		for _, name := range from.object.needed {
			if known[name] || len(known) > 3*librariesMax {
				continue
			}
			known[name] = true
			o, err := l.find(name, from.object, from.chain)
			if err != nil {
				missing = append(missing, missingLibrary{name, from.object.path, err})
				continue
			}
			know(o, name)
			chain := append(append([]*object{}, from.chain...), o)
			queue = append(queue, link{o, chain})
		}
	}
	return scope, missing
}

// The cache of ldconfig(8), as glibc's dl-cache.h lays it out: a header of 48
// bytes, entries of 24, then strings. glibc 2.31 and older write a table of
// their own before it.
const (
	cacheOldMagic   = "ld.so-1.7.0\x00"
	cacheOldHeader  = 16
	cacheOldEntry   = 12
	cacheMagic      = "glibc-ld.so.cache1.1"
	cacheHeader     = 48
	cacheEntry      = 24
	cacheEntriesMax = 1 << 20
)

// parseCache maps library names to paths, in the order in which ld.so prefers
// them. It may hold libraries of other architectures.
func parseCache(data []byte) (map[string][]string, error) {
	e := binary.NativeEndian
	if bytes.HasPrefix(data, []byte(cacheOldMagic)) && len(data) >= cacheOldHeader {
		skip := cacheOldHeader + cacheOldEntry*int64(e.Uint32(data[12:]))
		skip = (skip + 7) &^ 7 // the new table's alignment
		if skip > int64(len(data)) {
			return nil, errors.New("it ends within its first table")
		}
		data = data[skip:]
	}
	if !bytes.HasPrefix(data, []byte(cacheMagic)) || len(data) < cacheHeader {
		return nil, errors.New("unknown format")
	}
	n := int64(e.Uint32(data[20:]))
	if n > cacheEntriesMax || cacheHeader+n*cacheEntry > int64(len(data)) {
		return nil, errors.New("it ends within its table")
	}
	out := make(map[string][]string)
	var special []func()
	for i := range n {
		entry := data[cacheHeader+i*cacheEntry:]
		name, path := cacheString(data, e.Uint32(entry[4:])), cacheString(data, e.Uint32(entry[8:]))
		if name == "" || path == "" {
			continue
		}
		add := func() { out[name] = append(out[name], path) }
		if e.Uint64(entry[16:]) != 0 {
			special = append(special, add) // for some processors only: the same symbols
			continue
		}
		add()
	}
	for _, add := range special {
		add()
	}
	return out, nil
}

func cacheString(data []byte, off uint32) string {
	if int64(off) >= int64(len(data)) {
		return ""
	}
	s := data[off:]
	s = s[:min(len(s), nameMax)]
	end := bytes.IndexByte(s, 0)
	if end < 0 {
		return ""
	}
	return string(s[:end])
}

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
