package child

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

func TestMessage(t *testing.T) {
	for line, want := range map[string]string{
		"":            "",
		"plain words": "plain words",
		`time="x" level=error msg="a \"b\"" step=1.0`: `a "b"`,
		`level=error msg=word`:                        `level=error msg=word`,
		`x msg="no end`:                               `x msg="no end`,
		"a\x1b[2Jb\xff":                               "a [2Jb?",
		strings.Repeat("x", 400):                      strings.Repeat("x", 300) + "...",
	} {
		if got := Message(line); got != want {
			t.Errorf("Message(%q) = %q, want %q", line, got, want)
		}
	}
}

func FuzzMessage(f *testing.F) {
	f.Add(`time="x" level=error msg="a \"b\"" step=1.0`)
	f.Add(`x msg="`)
	f.Fuzz(func(t *testing.T, line string) {
		got := Message(line)
		if len(got) > 303 || strings.ContainsAny(got, "\n\x00\x1b") || !utf8.ValidString(got) {
			t.Fatalf("Message(%q) = %q", line, got)
		}
	})
}

// TestStderr: what stepd says comes through, and its end goes on to work when
// noded has gone.
func TestStderr(t *testing.T) {
	var out bytes.Buffer
	w, theirs, err := NewStderr(&out, false)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	for _, line := range []string{"one\n", "two", "\n", "three\nfour\n"} {
		if _, err := theirs.WriteString(line); err != nil {
			t.Fatal(err)
		}
	}
	if last := w.Finish(); last != "four" {
		t.Errorf("last line %q", last)
	}
	if out.String() != "one\ntwo\nthree\nfour\n" {
		t.Errorf("log %q", &out)
	}
	w.Close()
	if _, err := theirs.WriteString("five\n"); err == nil || errors.Is(err, unix.EPIPE) {
		t.Errorf("a write without a reader: %v; EPIPE would kill a Go program", err)
	}
}

// TestStderrCrash: of a crash, which Go's runtime writes word by word, the first line counts, and all
// of it is in the log.
func TestStderrCrash(t *testing.T) {
	for text, want := range map[string]string{
		"level=info msg=a\npanic: |runtime error: |index| out of range|\n\n|goroutine 1 [running]:|\n|main.main()\n|exit": "panic: runtime error: index out of range",
		"SIGABRT: abort|\n|PC=|0x1|\n|gs |0x0|\n":             "SIGABRT: abort",
		"fatal error: |all goroutines are asleep\n|rip 0x1\n": "fatal error: all goroutines are asleep",
		"one\ntwo SIGABRT: no\nlast":                          "last",
	} {
		var out bytes.Buffer
		w, theirs, err := NewStderr(&out, false)
		if err != nil {
			t.Fatal(err)
		}
		for word := range strings.SplitSeq(text, "|") {
			if _, err := theirs.WriteString(word); err != nil {
				t.Fatal(err)
			}
		}
		if got := w.Finish(); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
		w.Close()
		theirs.Close()
		if got, want := strings.ReplaceAll(out.String(), "\n\n", "\n"), strings.ReplaceAll(strings.TrimRight(strings.ReplaceAll(text, "|", ""), "\n")+"\n", "\n\n", "\n"); got != want {
			t.Errorf("the log has %q, want %q", got, want)
		}
	}
}

// TestJSONLines: in a log of JSON every line is JSON, whatever it was.
func TestJSONLines(t *testing.T) {
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	text := "{\"level\":\"info\",\"msg\":\"a\"}\npanic: \"x\"\n{half\n\xff\tz"
	want := []string{
		`{"level":"info","msg":"a"}`,
		`{"time":"2026-11-22T10:00:00.000Z","level":"error","msg":"panic: \"x\"","source":"stepd"}`,
		`{"time":"2026-11-22T10:00:00.000Z","level":"error","msg":"{half","source":"stepd"}`,
		`{"time":"2026-11-22T10:00:00.000Z","level":"error","msg":"?\tz","source":"stepd"}`,
	}
	if got := jsonLines(text, now); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s", got)
	}
	if got := Message(want[1]); got != `panic: "x"` {
		t.Errorf("the message of a JSON line: %q", got)
	}
}
