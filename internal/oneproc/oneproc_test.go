package oneproc_test

import (
	"runtime"
	"testing"

	"stepd/internal/oneproc"
)

// TestProcessors: the program has one, and knows how many it may take.
func TestProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(1)
	if n := runtime.GOMAXPROCS(oneproc.Processors); n != 1 || oneproc.Processors < 1 {
		t.Errorf("%d processors in use, %d known", n, oneproc.Processors)
	}
	if n := runtime.GOMAXPROCS(0); n != oneproc.Processors {
		t.Errorf("%d processors in use, %d given back", n, oneproc.Processors)
	}
}
