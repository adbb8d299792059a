package spank

import "fmt"

// Context says in which program a plugin is loaded, by the numbers of spank.h.
type Context uint32

const (
	ContextLocal     Context = 1 // stepctl run
	ContextRemote    Context = 2 // stepd
	ContextAllocator Context = 3 // stepctl alloc, stepctl batch
	ContextSlurmd    Context = 4 // noded
	ContextJobScript Context = 5 // prolog and epilog
)

// String is the context's name in spank(8).
func (c Context) String() string {
	names := [...]string{"", "local", "remote", "allocator", "slurmd", "job_script"}
	if c < 1 || int(c) >= len(names) {
		return fmt.Sprintf("context %d", uint32(c))
	}
	return names[c]
}
