// Package stepd is the root of the step daemon's module; it holds no code.
// Begin with README.md, then docs/HACKING.md.
package stepd
