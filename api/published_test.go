package api_test

import (
	"os"
	"path/filepath"
	"testing"

	"stepd/api"
)

func TestPublished(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, api.PublishedName)
	client := &api.Client{Socket: filepath.Join(dir, "noded.sock")}
	good := `{"schema":1,"node":"n1","plugstack_digest":"d"}`
	for _, c := range []struct {
		name string
		make func() error
		want bool
	}{
		{"no file", func() error { return nil }, false},
		{"a file", func() error { return os.WriteFile(path, []byte(good), 0o644) }, true},
		{"of another schema", func() error { return os.WriteFile(path, []byte(`{"schema":2}`), 0o644) }, false},
		{"cut short", func() error { return os.WriteFile(path, []byte(good[:20]), 0o644) }, false},
		{"that others may write", func() error { os.WriteFile(path, []byte(good), 0o644); return os.Chmod(path, 0o666) }, false},
		{"a link", func() error {
			os.Rename(path, path+".real")
			os.Chmod(path+".real", 0o644)
			return os.Symlink(path+".real", path)
		}, false},
		{"a directory", func() error { os.Remove(path); return os.Mkdir(path, 0o755) }, false},
	} {
		if err := c.make(); err != nil {
			t.Fatal(err)
		}
		r, err := client.Published()
		if (err == nil) != c.want || c.want && (r.Node != "n1" || r.PlugstackDigest != "d") {
			t.Errorf("%s: %+v, %v", c.name, r, err)
		}
	}
}
