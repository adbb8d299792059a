/* SPDX-License-Identifier: Apache-2.0
 *
 * A client of Slurm's libpmi2: "fences N" has all ranks put a value and fence N times, and each
 * reads what the last rank has put. Rank 0 prints "fencing" after the first fence and at the
 * end how long a fence took, in microseconds. N of 0 is no end.
 */
#include <slurm/pmi2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void check(int rc, const char *what)
{
	if (rc != PMI2_SUCCESS) {
		fprintf(stderr, "fences: %s: error %d\n", what, rc);
		exit(1);
	}
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

int main(int argc, char **argv)
{
	int spawned, size, rank, appnum, len = 0;
	int times = argc > 1 ? atoi(argv[1]) : 1;
	char job[256], key[64], value[256], want[256];
	double began = 0;

	check(PMI2_Init(&spawned, &size, &rank, &appnum), "init");
	check(PMI2_Job_GetId(job, sizeof(job)), "job id");
	for (int i = 0; times == 0 || i <= times; i++) {
		snprintf(key, sizeof(key), "card-%d-%d", rank, i % 2);
		snprintf(value, sizeof(value), "%d of %d", i, rank);
		check(PMI2_KVS_Put(key, value), "put");
		check(PMI2_KVS_Fence(), "fence");
		snprintf(key, sizeof(key), "card-%d-%d", size - 1, i % 2);
		snprintf(want, sizeof(want), "%d of %d", i, size - 1);
		check(PMI2_KVS_Get(job, PMI2_ID_NULL, key, value, sizeof(value), &len), "get");
		if (strcmp(value, want) != 0) {
			fprintf(stderr, "fences: rank %d got \"%s\", want \"%s\"\n", rank, value,
				want);
			return 1;
		}
		if (i == 0) {
			if (rank == 0)
				printf("fencing\n");
			fflush(stdout);
			began = now();
		}
	}
	if (rank == 0)
		printf("%.0f\n", (now() - began) / times);
	check(PMI2_Finalize(), "finalize");
	return 0;
}
