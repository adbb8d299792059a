/* SPDX-License-Identifier: Apache-2.0
 *
 * The last rank ends the world with code 7 while the others wait in a barrier.
 */
#include "check.h"

int main(int argc, char **argv)
{
	start(&argc, &argv);
	if (world_rank == world_size - 1)
		MPI_Abort(MPI_COMM_WORLD, 7);
	MPI_Barrier(MPI_COMM_WORLD);
	printf("rank %d came through\n", world_rank);
	MPI_Finalize();
	return 0;
}
