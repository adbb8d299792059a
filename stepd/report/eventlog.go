//go:build !noevents

package report

// eventLog: the step writes its event log. Built with the tag noevents it writes none:
// so make bench measures what the log costs.
const eventLog = true
