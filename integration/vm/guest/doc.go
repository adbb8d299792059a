// Package guest holds tests of noded as a unit of systemd on a host with pure
// cgroup v2: started, stopped, restarted and killed as an administrator, a
// package manager or the kernel would. They take over the host's one
// noded.service, and so they run in the guest of integration/vm alone
// (`make vm-test`). unit_test.go has what begins and ends each of them.
package guest
