package node

import (
	"errors"
	"os"
	"reflect"
	"testing"

	"stepd/api"
)

// TestPublished: the file beside the socket is the last answer to "config", and goes with noded.
func TestPublished(t *testing.T) {
	digest, broken := "first", error(nil)
	dir := t.TempDir()
	tn := start(t, dir, func(c *Config) { c.StackDigest = func() (string, error) { return digest, broken } })
	client, _ := serveAs(t, tn, always(1000))
	at := &api.Client{Socket: tn.spool.Socket()}
	if r, err := at.Published(); err == nil {
		t.Errorf("before the first call: %+v", r)
	}
	for _, now := range []string{"first", "second", "second"} {
		digest = now
		answer, err := client.Config(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r, err := at.Published(); err != nil || !reflect.DeepEqual(r, answer) {
			t.Errorf("%s: %+v, %v, want %+v", now, r, err, answer)
		}
	}
	broken = errors.New("a line is wrong") // nothing to publish: a client must call
	if _, err := client.Config(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r, err := at.Published(); err != nil || r.PlugstackDigest != "second" {
		t.Errorf("after an error: %+v, %v", r, err)
	}
	path := tn.spool.Published()
	tn.stop()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the end: %v", err)
	}
	// A killed noded's file is not the next one's.
	if err := os.WriteFile(path, []byte(`{"schema":1}`), 0o644); err != nil {
		t.Fatal(err)
	}
	tn = start(t, dir, nil)
	defer tn.stop()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a killed noded's file: %v", err)
	}
}
