package bcast

import (
	"encoding/binary"
	"errors"
)

// minMatch is the shortest match of a block (lz4_Block_format.md).
const minMatch = 4

var errBlock = errors.New("it is no LZ4 block of that size")

// expand writes what an LZ4 block holds into dst, and says how much that is: never more
// than dst has room for, whatever the block says. The format is that of
// lz4_Block_format.md; a library of all of LZ4 would cost each step its memory.
func expand(dst, src []byte) (n int, err error) {
	for len(src) > 0 {
		token := src[0]
		literals, rest, ok := length(int(token>>4), src[1:])
		if !ok || literals > len(rest) || literals > len(dst)-n {
			return 0, errBlock
		}
		n += copy(dst[n:], rest[:literals])
		if src = rest[literals:]; len(src) == 0 {
			return n, nil // the last sequence has no match
		}
		if len(src) < 2 {
			return 0, errBlock
		}
		offset := int(binary.LittleEndian.Uint16(src))
		match, rest, ok := length(int(token&0xf), src[2:])
		if match += minMatch; !ok || offset == 0 || offset > n || match > len(dst)-n {
			return 0, errBlock
		}
		src = rest
		for end := n + match; n < end; { // it may reach into itself, and repeats then
			n += copy(dst[n:end], dst[n-offset:n])
		}
	}
	return 0, errBlock // an empty block, or one that ends with a match
}

// length reads the rest of a length of which the token has 4 bits.
func length(n int, src []byte) (whole int, rest []byte, ok bool) {
	if n < 15 {
		return n, src, true
	}
	for i, b := range src {
		if n += int(b); b < 255 {
			return n, src[i+1:], true
		}
	}
	return 0, nil, false
}
