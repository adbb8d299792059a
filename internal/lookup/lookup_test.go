package lookup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// lookupScript makes a program that stands for spankhost.
func lookupScript(t *testing.T, body string) (l *Service, calls func() int) {
	t.Helper()
	dir := t.TempDir()
	path, log := filepath.Join(dir, "spankhost"), filepath.Join(dir, "calls")
	script := "#!/bin/sh\necho \"$* $(head -n1)\" >> " + log + "\n" + body
	// A fork of another test must not keep it open for writing: ETXTBSY.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return New(path), func() int {
		b, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if !strings.HasPrefix(line, "--lookup uid ") {
				t.Errorf("asked %q", line)
			}
		}
		return strings.Count(string(b), "\n")
	}
}

func TestLookup(t *testing.T) {
	const alice = "echo uid=1000\necho gid=1000\necho name=alice\necho groups=1000,27\n"
	l, calls := lookupScript(t, alice)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			u, err := l.ByUID(context.Background(), 1000)
			if err != nil || u.Name != "alice" || !slices.Equal(u.Groups, []uint32{1000, 27}) {
				t.Errorf("got %+v, %v", u, err)
			}
		})
	}
	wg.Wait()
	if n := calls(); n != 1 {
		t.Errorf("asked %d times for one uid, want once", n)
	}
	l.keep = 0
	if _, err := l.ByUID(context.Background(), 1000); err != nil || calls() != 2 {
		t.Errorf("an old answer was used (%v)", err)
	}
}

func TestLookupFails(t *testing.T) {
	for _, tc := range []struct{ name, body, says string }{
		{"no such user", "exit 2", "no such user"},
		{"error", "echo sssd is down >&2; exit 3", "sssd is down"},
		{"crash", "kill -SEGV $$", "segmentation fault"},
		{"garbage", "echo hello", "want key=value"},
		{"another user", "echo uid=0; echo gid=0; echo name=root", "the answer is about uid 0"},
		{"endless", "yes groups=1", "output of more than"},
		{"hang", "sleep 1000 & wait", "did not answer within"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l, _ := lookupScript(t, tc.body+"\n")
			l.deadline = time.Minute
			if tc.name == "hang" {
				l.deadline = 200 * time.Millisecond
			}
			begin := time.Now()
			_, err := l.ByUID(context.Background(), 1000)
			if err == nil || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), "uid 1000") {
				t.Errorf("got %v, want %q", err, tc.says)
			}
			if errors.Is(err, ErrNoUser) != (tc.name == "no such user") {
				t.Errorf("ErrNoUser: %v", err)
			}
			if d := time.Since(begin); d > 50*time.Second {
				t.Errorf("took %v", d)
			}
		})
	}
}

func TestParseUser(t *testing.T) {
	base := "uid=1\ngid=2\nname=a\n"
	for _, tc := range []struct{ name, in, says string }{
		{"least", base, ""},
		{"unknown key", base + "gecos=x=y\n", ""},
		{"no last newline", base + "groups=2,3", ""},
		{"no uid", "gid=2\nname=a\n", `no "uid"`},
		{"no name", "uid=1\ngid=2\n", `no "name"`},
		{"empty name", "uid=1\ngid=2\nname=\n", "is empty"},
		{"twice", base + "uid=1\n", "twice"},
		{"uid -1", "uid=4294967295\ngid=2\nname=a\n", "not a user or group id"},
		{"negative", "uid=-1\ngid=2\nname=a\n", "not a user or group id"},
		{"too large", "uid=1\ngid=99999999999\nname=a\n", "not a user or group id"},
		{"bad group", base + "groups=1,,2\n", "not a user or group id"},
		{"too many groups", base + "groups=" + strings.Repeat("1,", groupsMax) + "1\n", "at most 65536"},
		{"escape in the name", "uid=1\ngid=2\nname=a\x1b[2J\n", "control character"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			u, err := parseUser([]byte(tc.in))
			if tc.says == "" {
				if err != nil || u.UID != 1 || u.GID != 2 || u.Name != "a" || !slices.Contains(u.Groups, 2) {
					t.Errorf("got %+v, %v", u, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %+v, %v; want %q", u, err, tc.says)
			}
		})
	}
}

func FuzzParseUser(f *testing.F) {
	f.Add([]byte("uid=1000\ngid=1000\nname=alice\ngroups=1000,27\n"))
	f.Add([]byte("uid=1\ngid=4294967295\nname=a\n"))
	f.Add([]byte("groups=,\n"))
	f.Add([]byte("=\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		u, err := parseUser(b)
		if err != nil {
			return
		}
		const none = ^uint32(0)
		if u.Name == "" || u.UID == none || u.GID == none || !slices.Contains(u.Groups, u.GID) || len(u.Groups) > groupsMax+1 || slices.Contains(u.Groups, none) {
			t.Fatalf("accepted %+v", u)
		}
		if strings.ContainsAny(u.Name, "\n\x00\x1b") {
			t.Fatalf("accepted %+v", u)
		}
	})
}
