// Package launch is what package task and the mechanisms say to each other while a
// step runs: what a task gets (Launch), where the SPANK host is (HostPlace), how a task
// ended (TaskEnd), what an MPI plugin is given (MPIJob). Nothing of it is stored.
//
// It holds no mechanism. Begin with Launch.
package launch
