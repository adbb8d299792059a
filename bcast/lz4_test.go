package bcast

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/pierrec/lz4/v4"

	"stepd/step"
)

func compressed(t testing.TB, data []byte) []byte {
	t.Helper()
	block := make([]byte, lz4.CompressBlockBound(len(data)))
	n, err := lz4.CompressBlock(data, block, nil)
	if err != nil {
		t.Fatal(err)
	}
	return block[:n]
}

func TestExpand(t *testing.T) {
	noise := make([]byte, 20000)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	for name, data := range map[string][]byte{
		"zeros":          make([]byte, step.SentChunk),
		"text":           []byte(strings.Repeat("the tasks run the program that is sent; ", 700)),
		"noise and text": append(bytes.Clone(noise[:3000]), bytes.Repeat(noise[:700], 30)...),
		"short":          []byte("abababababababababababababababab"),
		"far":            append(append(bytes.Clone(noise), make([]byte, 2000)...), noise[:4000]...),
	} {
		block := compressed(t, data)
		if len(block) == 0 || len(block) >= len(data) {
			t.Fatalf("%s: %d bytes were compressed to %d", name, len(data), len(block))
		}
		dst := make([]byte, len(data))
		if n, err := expand(dst, block); err != nil || !bytes.Equal(dst[:n], data) {
			t.Errorf("%s: %d of %d bytes, %v", name, n, len(data), err)
		}
		if n, err := expand(dst[:len(data)-1], block); err == nil {
			t.Errorf("%s: %d bytes had room in %d", name, n, len(data)-1)
		}
		for cut := range block {
			_, _ = expand(dst, block[:cut]) // and does not panic
		}
	}
	for name, block := range map[string]string{
		"empty": "", "no literals": "\x50abc", "half an offset": "\x10a\x01", "offset 0": "\x10a\x00\x00\x00",
		"before the beginning": "\x10a\x02\x00\x00", "endless literals": "\xf0\xff\xff\xff", "endless match": "\x1fa\x01\x00\xff\xff",
		"a bomb": "\x1fa\x01\x00" + strings.Repeat("\xff", 300) + "\x00\x10a", "ends with a match": "\x10a\x01\x00",
	} {
		if n, err := expand(make([]byte, step.SentChunk), []byte(block)); err == nil {
			t.Errorf("%s: %d bytes", name, n)
		}
	}
}

// FuzzExpand holds the block reader against the library that writes blocks.
func FuzzExpand(f *testing.F) {
	f.Add([]byte("\x1fa\x01\x00\x20\x50abcde"), 100)
	f.Add(compressed(f, []byte(strings.Repeat("stepd ", 50))), 300)
	f.Add([]byte("\x10a\x01\x00\x10b"), 6)
	f.Fuzz(func(t *testing.T, block []byte, room int) {
		if room < 0 || room > step.SentChunk {
			return
		}
		ours, theirs := make([]byte, room), make([]byte, room)
		n, err := expand(ours, block)
		m, lerr := lz4.UncompressBlock(block, theirs)
		if err == nil && lerr == nil && !bytes.Equal(ours[:n], theirs[:m]) {
			t.Errorf("%x in %d: %x, and the library has %x", block, room, ours[:n], theirs[:m])
		}
		// What it writes, it writes to be read; what it takes beyond the format is its own.
		if err != nil && lerr == nil && m > 0 && len(block) > 0 {
			if again := compressed(t, theirs[:m]); bytes.Equal(again, block) {
				t.Errorf("%x in %d: %v, and the library has %x", block, room, err, theirs[:m])
			}
		}
	})
}
