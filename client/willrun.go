package client

import (
	"cmp"
	"context"
	"fmt"
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
	if len(w.Holders) == 0 {
		return []string{"it would start later: " + w.Why}
	}
	when := "when these jobs have ended, at a time that is not known"
	if w.At != nil {
		when = "at " + clockOf(*w.At) + " at the latest"
	}
	lines := []string{"it would start " + when + ": " + w.Why}
	for _, h := range w.Holders {
		until := "without a known end"
		if h.Until != nil {
			until = "until " + clockOf(*h.Until)
		}
		lines = append(lines, fmt.Sprintf("job %d of %s has %s, %s", h.JobID, cmp.Or(h.User, "another user"), resourceWords(h.CPUs, h.MemoryMB, h.Gres), until))
	}
	return lines
}

// clockOf is the time as users read it, never too early.
func clockOf(t time.Time) string {
	return t.Local().Add(time.Second - time.Nanosecond).Format("2006-01-02T15:04:05")
}

// resourceWords name CPUs, memory and gres.
func resourceWords(cpus string, mb *uint64, gres string) string {
	words := "CPUs " + cpus
	if mb != nil {
		words += ", " + srunopt.FormatMB(*mb)
	}
	if gres != "" {
		words += ", " + gres
	}
	return words
}
