package site

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryStackLineWrong: each kind of wrong line of plugstack.conf, in the file itself and
// in one that it includes, is a mistake with file and line to noded --check, and a reload is
// refused with the same words.
func TestEveryStackLineWrong(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} { // users read their stack
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	text := write(t, filepath.Join(dir, "text.so"), "no plugin\n")
	stack, part := filepath.Join(dir, "plugstack.conf"), filepath.Join(dir, "part.conf")
	o := Options{File: write(t, filepath.Join(dir, "slurm.conf"), "PlugStackConfig="+stack+"\n"), RunDir: dir, SpoolDir: dir}
	write(t, stack, "# one\n\n# three\n")
	now, err := Load(o)
	if err != nil {
		t.Fatal(err)
	}
	if found := now.stackProblems(); len(found) > 0 {
		t.Fatalf("a good stack: %v", found)
	}
	for _, c := range []struct{ name, line, says string }{
		{"a word of no meaning", "mandatory " + text, `The word "mandatory" is none of required, optional, include`},
		{"upper case", "Required " + text, `The word "Required" is none of`},
		{"an equals sign", "required=" + text, "is none of required, optional, include"},
		{"a path alone", text, "is none of required, optional, include"},
		{"no path", "required", `There is no path behind "required"`},
		{"a comment for a path", "optional # " + text, `There is no path behind "optional"`},
		{"an include of nothing", "include", `There is no path behind "include"`},
		{"a NUL byte", "required /x\x00.so", "There is a NUL byte in it"},
		{"what controls a terminal", "required\x1b[2J " + text, "is none of required, optional, include"},
		{"a plugin that is not there", "required " + dir + "/gone.so", "there is no plugin"},
		{"a plugin in no directory", "required gone.so", "gone.so"},
		{"a plugin that is none", "required " + text, "text.so"},
		{"a directory for a plugin", "required " + dir, dir},
		{"a pattern that is none", "include " + dir + "/[", "is no pattern"},
	} {
		for _, file := range []string{stack, part} {
			t.Run(c.name+" in "+filepath.Base(file), func(t *testing.T) {
				write(t, stack, "include "+part+"\n\n# three\n")
				write(t, part, "")
				write(t, file, "# one\n\n"+c.line+"\n")
				at := fmt.Sprintf("%s:3: ", file)
				s, err := Load(o)
				if err != nil {
					t.Fatal(err)
				}
				var b bytes.Buffer
				err = s.check(&b)
				if err == nil || !strings.Contains(err.Error(), "1 mistakes in the configuration") {
					t.Errorf("noded --check: %v", err)
				}
				line := ""
				for l := range strings.Lines(b.String()) { // beside them, that this test has no spankhost
					if strings.HasPrefix(l, "error: ") {
						line += l
					}
				}
				if !strings.HasPrefix(line, "error: "+at) || !strings.Contains(line, c.says) || strings.Count(line, "\n") != 1 || strings.ContainsAny(line, "\x00\x1b") {
					t.Errorf("noded --check prints %q", line)
				}
				if _, remedy, _ := strings.Cut(line, "; "); remedy == "" {
					t.Errorf("no remedy: %q", line)
				}
				if err := CheckReload(o, now, silent()); err == nil || err.Error()+"\n" != "cannot use the plugin stack: "+strings.TrimPrefix(line, "error: ") {
					t.Errorf("a reload: %v\nnoded --check: %s", err, line)
				}
			})
		}
	}
}
