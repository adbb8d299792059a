// Package lint checks a SPANK plugin stack before a step has to live with it:
// its files, its plugins, what these import and whom they trust. Begin with
// Check.
//
// A plugin's file is read, as the dynamic linker would read it, and nothing of
// it is executed; only who passes Config.Options lets plugins run.
package lint
