package main

import (
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// lookup asks the name service for a user's or a group's number.
func lookup(kind, name string) (uint64, error) {
	prog, err := beside("spankhost")
	if err != nil {
		return 0, err
	}
	if strings.ContainsAny(name, "\n\x00") {
		return 0, fmt.Errorf("no %s of this name", kind)
	}
	cmd := exec.Command(prog, "--lookup")
	cmd.Stdin = strings.NewReader(kind + " " + name + "\n")
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 2 {
		return 0, fmt.Errorf("no %s of this name", kind)
	}
	if err != nil {
		return 0, fmt.Errorf("cannot ask the name service: %w", err)
	}
	key := map[string]string{"user": "uid=", "group": "gid="}[kind]
	for _, l := range strings.Split(string(out), "\n") {
		if v, ok := strings.CutPrefix(l, key); ok {
			return strconv.ParseUint(v, 10, 32)
		}
	}
	return 0, fmt.Errorf("the name service gave no number for %s %q", kind, name)
}
