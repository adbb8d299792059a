package slurmstepd

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"os/user"
	"strconv"
	"time"

	"stepd/step"
)

// lookupPatience bounds the question for SlurmUser, a part of the time in which slurmd waits.
const lookupPatience = 5 * time.Second

// slurmUID is the uid of SlurmUser, whose answers count and who may ask for all on the step's
// socket. Where it cannot be found, root alone is trusted.
func (d *daemon) slurmUID() uint32 {
	uid, err := uidOf(d.conf.Control.User)
	if err != nil {
		d.log.Errorf("cannot find SlurmUser: %v: signed answers of slurmctld are not trusted, and the ends of steps are sent again and again", err)
	}
	return uid
}

// uidOf is the uid of a user by name or number, who may be in LDAP or the like, which a static
// program does not see. It runs before anything else waits for children.
func uidOf(name string) (uint32, error) {
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		return uint32(n), nil
	}
	if u, err := user.Lookup(name); err == nil {
		n, err := strconv.ParseUint(u.Uid, 10, 32)
		return uint32(n), err
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/usr/bin/id", "-u", "--", name)
	cmd.Env, cmd.Dir, cmd.WaitDelay = []string{"PATH=" + step.SafePath, "LC_ALL=C"}, "/", time.Second
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("cannot look up user %q: %w: %.200q", name, err, bytes.TrimSpace(said.Bytes()))
	}
	n, err := strconv.ParseUint(string(bytes.TrimSpace(out)), 10, 32)
	if err != nil {
		return 0, fmt.Errorf("cannot look up user %q: id says %.80q", name, out)
	}
	return uint32(n), nil
}
