package lint

import (
	"bytes"
	"encoding/binary"
	"errors"
)

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
