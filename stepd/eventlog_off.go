//go:build noevents

package stepd

const eventLog = false
