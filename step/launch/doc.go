// Package launch is what package task and the mechanisms say to each other while a
// step runs: what a task gets (Launch), where the SPANK host is (HostPlace), how a task
// ended (TaskEnd). Nothing of it is stored or leaves stepd.
//
// It holds no mechanism. Begin with Launch.
package launch
