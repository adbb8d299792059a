//go:build noevents

package report

const eventLog = false
