/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums the ranks with MPI_Allreduce and integrates pi as MPICH's cpi does;
 * rank 0 prints "ranks N sum S pi P".
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	int rank, size, sum = 0;
	const int steps = 10000;
	double part = 0, pi = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	for (int i = rank; i < steps; i += size) {
		double x = (i + 0.5) / steps;
		part += 4.0 / (1.0 + x * x);
	}
	part /= steps;
	MPI_Reduce(&part, &pi, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
	if (sum != size * (size - 1) / 2)
		MPI_Abort(MPI_COMM_WORLD, 9);
	if (rank == 0)
		printf("ranks %d sum %d pi %.4f\n", size, sum, pi);
	MPI_Finalize();
	return 0;
}
