/* SPDX-License-Identifier: Apache-2.0
 *
 * allreduce checks on every rank what MPI_Allreduce returns, for vectors of a
 * number up to 256 KiB, which takes the library through its short and its long
 * messages. Rank 0 prints one line. Any wrong element on any rank ends the
 * program with code 1 on that rank; so does a size other than that expected.
 *
 *     allreduce [RANKS]
 */
#include <stdio.h>
#include <stdlib.h>

#include <mpi.h>

/* Element i of rank r is (r+1)*(i%97+1), so the sum over ranks is known. */
static long check(long *mine, long *all, int count, int rank, int size)
{
	const long ranks = (long)size * (size + 1) / 2;
	long wrong = 0;

	for (int i = 0; i < count; i++) {
		mine[i] = (long)(rank + 1) * (i % 97 + 1);
		all[i] = -1;
	}
	MPI_Allreduce(mine, all, count, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < count; i++)
		wrong += all[i] != ranks * (i % 97 + 1);
	return wrong;
}

int main(int argc, char **argv)
{
	const int largest = 32768;
	int rank, size, rounds = 0;
	long wrong = 0, total = 0;
	long *mine, *all;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc > 1 && atoi(argv[1]) != size) {
		fprintf(stderr, "allreduce: rank %d: %d ranks, want %s\n", rank, size, argv[1]);
		MPI_Finalize();
		return 1;
	}
	mine = malloc(sizeof(*mine) * (size_t)largest);
	all = malloc(sizeof(*all) * (size_t)largest);
	if (mine == NULL || all == NULL) {
		fprintf(stderr, "allreduce: rank %d: no memory\n", rank);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	for (int count = 1; count <= largest; count *= 8, rounds++)
		wrong += check(mine, all, count, rank, size);
	if (wrong != 0)
		fprintf(stderr, "allreduce: rank %d: %ld wrong elements\n", rank, wrong);

	MPI_Reduce(&wrong, &total, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("allreduce on %d ranks: %d rounds, %ld wrong elements\n", size, rounds,
		       total);
	free(mine);
	free(all);
	MPI_Finalize();
	return wrong == 0 && total == 0 ? 0 : 1;
}
