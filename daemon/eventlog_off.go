//go:build noevents

package daemon

const eventLog = false
