package step

import (
	"fmt"
	"path/filepath"
	"slices"
)

// Quarantine is an optional plugin that is left out of steps.
type Quarantine struct {
	Path  string `json:"path"`
	Times int    `json:"times"` // crashes in a row
	Hook  string `json:"hook"`  // of the last one
}

// Why is the cause in words.
func (q Quarantine) Why() string {
	return fmt.Sprintf("crashed %d times in a row, last in %s", q.Times, q.Hook)
}

// String is the line for user and log.
func (q Quarantine) String() string {
	return fmt.Sprintf("spank: optional plugin %q is left out: it %s; stepctl node resume takes it in again", filepath.Base(q.Path), q.Why())
}

// Quarantine finds a plugin by its path.
func (c *SpankConf) Quarantine(path string) (q Quarantine, ok bool) {
	i := slices.IndexFunc(c.Quarantined, func(q Quarantine) bool { return q.Path == path })
	if i < 0 {
		return Quarantine{}, false
	}
	return c.Quarantined[i], true
}
