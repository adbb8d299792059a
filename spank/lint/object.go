package lint

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// object is a shared object, or the program that loads them: what its dynamic
// section says.
type object struct {
	path    string
	img     *image
	soname  string
	needed  []string
	rpath   []string // DT_RPATH, as written
	runpath []string // DT_RUNPATH, which makes ld.so pass over DT_RPATH
	now     bool     // all its symbols are bound when it is loaded
	pie     bool     // a program, which dlopen refuses

	tags    map[elf.DynTag]uint64
	strings []byte
	exports map[string]elf.Sym64
	imports []imported
	// defines are the symbol versions that it has, needs the versions that it wants of
	// its libraries.
	defines map[string]bool
	needs   []versionNeed
	// variables are the first bytes of the variables by which a plugin describes itself.
	variables map[string][]byte
}

// imported is an undefined symbol that a relocation asks for.
type imported struct {
	name string
	// lazy is one that is looked up when it is called first: a function of the
	// procedure linkage table.
	lazy bool
}

// versionNeed is a symbol version that a library must define.
type versionNeed struct{ library, version string }

// openObject reads a file whole; nothing of it stays open.
func openObject(path string) (*object, error) {
	img, f, err := openImage(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readObject(path, img)
}

func readObject(path string, img *image) (*object, error) {
	o := &object{path: path, img: img, tags: map[elf.DynTag]uint64{}, exports: map[string]elf.Sym64{}, defines: map[string]bool{}, variables: map[string][]byte{}}
	dyn, err := img.at(img.dynamic.Vaddr, img.dynamic.Memsz)
	if err != nil || len(dyn) == 0 {
		return nil, errors.New("object file has no dynamic section")
	}
	var names []elf.Dyn64
	for ; len(dyn) >= 16; dyn = dyn[16:] {
		d := elf.Dyn64{Tag: int64(img.order.Uint64(dyn)), Val: img.order.Uint64(dyn[8:])}
		tag := elf.DynTag(d.Tag)
		if tag == elf.DT_NULL {
			break
		}
		switch tag {
		case elf.DT_NEEDED, elf.DT_SONAME, elf.DT_RPATH, elf.DT_RUNPATH:
			names = append(names, d)
		default:
			o.tags[tag] = d.Val
		}
	}
	if o.strings, err = img.at(o.tags[elf.DT_STRTAB], o.tags[elf.DT_STRSZ]); err != nil {
		return nil, fmt.Errorf("cannot read its strings: %w", err)
	}
	for _, d := range names {
		o.named(elf.DynTag(d.Tag), o.str(d.Val))
	}
	o.flags()
	for _, part := range []func() error{o.readExports, o.readImports, o.readVersionNeeds, o.readVersionDefs, o.readVariables} {
		if err := part(); err != nil {
			return nil, err
		}
	}
	return o, nil
}

func (o *object) named(tag elf.DynTag, s string) {
	switch tag {
	case elf.DT_NEEDED:
		o.needed = append(o.needed, s)
	case elf.DT_SONAME:
		o.soname = s
	case elf.DT_RPATH:
		o.rpath = strings.Split(s, ":")
	case elf.DT_RUNPATH:
		o.runpath = strings.Split(s, ":")
	}
}

func (o *object) flags() {
	_, now := o.tags[elf.DT_BIND_NOW]
	o.now = now || elf.DynFlag(o.tags[elf.DT_FLAGS])&elf.DF_BIND_NOW != 0 ||
		elf.DynFlag1(o.tags[elf.DT_FLAGS_1])&elf.DF_1_NOW != 0
	o.pie = elf.DynFlag1(o.tags[elf.DT_FLAGS_1])&elf.DF_1_PIE != 0
}

// str is a string of the object's table; "" beyond its end.
func (o *object) str(off uint64) string {
	if off >= uint64(len(o.strings)) {
		return ""
	}
	s := o.strings[off:]
	if end := bytes.IndexByte(s, 0); end >= 0 {
		s = s[:end]
	}
	return string(s[:min(len(s), nameMax)])
}

const symSize = 24

func (o *object) symbol(data []byte) elf.Sym64 {
	e := o.img.order
	return elf.Sym64{Name: e.Uint32(data), Info: data[4], Other: data[5], Shndx: e.Uint16(data[6:]), Value: e.Uint64(data[8:]), Size: e.Uint64(data[16:])}
}

// readExports lists what others can find here.
func (o *object) readExports() error {
	first, count, err := o.symbolRange()
	if err != nil || count <= first {
		return err
	}
	data, err := o.img.at(o.tags[elf.DT_SYMTAB]+first*symSize, (count-first)*symSize)
	if err != nil {
		return fmt.Errorf("cannot read its symbols: %w", err)
	}
	for ; len(data) >= symSize; data = data[symSize:] {
		s := o.symbol(data)
		if elf.SectionIndex(s.Shndx) == elf.SHN_UNDEF || s.Name == 0 {
			continue
		}
		switch elf.SymBind(s.Info >> 4) {
		case elf.STB_GLOBAL, elf.STB_WEAK, stbUnique:
			if v := elf.SymVis(s.Other & 3); v == elf.STV_DEFAULT || v == elf.STV_PROTECTED {
				o.exports[o.str(uint64(s.Name))] = s
			}
		}
	}
	return nil
}

// variableMax bounds plugin_name and plugin_type.
const variableMax = 1024

// readVariables reads a plugin's description of itself. These are char arrays
// and a number, so that the file holds them as they are.
func (o *object) readVariables() error {
	for _, name := range []string{"plugin_name", "plugin_type", "plugin_version"} {
		s, ok := o.exports[name]
		if !ok {
			continue
		}
		data, err := o.img.at(s.Value, min(s.Size, variableMax))
		if err != nil {
			return fmt.Errorf("cannot read its %s: %w", name, err)
		}
		o.variables[name] = data
	}
	return nil
}

// stbUnique is GNU's binding for C++ objects that a process has once.
const stbUnique elf.SymBind = 10

// symbolRange reports which symbols the hash table finds. The table of symbols
// itself does not say how long it is.
func (o *object) symbolRange() (first, count uint64, err error) {
	if addr, ok := o.tags[elf.DT_GNU_HASH]; ok {
		return o.gnuHash(addr)
	}
	addr, ok := o.tags[elf.DT_HASH]
	if !ok {
		return 0, 0, nil
	}
	head, err := o.img.at(addr, 8)
	if err != nil {
		return 0, 0, fmt.Errorf("cannot read its hash table: %w", err)
	}
	return 1, uint64(o.img.order.Uint32(head[4:])), nil
}

// gnuHash walks to the end of the last chain: the lowest bit marks it.
func (o *object) gnuHash(addr uint64) (first, count uint64, err error) {
	head, err := o.img.at(addr, 16)
	if err != nil {
		return 0, 0, fmt.Errorf("cannot read its hash table: %w", err)
	}
	e := o.img.order
	nbuckets, symoffset, bloom := uint64(e.Uint32(head)), uint64(e.Uint32(head[4:])), uint64(e.Uint32(head[8:]))
	buckets, err := o.img.at(addr+16+8*bloom, 4*nbuckets)
	if err != nil {
		return 0, 0, fmt.Errorf("cannot read its hash table: %w", err)
	}
	last := uint64(0)
	for ; len(buckets) >= 4; buckets = buckets[4:] {
		last = max(last, uint64(e.Uint32(buckets)))
	}
	if last < symoffset { // nothing is exported
		return symoffset, symoffset, nil
	}
	chains := addr + 16 + 8*bloom + 4*nbuckets
	for range chainMax {
		link, err := o.img.at(chains+4*(last-symoffset), 4)
		if err != nil {
			return 0, 0, fmt.Errorf("cannot read its hash table: %w", err)
		}
		last++
		if e.Uint32(link)&1 != 0 {
			return symoffset, last, nil
		}
	}
	return 0, 0, errors.New("its hash table has no end")
}

// readImports lists the undefined symbols that the relocations name: these, and
// no others, ld.so looks up.
func (o *object) readImports() error {
	lazy, err := o.relocated(elf.DT_JMPREL, elf.DT_PLTRELSZ, elf.DynTag(o.tags[elf.DT_PLTREL]))
	if err != nil {
		return err
	}
	eager := map[uint64]bool{}
	for _, t := range [][2]elf.DynTag{{elf.DT_RELA, elf.DT_RELASZ}, {elf.DT_REL, elf.DT_RELSZ}} {
		syms, err := o.relocated(t[0], t[1], t[0])
		if err != nil {
			return err
		}
		for s := range syms {
			eager[s] = true
			lazy[s] = false
		}
	}
	for index := range lazy {
		data, err := o.img.at(o.tags[elf.DT_SYMTAB]+index*symSize, symSize)
		if err != nil {
			return fmt.Errorf("cannot read its symbols: %w", err)
		}
		s := o.symbol(data)
		if elf.SectionIndex(s.Shndx) == elf.SHN_UNDEF && elf.SymBind(s.Info>>4) != elf.STB_WEAK && s.Name != 0 {
			o.imports = append(o.imports, imported{name: o.str(uint64(s.Name)), lazy: !eager[index] && !o.now})
		}
	}
	slices.SortFunc(o.imports, func(a, b imported) int { return strings.Compare(a.name, b.name) })
	return nil
}

// relocated are the symbols that a table of relocations names; kind is
// elf.DT_RELA or elf.DT_REL.
func (o *object) relocated(addr, size, kind elf.DynTag) (map[uint64]bool, error) {
	syms := map[uint64]bool{}
	if o.tags[size] == 0 {
		return syms, nil
	}
	data, err := o.img.at(o.tags[addr], o.tags[size])
	if err != nil {
		return nil, fmt.Errorf("cannot read its relocations: %w", err)
	}
	entry := 24
	if kind == elf.DT_REL {
		entry = 16
	}
	for ; len(data) >= entry; data = data[entry:] {
		if sym := o.img.order.Uint64(data[8:]) >> 32; sym != 0 {
			syms[sym] = true
		}
	}
	return syms, nil
}

// versionsMax bounds the symbol versions of one file.
const versionsMax = 1 << 16

// verFlagWeak marks a version that may be missing (VER_FLG_WEAK).
const verFlagWeak = 2

// readVersionNeeds reads which versions of symbols its libraries must define:
// ld.so refuses the whole file for one that is missing.
func (o *object) readVersionNeeds() error {
	return o.walkVersions(elf.DT_VERNEED, elf.DT_VERNEEDNUM, func(at uint64) (next uint64, err error) {
		head, err := o.img.at(at, 16)
		if err != nil {
			return 0, err
		}
		e := o.img.order
		library := o.str(uint64(e.Uint32(head[4:])))
		aux := at + uint64(e.Uint32(head[8:]))
		for range e.Uint16(head[2:]) {
			entry, err := o.img.at(aux, 16)
			if err != nil {
				return 0, err
			}
			if e.Uint16(entry[4:])&verFlagWeak == 0 {
				o.needs = append(o.needs, versionNeed{library, o.str(uint64(e.Uint32(entry[8:])))})
			}
			step := uint64(e.Uint32(entry[12:]))
			if step == 0 || len(o.needs) > versionsMax {
				break
			}
			aux += step
		}
		return uint64(e.Uint32(head[12:])), nil
	})
}

// readVersionDefs reads the versions that it defines itself.
func (o *object) readVersionDefs() error {
	return o.walkVersions(elf.DT_VERDEF, elf.DT_VERDEFNUM, func(at uint64) (next uint64, err error) {
		head, err := o.img.at(at, 20)
		if err != nil {
			return 0, err
		}
		e := o.img.order
		name, err := o.img.at(at+uint64(e.Uint32(head[12:])), 4)
		if err != nil {
			return 0, err
		}
		o.defines[o.str(uint64(e.Uint32(name)))] = true
		return uint64(e.Uint32(head[16:])), nil
	})
}

func (o *object) walkVersions(addr, num elf.DynTag, entry func(at uint64) (next uint64, err error)) error {
	at := o.tags[addr]
	for range min(o.tags[num], versionsMax) {
		next, err := entry(at)
		if err != nil {
			return fmt.Errorf("cannot read its versions: %w", err)
		}
		if next == 0 || len(o.needs) > versionsMax {
			break
		}
		at += next
	}
	return nil
}
