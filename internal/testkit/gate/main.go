// Command gate judges a run of tests: it reads the JSON records of
// `go test -json` (or of test2json in the guest) and exits 1 if a test or a
// build failed, a package's tests ended without a result, no test ran at all,
// or a test was skipped that skips.tsv does not allow to skip there. It prints
// a line for each package, its slowest tests, the output of what failed, and the
// skips.
//
//	go test -json ./... | go run ./internal/testkit/gate -where host
package main

import (
	_ "embed"
	"flag"
	"fmt"
	"os"
)

//go:embed skips.tsv
var skipsFile string

func main() {
	where := flag.String("where", "host", "where the tests run: host or guest")
	verbose := flag.Bool("v", false, "print the output of every test as it comes")
	flag.Parse()
	skips, err := parseSkips(skipsFile)
	if err != nil {
		fmt.Fprintf(os.Stderr, "gate: %v\n", err)
		os.Exit(1)
	}
	g := newGate(skips, *where, *verbose, os.Stdout)
	if err := g.read(os.Stdin); err != nil {
		fmt.Fprintf(os.Stderr, "gate: cannot read the records: %v\n", err)
		os.Exit(1)
	}
	if problems := g.end(); len(problems) > 0 {
		for _, p := range problems {
			fmt.Printf("gate: %s\n", p)
		}
		os.Exit(1)
	}
}
