package lint

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
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
