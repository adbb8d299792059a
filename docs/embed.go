// Package docs holds the documents of which man pages are made.
package docs

import _ "embed"

// Configuration is configuration.md: the keys of every file that noded reads.
//
//go:embed configuration.md
var Configuration string

// JSON is json.md: the documents that --json prints.
//
//go:embed json.md
var JSON string
