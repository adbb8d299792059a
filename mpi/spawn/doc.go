// Package spawn is what the steps of a job share, seen from the stepd of one of
// them: names that its MPI programs publish, which noded keeps, and steps that
// they start (MPI_Comm_spawn). Of a step that it has started this stepd is the
// launcher, as stepctl is of others: it hands the new tasks the streams of the rank
// that has asked, passes on what their stepd has to say, and waits for their end.
//
// It knows no protocol between ranks and stepd: the MPI plugins do, and come here
// as launch.MPIServices. Begin with New.
package spawn
