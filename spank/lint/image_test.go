package lint

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBigTables: a file that lies about its sizes costs neither time nor memory.
func TestBigTables(t *testing.T) {
	b := newBench(t)
	good := must(os.ReadFile(b.plugin("good.so")))
	phoff := binary.LittleEndian.Uint64(good[32:])
	for i := range binary.LittleEndian.Uint16(good[56:]) {
		h := good[phoff+56*uint64(i):]
		binary.LittleEndian.PutUint64(h[32:], 1<<62) // filesz
		binary.LittleEndian.PutUint64(h[40:], 1<<62) // memsz
	}
	if _, err := objectOf(good); err == nil {
		t.Error("a table of 4 exabytes was read")
	}
}

func objectOf(data []byte) (*object, error) {
	img, err := readImage(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	return readObject("/x.so", img)
}

// FuzzObject: no file takes the reader down, and what it tells is bounded.
func FuzzObject(f *testing.F) {
	for _, style := range []string{"gnu", "sysv"} {
		so := filepath.Join(f.TempDir(), "seed.so")
		// As small as may be, with a hash table, versions and relocations.
		out, err := exec.Command("cc", "-fPIC", "-shared", "-nostdlib", "-s", "-DFUNCTION", "-DPOINTER", "-I../host/include", "testdata/plugin.c",
			"-Wl,-z,max-page-size=64,-z,noseparate-code,-z,norelro,--build-id=none", "-Wl,--hash-style="+style, "-lc", "-o", so).CombinedOutput()
		if err != nil {
			f.Fatalf("cc: %v\n%s", err, out)
		}
		f.Add(must(os.ReadFile(so)))
	}
	f.Add([]byte("\x7fELF\x02\x01\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := objectOf(data)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Fatalf("%q", err)
			}
			return
		}
		if len(o.needs) > versionsMax+1 || len(o.exports) > tableMax/symSize {
			t.Fatalf("%d versions, %d symbols", len(o.needs), len(o.exports))
		}
		for name, v := range o.variables {
			if len(v) > variableMax {
				t.Fatalf("%s has %d bytes", name, len(v))
			}
		}
	})
}

// cacheFile composes a cache of ldconfig(8).
func cacheFile(entries [][2]string, hwcap uint64) []byte {
	head := make([]byte, cacheHeader+cacheEntry*len(entries))
	copy(head, cacheMagic)
	binary.NativeEndian.PutUint32(head[20:], uint32(len(entries)))
	var text []byte
	for i, e := range entries {
		at := head[cacheHeader+cacheEntry*i:]
		for j, s := range e {
			binary.NativeEndian.PutUint32(at[4+4*j:], uint32(len(head)+len(text)))
			text = append(append(text, s...), 0)
		}
		if i == 0 {
			binary.NativeEndian.PutUint64(at[16:], hwcap)
		}
	}
	return append(head, text...)
}

func TestParseCache(t *testing.T) {
	entries := [][2]string{{"liba.so.1", "/fast/liba.so.1"}, {"liba.so.1", "/lib/liba.so.1"}, {"libb.so", "/lib/libb.so"}}
	old := append([]byte(cacheOldMagic), make([]byte, 4+3*cacheOldEntry)...)
	binary.NativeEndian.PutUint32(old[12:], 3)
	for len(old)%8 != 0 {
		old = append(old, 0)
	}
	for name, data := range map[string][]byte{"new": cacheFile(entries, 1<<62), "old before new": append(old, cacheFile(entries, 1<<62)...)} {
		got, err := parseCache(data)
		if err != nil || strings.Join(got["liba.so.1"], " ") != "/lib/liba.so.1 /fast/liba.so.1" || len(got) != 2 {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	for _, bad := range []string{"", "x", cacheMagic, cacheOldMagic + "\xff\xff\xff\xff"} {
		if _, err := parseCache([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
	data, err := os.ReadFile(cachePath)
	if err != nil {
		t.Skipf("no cache here: %v", err)
	}
	if got, err := parseCache(data); err != nil || len(got["libc.so.6"]) == 0 {
		t.Errorf("this machine's own: %d names, %v", len(got), err)
	}
}

func FuzzParseCache(f *testing.F) {
	f.Add(cacheFile([][2]string{{"a", "/a"}, {"b", "/b"}}, 1))
	f.Add([]byte(cacheOldMagic + "\x01\x00\x00\x00" + strings.Repeat("\x00", 16) + cacheMagic))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := parseCache(data)
		if err != nil && got != nil {
			t.Fatal("a result and an error")
		}
		for name, paths := range got {
			if name == "" || len(paths) == 0 || len(name) > nameMax {
				t.Fatalf("%q: %q", name, paths)
			}
		}
	})
}
