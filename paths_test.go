package stepd

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The ways through the code that docs/HACKING.md describes: each stop is a line of the form
// "1. `folder/file.go`: `function`, `Type.method`: what happens there".
var (
	pathStop = regexp.MustCompile("(?m)^\\d+\\. `([^`]+)`: ((?:`[^`]+`(?:,\\s+)?)+)")
	pathName = regexp.MustCompile("`([^`]+)`")
)

// TestHackingPaths holds the ways: every file and function that a stop names exists, no way is
// longer than it may be, and none comes back into a room that it has left.
func TestHackingPaths(t *testing.T) {
	doc := readText(t, "docs/HACKING.md")
	for _, way := range []struct {
		section                    string
		rooms, files, lines, stops int // at most; stops: at least
	}{
		{"From a request to exec", 8, 100, 1500, 12},
		{"From a cancel to the kill", 100, 7, 1500, 6},
		{"From srun to exec, under slurmd", 9, 12, 1000, 10},
	} {
		t.Run(way.section, func(t *testing.T) {
			var rooms, files []string
			lines, stops := 0, 0
			for _, stop := range pathStop.FindAllStringSubmatch(sectionOf(t, doc, way.section), -1) {
				stops++
				file := stop[1]
				if !slices.Contains(files, file) {
					files = append(files, file)
				}
				if room := path.Dir(file); len(rooms) == 0 || rooms[len(rooms)-1] != room {
					if slices.Contains(rooms, room) {
						t.Errorf("stop %d comes back into %s", stops, room)
					}
					rooms = append(rooms, room)
				}
				for _, name := range pathName.FindAllStringSubmatch(stop[2], -1) {
					n := linesOf(t, file, name[1])
					if n == 0 {
						t.Errorf("%s has no %s", file, name[1])
					}
					lines += n
				}
			}
			t.Logf("%d stops, %d rooms, %d files, %d lines", stops, len(rooms), len(files), lines)
			if stops < way.stops || len(rooms) > way.rooms || len(files) > way.files || lines > way.lines {
				t.Errorf("%d stops in %d rooms and %d files of %d lines; may be: from %d stops, to %d rooms, %d files, %d lines",
					stops, len(rooms), len(files), lines, way.stops, way.rooms, way.files, way.lines)
			}
		})
	}
}

// linesOf counts the lines of a function or method, of Go or C; 0 where the file has none of the name.
func linesOf(t *testing.T, file, name string) int {
	t.Helper()
	if strings.HasSuffix(file, ".c") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
			return 0
		}
		body := regexp.MustCompile(`(?ms)^[a-z_][^\n;]*\b` + name + `\([^;{]*\)\n\{.*?^\}`).Find(text)
		return strings.Count(string(body), "\n")
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, nil, 0)
	if err != nil {
		t.Error(err)
		return 0
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if ok && name == receiverOf(fn)+fn.Name.Name {
			return fset.Position(fn.End()).Line - fset.Position(fn.Pos()).Line + 1
		}
	}
	return 0
}

// receiverOf is "Type." of a method, and "" of a function.
func receiverOf(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return ""
	}
	of := fn.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if id, ok := of.(*ast.Ident); ok {
		return id.Name + "."
	}
	return ""
}
