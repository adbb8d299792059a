/* SPDX-License-Identifier: Apache-2.0
 *
 * MPI_Comm_spawn and MPI_Comm_spawn_multiple, of this program itself. Parents and
 * children talk over the intercommunicator, merge it, and add up in the merged one.
 * Rank 0 of the parents prints "spawn ok N+K" and "spawn_multiple ok N+A+B".
 *
 * K is 2, A and B are 2 and 1. ON_NODE is a program to spawn instead, which runs its
 * arguments.
 */
#include <limits.h>
#include <unistd.h>

#include "check.h"

/* exchange is what both sides do with the intercommunicator. */
static void exchange(MPI_Comm inter, int is_child)
{
	int remote, token = 0, want = is_child ? 17 : 18;
	MPI_Comm all;

	MPI_Comm_remote_size(inter, &remote);
	if (world_rank == 0 && is_child) {
		MPI_Recv(&token, 1, MPI_INT, 0, 5, inter, MPI_STATUS_IGNORE);
		int answer = token + 1;
		MPI_Send(&answer, 1, MPI_INT, 0, 6, inter);
	} else if (world_rank == 0) {
		int question = 17;
		MPI_Send(&question, 1, MPI_INT, 0, 5, inter);
		MPI_Recv(&token, 1, MPI_INT, 0, 6, inter, MPI_STATUS_IGNORE);
	}
	if (world_rank == 0 && token != want)
		wrong("got %d over the intercommunicator, want %d", token, want);
	MPI_Intercomm_merge(inter, is_child, &all);
	check_sum(all, world_size + remote);
	int first = -1, rank;
	MPI_Comm_rank(all, &rank);
	/* The parents asked to come first. */
	if (is_child ? rank < remote : rank >= world_size)
		wrong("rank %d after the merge of %d and %d", rank, world_size, remote);
	if (rank == 0)
		first = world_size;
	MPI_Bcast(&first, 1, MPI_INT, 0, all);
	if (first != (is_child ? remote : world_size))
		wrong("%d parents, want %d", first, is_child ? remote : world_size);
	MPI_Comm_free(&all);
	MPI_Comm_disconnect(&inter);
}

/* child checks its own arguments: "child", its application's number, and a space. */
static void child(MPI_Comm parent, int argc, char **argv)
{
	int *number, flag = 0;

	if (argc != 4 || strcmp(argv[1], "child") != 0 || strcmp(argv[3], "with a space") != 0)
		wrong("the arguments did not arrive");
	MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &number, &flag);
	if (flag && *number != atoi(argv[2]))
		wrong("application number %d, want %s", *number, argv[2]);
	exchange(parent, 1);
}

/* What is spawned: this program, or ON_NODE, which runs it. */
static char self[PATH_MAX], *command, *first[] = {self, "child", "0", "with a space", NULL},
				      *second[] = {self, "child", "1", "with a space", NULL};

static char **arguments(char **all)
{
	return command == self ? all + 1 : all;
}

static void check_codes(const int *codes, int count)
{
	for (int i = 0; i < count; i++)
		if (codes[i] != MPI_SUCCESS)
			wrong("child %d has error %d", i, codes[i]);
}

static void multiple(int a, int b)
{
	char *commands[] = {command, command}, **args[] = {arguments(first), arguments(second)};
	int counts[] = {a, b}, codes[64];
	MPI_Info info[] = {MPI_INFO_NULL, MPI_INFO_NULL};
	MPI_Comm inter;

	MPI_Comm_spawn_multiple(2, commands, args, counts, info, 0, MPI_COMM_WORLD, &inter, codes);
	check_codes(codes, a + b);
	exchange(inter, 0);
	if (world_rank == 0)
		printf("spawn_multiple ok %d+%d+%d\n", world_size, a, b);
}

int main(int argc, char **argv)
{
	int codes[64], k = 2;
	MPI_Comm parent, inter;

	start(&argc, &argv);
	MPI_Comm_get_parent(&parent);
	if (parent != MPI_COMM_NULL) {
		child(parent, argc, argv);
		MPI_Finalize();
		return 0;
	}
	if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0)
		wrong("cannot read /proc/self/exe");
	command = getenv("ON_NODE") ? getenv("ON_NODE") : self;
	MPI_Comm_spawn(command, arguments(first), k, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &inter,
		       codes);
	check_codes(codes, k);
	exchange(inter, 0);
	if (world_rank == 0)
		printf("spawn ok %d+%d\n", world_size, k);
	multiple(2, 1);
	fflush(stdout);
	MPI_Finalize();
	return 0;
}
