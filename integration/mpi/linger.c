/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank that says that it is up, and waits between init and finalize; or one that
 * ends badly while the others wait for it.
 *
 *   linger [RANK exit|kill|never|abort]
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int rank = 0, mine = atoi(getenv("SLURM_PROCID"));
	const char *what = argc > 2 && atoi(argv[1]) == mine ? argv[2] : "";

	if (!strcmp(what, "never"))
		return 3;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	printf("up %d\n", rank);
	fflush(stdout);
	if (!strcmp(what, "exit"))
		_exit(5);
	if (!strcmp(what, "kill"))
		kill(getpid(), SIGKILL);
	if (!strcmp(what, "abort"))
		MPI_Abort(MPI_COMM_WORLD, 9);
	if (argc > 2)
		MPI_Barrier(MPI_COMM_WORLD);
	else
		pause();
	MPI_Finalize();
	return 0;
}
