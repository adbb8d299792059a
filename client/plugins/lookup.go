package plugins

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"stepd/step"
)

// Lookup is the number of a user or a group, kind, by its name, for which it asks the name
// service, or as it is written.
func Lookup(kind, name string) (uint32, error) {
	if n, err := strconv.ParseUint(name, 10, 32); err == nil {
		return uint32(n), nil
	}
	if strings.ContainsAny(name, "\n\x00") {
		return 0, fmt.Errorf("no %s of this name", kind)
	}
	answer, err := AskNames(kind + " " + name)
	if errors.Is(err, errNoName) {
		return 0, fmt.Errorf("no %s of this name", kind)
	}
	if err != nil {
		return 0, err
	}
	v, ok := answer[map[string]string{"user": "uid", "group": "gid"}[kind]]
	if !ok {
		return 0, fmt.Errorf("the name service gave no number for %s %q", kind, name)
	}
	n, err := strconv.ParseUint(v, 10, 32)
	return uint32(n), err
}

// errNoName says that the name service knows no such user or group.
var errNoName = errors.New("the name service does not know it")

// AskNames asks one question of spankhost --lookup, and returns the fields of its answer.
func AskNames(question string) (map[string]string, error) {
	prog, err := Beside("spankhost")
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(prog, "--lookup")
	cmd.Env = HelperEnv()
	cmd.Stdin = strings.NewReader(question + "\n")
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 2 {
		return nil, errNoName
	}
	if err != nil {
		return nil, fmt.Errorf("cannot ask the name service: %w", err)
	}
	answer := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		if key, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "="); ok {
			answer[key] = value
		}
	}
	return answer, nil
}

// HelperEnv is the environment of the programs that stepctl starts for itself: a library that the
// user preloads would write between the words that they say.
func HelperEnv() []string {
	return []string{"PATH=" + step.SafePath, "LC_ALL=C"}
}

// Beside finds one of our programs: beside this one, else in the folders that
// it is installed in; never by PATH.
func Beside(name string, folders ...string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("cannot find %s: %w", name, err)
	}
	here := filepath.Dir(self)
	for _, dir := range append([]string{"."}, append(folders, "../libexec/stepd")...) {
		path := filepath.Join(here, dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("cannot find %s beside %q", name, self)
}
