package stepd_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The limits of the house: what is larger is no longer known at a glance.
const (
	maxNames   = 120 // exported names of package step, which every other package knows
	maxFiles   = 25  // production files of a folder
	maxMethods = 40  // of a type
	maxMain    = 600 // lines of a package main under cmd/
)

// tooLarge are the exceptions, each with its number of today and its reason.
// A type is "folder.Type".
var tooLarge = map[string]struct {
	most int
	why  string
}{}

func TestLayout(t *testing.T) {
	files, methods, mains := map[string]int{}, map[string]int{}, map[string]int{}
	err := filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() && (d.Name() == "build" || d.Name() == "testdata" || d.Name() == ".git") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		dir := filepath.Dir(path)
		files[dir]++
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if strings.HasPrefix(dir, "cmd/") {
			mains[dir] += bytes.Count(text, []byte("\n"))
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
				methods[dir+"."+receiver(fn.Recv.List[0].Type)]++
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	check := func(what string, count map[string]int, most int) {
		for name, n := range count {
			limit := most
			if x, ok := tooLarge[name]; ok && n > most {
				limit, used[name] = x.most, true
			}
			if n > limit {
				t.Errorf("%s has %d %s, and %d is the limit", name, n, what, limit)
			}
			if n < limit && limit > most {
				t.Errorf("%s has only %d %s: lower its exception of %d", name, n, what, limit)
			}
		}
	}
	check("files", files, maxFiles)
	check("methods", methods, maxMethods)
	check("lines", mains, maxMain)
	for name := range tooLarge {
		if !used[name] {
			t.Errorf("%s is within the limits: it is no exception any more", name)
		}
	}
}

// TestNamesOfStep counts the exported types, functions, variables and constants of package
// step. A word that one package uses belongs to that package; see the import rules for the
// vocabulary beside step.
func TestNamesOfStep(t *testing.T) {
	files, err := filepath.Glob("step/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal("no files of package step", err)
	}
	var names []string
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			names = append(names, declared(d)...)
		}
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !ast.IsExported(name) })
	if len(names) > maxNames {
		t.Errorf("step has %d exported names, and %d is the limit: %q", len(names), maxNames, names)
	}
}

// declared are the package-level names of a declaration, methods left out.
func declared(d ast.Decl) (names []string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			names = append(names, d.Name.Name)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				names = append(names, spec.Name.Name)
			case *ast.ValueSpec:
				for _, id := range spec.Names {
					names = append(names, id.Name)
				}
			}
		}
	}
	return names
}

// receiver is the name of a method's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}
