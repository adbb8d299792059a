/* SPDX-License-Identifier: Apache-2.0
 *
 * What the MPI test programs share. A program that finds something wrong says
 * what on stderr and ends the world with code 9; it never prints its last line.
 */
#ifndef CHECK_H
#define CHECK_H

#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int world_rank, world_size;

/* wrong says what is wrong and ends the world. */
static inline void wrong(const char *format, ...)
{
	va_list ap;

	fprintf(stderr, "rank %d of %d: ", world_rank, world_size);
	va_start(ap, format);
	vfprintf(stderr, format, ap);
	va_end(ap);
	fputc('\n', stderr);
	MPI_Abort(MPI_COMM_WORLD, 9);
	abort();
}

static inline void start(int *argc, char ***argv)
{
	MPI_Init(argc, argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
	MPI_Comm_size(MPI_COMM_WORLD, &world_size);
}

/* check_sum adds the ranks of comm, which has size of them. */
static inline void check_sum(MPI_Comm comm, int size)
{
	int rank, got_size, sum = -1;

	MPI_Comm_rank(comm, &rank);
	MPI_Comm_size(comm, &got_size);
	if (got_size != size)
		wrong("a communicator of %d ranks, want %d", got_size, size);
	MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, comm);
	if (sum != size * (size - 1) / 2)
		wrong("allreduce of %d ranks: %d, want %d", size, sum, size * (size - 1) / 2);
}

#endif
