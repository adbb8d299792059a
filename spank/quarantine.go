package spank

import (
	"slices"

	"stepd/step"
)

// LeaveOut takes the optional plugins out of the stack that conf has in
// quarantine, and returns a line for user and log about each.
func (s *Stack) LeaveOut(conf *step.SpankConf) []string {
	var lines []string
	s.Plugins = slices.DeleteFunc(s.Plugins, func(p Plugin) bool {
		q, ok := conf.Quarantine(p.Path)
		if !ok || p.Required {
			return false
		}
		if line := q.String(); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
		return true
	})
	return lines
}
