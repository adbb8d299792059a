package lint

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
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
