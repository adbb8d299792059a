// Package live is stepd's half of output that others may see: the terminal of a step,
// whose programs go on when the client dies, and the clients that watch it. A Hub keeps the
// last of what the tasks write and passes it on; a caller that wants a second
// reader of a stream writes what passes by to Hub.Write. Begin with New.
package live
