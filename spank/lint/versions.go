package lint

import (
	"debug/elf"
	"fmt"
)

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
