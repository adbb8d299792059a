// Package build knows which build of the project a program is.
package build

import "runtime/debug"

// version is set by the linker: -X stepd/internal/build.version=V, as make does.
var version string

// Version is what was built: a release's number, else git's words for the commit,
// else what Go knows of it, else "unknown". It never has a space.
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "unknown"
}

// Line is the answer of each of the programs to --version, without its end of line.
func Line() string { return "stepd " + Version() }
