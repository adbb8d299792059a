// Package stepio is the client's half of the tasks' standard streams. It
// decides which of the client's own descriptors the tasks may have, makes pipes
// for the others, hands all of them to stepd, and relays: stdin to every rank,
// output by whole lines, labelled where that was asked for. No daemon touches
// a byte. Begin with Open.
package stepio
