/* SPDX-License-Identifier: Apache-2.0
 *
 * cpi computes pi with all ranks together: the integral of 4/(1+x*x) from 0 to
 * 1 by the midpoint rule, each rank every n-th interval. Rank 0 prints one
 * line; a result that is wrong, or a rank that is missing, ends the program
 * with a code other than 0 on every rank.
 *
 *     cpi [INTERVALS]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <mpi.h>

int main(int argc, char **argv)
{
	const double expected = 3.141592653589793;
	long intervals = 1000000;
	int rank, size, ok, length;
	double sum = 0, pi = 0, began, width;
	char node[MPI_MAX_PROCESSOR_NAME];

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Get_processor_name(node, &length);
	if (argc > 1 && rank == 0)
		intervals = strtol(argv[1], NULL, 10);
	MPI_Bcast(&intervals, 1, MPI_LONG, 0, MPI_COMM_WORLD);
	if (intervals < 1) {
		if (rank == 0)
			fprintf(stderr, "cpi: want a number of intervals of at least 1\n");
		MPI_Finalize();
		return 1;
	}

	MPI_Barrier(MPI_COMM_WORLD);
	began = MPI_Wtime();
	width = 1.0 / (double)intervals;
	for (long i = rank; i < intervals; i += size) {
		double x = width * ((double)i + 0.5);
		sum += 4.0 / (1.0 + x * x);
	}
	sum *= width;
	MPI_Reduce(&sum, &pi, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);

	/* The rule's own error is below width squared. */
	ok = rank != 0 || fabs(pi - expected) < width * width + 1e-10;
	if (rank == 0)
		printf("pi is %.12f on %d ranks of %s, off by %.1e, in %.6f s\n", pi, size, node,
		       fabs(pi - expected), MPI_Wtime() - began);
	MPI_Bcast(&ok, 1, MPI_INT, 0, MPI_COMM_WORLD);
	MPI_Finalize();
	return ok ? 0 : 1;
}
