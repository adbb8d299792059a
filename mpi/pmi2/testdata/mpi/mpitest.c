/* An MPI program for the tests: each rank checks its own results and prints
 * "ok RANK of SIZE" at the end. An argument makes it end otherwise. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect(int good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "wrong: %s\n", what);
	MPI_Abort(MPI_COMM_WORLD, 99);
}

static void names(int rank)
{
	char port[MPI_MAX_PORT_NAME] = "";

	if (rank == 0)
		MPI_Publish_name("service", MPI_INFO_NULL, "tag#0$host");
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Lookup_name("service", MPI_INFO_NULL, port);
	expect(!strcmp(port, "tag#0$host"), "port of a published name");
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		MPI_Unpublish_name("service", MPI_INFO_NULL, "tag#0$host");
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
	expect(MPI_Lookup_name("service", MPI_INFO_NULL, port), "lookup after unpublish");
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	int rank, size, mine, sum;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	mine = rank + 1;
	MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	expect(sum == size * (size + 1) / 2, "sum of all ranks");

	if (!strcmp(mode, "names"))
		names(rank);
	if (!strcmp(mode, "abort") && rank == size - 1)
		MPI_Abort(MPI_COMM_WORLD, 42);
	if (!strcmp(mode, "exit") && rank == size - 1)
		_Exit(7);
	MPI_Finalize();
	printf("ok %d of %d\n", rank, size);
	return 0;
}
