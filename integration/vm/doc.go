// Command vm runs the project's tests on a host of its own: a Debian guest
// with systemd as process 1 and all controllers in cgroup v2, booted in qemu.
// The machine that the project is built on need not be such a host.
//
//	go run ./integration/vm                       the tests of tests.tsv
//	go run ./integration/vm -run RE [-pkg LIST]   these tests, listed or not
//	go run ./integration/vm -cmd 'COMMAND'        a shell command in the guest
//	go run ./integration/vm -build                the guest's image, no more
//
// It prints go test's JSON records, which internal/testkit/gate judges; its own
// messages go to stderr. The image is made once, from recipe/, and found
// again by the hash of that folder; whatever changes from run to run travels
// in a second, read-only disk, the share, mounted at /share: the programs,
// the test binaries (there is no Go in the guest) and the source tree
// that they look into. The guest's console and journal stay in the folder that
// -out names.
package main
