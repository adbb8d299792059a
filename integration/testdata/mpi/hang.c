// The last rank goes wrong as argv[1] says, before or after MPI_Init; the others
// go on to MPI_Finalize.
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	int rank = atoi(getenv("SLURM_PROCID"));
	int bad = rank == atoi(getenv("SLURM_NTASKS")) - 1;

	while (bad && !strcmp(how, "never"))
		pause();
	if (bad && !strcmp(how, "leaves"))
		return 3;
	MPI_Init(&argc, &argv);
	if (bad && !strcmp(how, "stopped"))
		raise(SIGSTOP);
	if (bad && !strcmp(how, "killed"))
		raise(SIGKILL);
	MPI_Finalize();
	return 0;
}
