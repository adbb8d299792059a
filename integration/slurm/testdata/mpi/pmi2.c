/* SPDX-License-Identifier: Apache-2.0
 *
 * A client of Slurm's libpmi2: every rank puts a value, fences, and reads its right
 * neighbour's; then a node attribute goes to all of the node. Prints "rank R of N ok". With
 * an argument rank 1 aborts, and the others wait for it.
 */
#include <slurm/pmi2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(int rc, const char *what)
{
	if (rc != PMI2_SUCCESS) {
		fprintf(stderr, "pmi2: %s: error %d\n", what, rc);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	int spawned, size, rank, appnum, len = 0, found = 0;
	char job[256], key[64], value[256], want[256];

	check(PMI2_Init(&spawned, &size, &rank, &appnum), "init");
	if (argc > 1) {
		if (rank == 1)
			PMI2_Abort(1, argv[1]);
		sleep(30);
		return 0;
	}
	check(PMI2_Job_GetId(job, sizeof(job)), "job id");
	snprintf(key, sizeof(key), "card-%d", rank);
	snprintf(value, sizeof(value), "rank %d of %d", rank, size);
	check(PMI2_KVS_Put(key, value), "put");
	check(PMI2_KVS_Fence(), "fence");
	snprintf(key, sizeof(key), "card-%d", (rank + 1) % size);
	snprintf(want, sizeof(want), "rank %d of %d", (rank + 1) % size, size);
	check(PMI2_KVS_Get(job, PMI2_ID_NULL, key, value, sizeof(value), &len), "get");
	if (strcmp(value, want) != 0) {
		fprintf(stderr, "pmi2: rank %d got \"%s\", want \"%s\"\n", rank, value, want);
		return 1;
	}
	check(PMI2_Info_PutNodeAttr("shared", "by the node"), "put node attribute");
	check(PMI2_Info_GetNodeAttr("shared", value, sizeof(value), &found, 1),
	      "get node attribute");
	if (!found || strcmp(value, "by the node") != 0) {
		fprintf(stderr, "pmi2: rank %d has node attribute \"%s\"\n", rank, value);
		return 1;
	}
	printf("rank %d of %d ok\n", rank, size);
	check(PMI2_Finalize(), "finalize");
	return 0;
}
