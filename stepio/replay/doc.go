// Package replay keeps the tasks' output for clients that come later:
// the last bytes of it (Ring), the state of a terminal that they go to (Modes), and
// the frames in which stepd sends them to clients (Frame). It knows neither tasks
// nor sockets, so that stepd, noded and stepctl may all have it. Begin with Ring.
package replay
