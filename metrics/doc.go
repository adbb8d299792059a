// Package metrics counts what happens on a node and shows it to Prometheus: New
// makes the counters, which package node tells of what happens (node.Meter), and
// Serve the page, with /livez and /readyz.
//
// No label is a user's to make: names are those of methods, states, stages and
// hooks, and of the site's plugins and generic resources; what is beyond a bound
// counts as "other".
package metrics
