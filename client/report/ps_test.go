package report

import (
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"stepd/client"
)

// TestPSAsks: the table of ps, which shows no tasks, asks for none; its document has them.
func TestPSAsks(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan string, 1) // size 1: the listing of one ps
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/node", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"schema":1,"node":`+screenNode+"}") // the client may be gone
	})
	mux.HandleFunc("POST /v1/list", func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body) // as above
		asked <- strings.TrimSpace(string(b))
		w.Header().Set("Content-Type", "application/jsonl")
		_, _ = io.WriteString(w, `{"schema":1,"end":true}`+"\n") // as above
	})
	s := &http.Server{Handler: mux}
	served := make(chan error, 1) // size 1: read after the tests
	go func() { served <- s.Serve(l) }()
	defer func() {
		s.Close()
		<-served
	}()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	stdout := os.Stdout
	os.Stdout = null
	defer func() { os.Stdout = stdout }()
	for args, want := range map[string]string{
		"":             `{"schema":1,"no_tasks":true}`,
		"--all":        `{"schema":1,"all":true,"no_tasks":true}`,
		"--json":       `{"schema":1}`,
		"--all --json": `{"schema":1,"all":true}`,
	} {
		c := PSCommand(&client.Dialer{Socket: socket})
		c.SetArgs(strings.Fields(args))
		if err := c.Execute(); err != nil {
			t.Fatalf("ps %s: %v", args, err)
		}
		if got := <-asked; got != want {
			t.Errorf("ps %s asks %s, want %s", args, got, want)
		}
	}
}
