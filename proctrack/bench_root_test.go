package proctrack

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// BenchmarkRootKill is the time from the kill to the kernel's word that the
// group is empty.
func BenchmarkRootKill(b *testing.B) {
	for _, tasks := range []int{0, 1, 64, 256} {
		b.Run(fmt.Sprintf("%d tasks", tasks), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				r, id, c := testStep(b) // HostCgroup serves until the first kill
				if tasks > 0 {
					spawnIn(b, c, `i=1; while [ $i -lt "$1" ]; do sleep 1000 & i=$((i+1)); done; echo ready; exec sleep 1000`, fmt.Sprint(tasks))
				}
				// The kernel holds back an event that follows the last one, here
				// the start, within 10 ms or some ticks more (cgroup_file_notify).
				time.Sleep(20 * time.Millisecond)
				b.StartTimer()
				if err := c.Kill(b.Context()); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := errors.Join(c.Destroy(b.Context()), r.KillStep(b.Context(), id)); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
