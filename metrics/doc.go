// Package metrics counts what happens on a node and shows it to Prometheus: New
// makes the counters, which package node calls for each event (node.Meter), and
// Serve the page, with /livez and /readyz.
//
// No label is a user's to make: names are methods, states, stages, hooks, and
// the site's plugins and generic resources; what is beyond a bound
// counts as "other".
package metrics
