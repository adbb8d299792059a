package client

import (
	"slices"
	"testing"
	"time"

	"stepd/api"
)

// TestStartWords: what --test-only prints.
func TestStartWords(t *testing.T) {
	at := time.Date(2026, 11, 29, 12, 3, 0, 1, time.Local)
	mb := uint64(100)
	holders := []api.Holder{{JobID: 3, User: "alice", CPUs: "0-3", MemoryMB: &mb, Gres: "gpu:1", Until: &at}, {JobID: 5, CPUs: "4"}}
	for _, c := range []struct {
		name string
		in   api.WillRunReply
		want []string
	}{
		{"now", api.WillRunReply{When: api.WhenNow, CPUs: "0-1", MemoryMB: &mb}, []string{"it would start now, with CPUs 0-1, 100 MB"}},
		{"behind others", api.WillRunReply{When: api.WhenLater, Why: "1 request waits before it"}, []string{"it would start later: 1 request waits before it"}},
		{"with a time", api.WillRunReply{When: api.WhenLater, At: &at, Why: "full", Holders: holders[:1]}, []string{
			"it would start at 2026-11-29T12:03:01 at the latest: full", "job 3 of alice has CPUs 0-3, 100 MB, gpu:1, until 2026-11-29T12:03:01",
		}},
		{"without", api.WillRunReply{When: api.WhenLater, Why: "full", Holders: holders[1:]}, []string{
			"it would start when these jobs have ended, at a time that is not known: full", "job 5 of another user has CPUs 4, without a known end",
		}},
	} {
		if got := startWords(&c.in); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
