package report

import (
	"testing"
	"time"

	"stepd/step"
)

// The last Tell returns when all ends are told, those that the timer tells too: what they are
// told to is closed then.
func TestEndsTell(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	var told []int
	e := NewEnds(func(ranks []int, _ step.ExitStatus) {
		close(begun)
		<-release
		told = append(told, ranks...)
	})
	e.Add(3, 0)
	<-begun // by the timer
	over := make(chan struct{})
	go func() { defer close(over); e.Tell() }()
	select {
	case <-over:
		t.Error("Tell has returned before the timer's end")
	case <-time.After(2 * endsDelay):
	}
	close(release)
	<-over
	if len(told) != 1 || told[0] != 3 {
		t.Errorf("told %v", told)
	}
}
