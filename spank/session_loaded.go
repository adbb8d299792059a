package spank

import "slices"

// Hooks lists the hooks that the plugins have which were loaded, each once. It is valid
// after Open.
func (s *Session) Hooks() []string {
	hooks := []string{}
	for i, l := range s.host.loaded {
		if !s.host.keep[i] {
			continue
		}
		for _, h := range l.Hooks {
			if !slices.Contains(hooks, h) {
				hooks = append(hooks, h)
			}
		}
	}
	slices.Sort(hooks)
	return hooks
}

// Whole reports whether every plugin of the stack was loaded: an optional one that
// was not may be there the next time. It is valid after Open.
func (s *Session) Whole() bool { return !slices.Contains(s.host.keep, false) }
