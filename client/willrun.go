package client

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"stepd/api"
	"stepd/client/terminal"
	"stepd/srunopt"
	"stepd/step"
)

// willRun prints when the request would start. The code is 1 where it never would.
func willRun(client *api.Client, req *step.Request) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	reply, err := client.WillRun(ctx, &api.RunRequest{Request: req})
	if err != nil {
		return 0, err
	}
	if reply.When == api.WhenNever {
		return 0, fmt.Errorf("it would never start: %s", reply.Why)
	}
	for _, line := range startWords(reply) {
		terminal.Say("%s", line)
	}
	return 0, nil
}

// startWords say when a request would start, and what it waits for, in lines.
func startWords(w *api.WillRunReply) []string {
	if w.When == api.WhenNow {
		return []string{"it would start now, with " + resourceWords(w.CPUs, w.MemoryMB, w.Gres)}
	}
	of := "job"
	if len(w.Holders) > 0 && w.Holders[0].ID != fmt.Sprint(w.Holders[0].JobID) {
		of = "step"
	}
	when := "later"
	switch {
	case w.At != nil:
		when = "at " + clockOf(*w.At) + " at the latest"
	case len(w.Ahead) == 0 && len(w.Holders) > 0:
		when = "when these " + of + "s have ended, at a time that is not known"
	}
	lines := []string{"it would start " + when + ": " + w.Why}
	for _, r := range w.Ahead {
		lines = append(lines, fmt.Sprintf("%s of %s waits before it since %s, for %s", cmp.Or(r.Name, "a request"), cmp.Or(r.User, "another user"), clockOf(r.Since), r.For))
	}
	for _, h := range w.Holders {
		until := "without a known end"
		if h.Until != nil {
			until = "until " + clockOf(*h.Until)
		}
		who := fmt.Sprintf("%s %s of %s", of, h.ID, cmp.Or(h.User, "another user"))
		if h.JobID == 0 {
			who = "a job that is being started"
		}
		lines = append(lines, fmt.Sprintf("%s has %s, %s", who, resourceWords(h.CPUs, h.MemoryMB, h.Gres), until))
	}
	return lines
}

// clockOf is the time as users read it, never too early.
func clockOf(t time.Time) string {
	return t.Local().Add(time.Second - time.Nanosecond).Format("2006-01-02T15:04:05")
}

// resourceWords name CPUs, memory and gres.
func resourceWords(cpus string, mb *uint64, gres string) string {
	var words []string
	if cpus != "" {
		words = append(words, "CPUs "+cpus)
	}
	if mb != nil {
		words = append(words, srunopt.FormatMB(*mb))
	}
	if gres != "" {
		words = append(words, gres)
	}
	return strings.Join(words, ", ")
}
