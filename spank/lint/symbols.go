package lint

import (
	"debug/elf"
	"errors"
	"fmt"
	"slices"
	"strings"
)

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
