/* SPDX-License-Identifier: Apache-2.0
 *
 * The world: each argument is a part, and all are run in their order.
 *
 *   hello      each rank prints "hello R of N on NODE"
 *   ring       a token goes round; every rank adds its number. Once: with ranks that
 *              wait busily and are more than the CPUs, each hop costs a time slice
 *   allreduce  integers, doubles, and the place of the largest
 *   alltoall   blocks of different lengths between all pairs
 *
 * Rank 0 prints "PART ok N" after each of the last three.
 */
#include "check.h"

static void hello(void)
{
	const char *node = getenv("SLURMD_NODENAME");

	printf("hello %d of %d on %s\n", world_rank, world_size, node ? node : "?");
	fflush(stdout);
}

static void ring(void)
{
	int left = (world_rank + world_size - 1) % world_size,
	    right = (world_rank + 1) % world_size;
	int token = 1000, back = -1, want = 1000 + world_size * (world_size - 1) / 2;
	MPI_Request sent;

	if (world_rank != 0) {
		MPI_Recv(&token, 1, MPI_INT, left, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		token += world_rank;
		MPI_Send(&token, 1, MPI_INT, right, 3, MPI_COMM_WORLD);
		return;
	}
	/* A world of one is its own neighbour. */
	MPI_Isend(&token, 1, MPI_INT, right, 3, MPI_COMM_WORLD, &sent);
	MPI_Recv(&back, 1, MPI_INT, left, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	MPI_Wait(&sent, MPI_STATUS_IGNORE);
	if (back != want)
		wrong("ring: the token came back as %d, want %d", back, want);
}

static void allreduce(void)
{
	struct {
		double value;
		int rank;
	} mine = {(world_rank * 7) % world_size, world_rank}, most;
	double part = 1.0 / (world_rank + 1), sum = 0, want = 0;

	check_sum(MPI_COMM_WORLD, world_size);
	MPI_Allreduce(&part, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < world_size; i++)
		want += 1.0 / (i + 1);
	if (sum < want - 1e-9 || sum > want + 1e-9)
		wrong("allreduce: %.12f, want %.12f", sum, want);
	MPI_Allreduce(&mine, &most, 1, MPI_DOUBLE_INT, MPI_MAXLOC, MPI_COMM_WORLD);
	double largest = 0;
	int place = 0;
	for (int i = 0; i < world_size; i++)
		if ((i * 7) % world_size > largest) {
			largest = (i * 7) % world_size;
			place = i;
		}
	if (most.rank != place)
		wrong("allreduce: the largest is at %d, want %d", most.rank, place);
}

/* block is how many numbers rank a sends to rank b. */
static int block(int a, int b)
{
	return (a + 2 * b) % 5;
}

static void alltoall(void)
{
	int *counts = calloc(4 * (size_t)world_size, sizeof(int));
	int *to = counts, *to_at = counts + world_size, *from = counts + 2 * world_size,
	    *from_at = counts + 3 * world_size;
	int out = 0, in = 0;

	for (int r = 0; r < world_size; r++) {
		to[r] = block(world_rank, r);
		from[r] = block(r, world_rank);
		to_at[r] = out;
		from_at[r] = in;
		out += to[r];
		in += from[r];
	}
	int *sent = calloc((size_t)out + 1, sizeof(int)),
	    *got = calloc((size_t)in + 1, sizeof(int));
	for (int r = 0; r < world_size; r++)
		for (int i = 0; i < to[r]; i++)
			sent[to_at[r] + i] = world_rank * 100000 + r * 10 + i;
	MPI_Alltoallv(sent, to, to_at, MPI_INT, got, from, from_at, MPI_INT, MPI_COMM_WORLD);
	for (int r = 0; r < world_size; r++)
		for (int i = 0; i < from[r]; i++)
			if (got[from_at[r] + i] != r * 100000 + world_rank * 10 + i)
				wrong("alltoall: number %d of rank %d is %d", i, r,
				      got[from_at[r] + i]);
	free(got);
	free(sent);
	free(counts);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} parts[] = {
		{"hello", hello}, {"ring", ring}, {"allreduce", allreduce}, {"alltoall", alltoall}};

	start(&argc, &argv);
	for (int i = 1; i < argc; i++) {
		size_t p = 0;

		while (p < sizeof(parts) / sizeof(parts[0]) && strcmp(argv[i], parts[p].name) != 0)
			p++;
		if (p == sizeof(parts) / sizeof(parts[0]))
			wrong("no part \"%s\"", argv[i]);
		parts[p].run();
		MPI_Barrier(MPI_COMM_WORLD);
		if (world_rank == 0 && parts[p].run != hello) {
			printf("%s ok %d\n", argv[i], world_size);
			fflush(stdout);
		}
	}
	MPI_Finalize();
	return 0;
}
