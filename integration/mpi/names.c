/* SPDX-License-Identifier: Apache-2.0
 *
 * Name publishing: a server publishes its port, a client looks it up and connects.
 *
 *   names groups NAME   the lower and the upper half of one world
 *   names server NAME   two steps of one job: this one waits for
 *   names client NAME   this one, which asks until the name exists
 *
 * The first rank of each side prints "SIDE ok N+M": its own ranks and the other's.
 */
#include <time.h>

#include "check.h"

/* talk merges both sides, adds up, and takes the connection down. */
static void talk(MPI_Comm inter, MPI_Comm own, const char *side, int high)
{
	int rank, size, remote;
	MPI_Comm all;

	MPI_Comm_rank(own, &rank);
	MPI_Comm_size(own, &size);
	MPI_Comm_remote_size(inter, &remote);
	MPI_Intercomm_merge(inter, high, &all);
	check_sum(all, size + remote);
	MPI_Comm_free(&all);
	MPI_Comm_disconnect(&inter);
	if (rank == 0) {
		printf("%s ok %d+%d\n", side, size, remote);
		fflush(stdout);
	}
}

static void server(MPI_Comm own, char *name)
{
	char port[MPI_MAX_PORT_NAME] = "";
	int rank;
	MPI_Comm inter;

	MPI_Comm_rank(own, &rank);
	if (rank == 0) {
		MPI_Open_port(MPI_INFO_NULL, port);
		MPI_Publish_name(name, MPI_INFO_NULL, port);
	}
	MPI_Comm_accept(port, MPI_INFO_NULL, 0, own, &inter);
	talk(inter, own, "server", 0);
	if (rank == 0) {
		MPI_Unpublish_name(name, MPI_INFO_NULL, port);
		MPI_Close_port(port);
	}
}

static void client(MPI_Comm own, char *name)
{
	char port[MPI_MAX_PORT_NAME] = "";
	const struct timespec pause = {0, 20000000};
	int rank, result = MPI_ERR_NAME;
	MPI_Comm inter;

	MPI_Comm_rank(own, &rank);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	/* Publishing has no message of its own: who needs the name asks again. */
	for (int i = 0; rank == 0 && i < 500; i++) {
		result = MPI_Lookup_name(name, MPI_INFO_NULL, port);
		if (result == MPI_SUCCESS)
			break;
		nanosleep(&pause, NULL);
	}
	if (rank == 0 && result != MPI_SUCCESS)
		wrong("the name \"%s\" was not published in 10 s", name);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
	MPI_Comm_connect(port, MPI_INFO_NULL, 0, own, &inter);
	talk(inter, own, "client", 1);
}

int main(int argc, char **argv)
{
	start(&argc, &argv);
	if (argc < 3)
		wrong("names groups|server|client NAME");
	if (strcmp(argv[1], "server") == 0) {
		server(MPI_COMM_WORLD, argv[2]);
	} else if (strcmp(argv[1], "client") == 0) {
		client(MPI_COMM_WORLD, argv[2]);
	} else {
		int upper = world_rank >= world_size / 2;
		MPI_Comm half;

		MPI_Comm_split(MPI_COMM_WORLD, upper, world_rank, &half);
		if (upper)
			client(half, argv[2]);
		else
			server(half, argv[2]);
		MPI_Comm_free(&half);
	}
	MPI_Finalize();
	return 0;
}
