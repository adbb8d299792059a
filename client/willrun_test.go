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
	holders := []api.Holder{{JobID: 3, ID: "3", User: "alice", CPUs: "0-3", MemoryMB: &mb, Gres: "gpu:1", Until: &at}, {JobID: 5, ID: "5", CPUs: "4"}}
	steps := []api.Holder{{JobID: 3, ID: "3.0", User: "alice", CPUs: "0-3", Until: &at}, {JobID: 3, ID: "3.batch", User: "alice", Gres: "gpu:1(IDX:0)"}}
	ahead := []api.NodeWaiting{{User: "bob", Name: "big", Since: at, For: "room: full; free at 12:04"}, {Since: at, For: "its turn: 1 request waits before it"}}
	for _, c := range []struct {
		name string
		in   api.WillRunReply
		want []string
	}{
		{"now", api.WillRunReply{When: api.WhenNow, CPUs: "0-1", MemoryMB: &mb}, []string{"it would start now, with CPUs 0-1, 100 MB"}},
		{"no job has it", api.WillRunReply{When: api.WhenLater, Why: "full"}, []string{"it would start later: full"}},
		{"behind others", api.WillRunReply{When: api.WhenLater, Why: "2 requests wait before it", Ahead: ahead, Holders: holders[:1]}, []string{
			"it would start later: 2 requests wait before it", "big of bob waits before it since 2026-11-29T12:03:01, for room: full; free at 12:04",
			"a request of another user waits before it since 2026-11-29T12:03:01, for its turn: 1 request waits before it",
			"job 3 of alice has CPUs 0-3, 100 MB, gpu:1, until 2026-11-29T12:03:01",
		}},
		{"with a time", api.WillRunReply{When: api.WhenLater, At: &at, Why: "full", Holders: holders[:1]}, []string{
			"it would start at 2026-11-29T12:03:01 at the latest: full", "job 3 of alice has CPUs 0-3, 100 MB, gpu:1, until 2026-11-29T12:03:01",
		}},
		{"without", api.WillRunReply{When: api.WhenLater, Why: "full", Holders: holders[1:]}, []string{
			"it would start when these jobs have ended, at a time that is not known: full", "job 5 of another user has CPUs 4, without a known end",
		}},
		{"a job without a number", api.WillRunReply{When: api.WhenLater, Why: "full", Holders: []api.Holder{{ID: "0", CPUs: "4"}}}, []string{
			"it would start when these jobs have ended, at a time that is not known: full", "a job that is being started has CPUs 4, without a known end",
		}},
		{"a step of a job", api.WillRunReply{When: api.WhenLater, Why: "full", Holders: steps}, []string{
			"it would start when these steps have ended, at a time that is not known: full", "step 3.0 of alice has CPUs 0-3, until 2026-11-29T12:03:01",
			"step 3.batch of alice has gpu:1(IDX:0), without a known end",
		}},
	} {
		if got := startWords(&c.in); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
