// Package eventlog is a step's event log: its lines (Event), the line of many hook calls
// (HookCalls), and what the log looks like as bars (TimelineBuilder, Timeline).
//
// It opens no file: stepd and noded write the lines, stepctl draws them. Begin with Event.
package eventlog
