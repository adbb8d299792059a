package oci

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// configMax bounds a bundle's config.json, in bytes.
const configMax = 4 << 20

// config is a config.json: what is not changed is written back as it was.
type config map[string]json.RawMessage

// readConfig reads the config.json of a bundle.
func readConfig(bundle string) (config, error) {
	path := filepath.Join(bundle, "config.json")
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot read the bundle: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("cannot read the bundle: %q is no regular file", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, configMax+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read the bundle: %w", err)
	}
	if len(text) > configMax {
		return nil, fmt.Errorf("cannot read the bundle: %q has more than %d MiB", path, configMax>>20)
	}
	c, err := parseConfig(text)
	if err != nil {
		return nil, fmt.Errorf("cannot read the bundle: %q: %w", path, err)
	}
	return c, nil
}

// parseConfig reads a config.json, and whether what is to be changed in it can be.
func parseConfig(text []byte) (c config, err error) {
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, err
	}
	if c == nil {
		return nil, fmt.Errorf("it is no object")
	}
	_, err = c.apply(&changes{})
	return c, err
}

// changes are what a task's config.json has otherwise than its bundle's.
type changes struct {
	bundle   string
	args     []string
	env      []string
	first    bool // the bundle's variables come before the task's, which count
	terminal bool
	mounts   []mount
	noHooks  []string
}

type mount struct {
	Destination string   `json:"destination"`
	Type        string   `json:"type"`
	Source      string   `json:"source"`
	Options     []string `json:"options"`
}

func bind(source, destination string, more ...string) mount {
	return mount{destination, "none", source, append([]string{"bind"}, more...)}
}

// root is the root directory of the bundle's container as an absolute path, "" where the
// configuration has none.
func (c config) root(bundle string) (string, error) {
	var root struct{ Path string }
	if err := c.read("root", &root); err != nil || root.Path == "" || filepath.IsAbs(root.Path) {
		return root.Path, err
	}
	return filepath.Join(bundle, root.Path), nil
}

// read decodes a member; one that is missing changes nothing.
func (c config) read(name string, into any) error {
	text, ok := c[name]
	if !ok {
		return nil
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("cannot read %q: %w", name, err)
	}
	return nil
}

// apply returns the text of a task's config.json.
func (c config) apply(ch *changes) ([]byte, error) {
	out := make(map[string]any, len(c)+2)
	for name, text := range c {
		out[name] = text
	}
	process, root, hooks := config{}, config{}, config{}
	var mounts []json.RawMessage
	for name, into := range map[string]any{"process": &process, "root": &root, "hooks": &hooks, "mounts": &mounts} {
		if err := c.read(name, into); err != nil {
			return nil, err
		}
	}
	var own []string
	if err := process.read("env", &own); err != nil {
		return nil, err
	}
	path, err := c.root(ch.bundle)
	if err != nil {
		return nil, err
	}
	out["process"] = with(process, map[string]any{"args": ch.args, "env": environment(ch.env, own, ch.first), "terminal": ch.terminal})
	if path != "" {
		out["root"] = with(root, map[string]any{"path": path})
	}
	if len(ch.noHooks) > 0 && len(hooks) > 0 {
		for name := range hooks {
			if slices.ContainsFunc(ch.noHooks, func(no string) bool { return strings.EqualFold(no, name) }) {
				delete(hooks, name)
			}
		}
		out["hooks"] = hooks
	}
	if len(ch.mounts) > 0 {
		var all []any
		for _, m := range mounts {
			all = append(all, m)
		}
		for _, m := range ch.mounts {
			all = append(all, m)
		}
		out["mounts"] = all
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(out); err != nil {
		return nil, fmt.Errorf("cannot write config.json: %w", err)
	}
	return text.Bytes(), nil
}

// with is an object with some of its members replaced.
func with(c config, members map[string]any) map[string]any {
	for name, text := range c {
		if _, ok := members[name]; !ok {
			members[name] = text
		}
	}
	return members
}

// environment joins a bundle's variables to a task's. first puts them before the task's, as
// 22.05 does: the task's count. Else they count, but for Slurm's own, which say where the task is.
func environment(task, bundle []string, first bool) []string {
	if first {
		return slices.Concat([]string{}, bundle, task)
	}
	out := slices.Concat([]string{}, task)
	for _, e := range bundle {
		name, _, _ := strings.Cut(e, "=")
		at := slices.IndexFunc(out, func(o string) bool { return strings.HasPrefix(o, name+"=") })
		switch {
		case at < 0:
			out = append(out, e)
		case !strings.HasPrefix(name, "SLURM"):
			out[at] = e
		}
	}
	return out
}
