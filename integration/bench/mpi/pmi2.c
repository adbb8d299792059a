/* SPDX-License-Identifier: Apache-2.0
 *
 * A client of libpmi2 without MPI, for the benchmark.
 *
 *   pmi2 fence COUNT    so many empty fences; rank 0 prints the nanoseconds of each
 *   pmi2 keys COUNT     every rank puts so many keys of 32 bytes, all fence, and
 *                       each gets its neighbour's; rank 0 prints the nanoseconds of
 *                       the whole
 *   pmi2 stay COUNT     as keys, and all stay for a minute
 *   pmi2 idle COUNT     no PMI: rank 0 prints 0, and all stay for a minute
 */
#include <slurm/pmi2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char job[256];

static long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void check(int rc, const char *what)
{
	if (rc != PMI2_SUCCESS) {
		fprintf(stderr, "bench pmi2: %s: error %d\n", what, rc);
		exit(1);
	}
}

static void put(int rank, int count)
{
	char key[64], value[64];

	for (int i = 0; i < count; i++) {
		snprintf(key, sizeof(key), "k%d-%d", rank, i);
		snprintf(value, sizeof(value), "%032d", rank + i);
		check(PMI2_KVS_Put(key, value), "put");
	}
	check(PMI2_KVS_Fence(), "fence");
}

static void get(int rank, int count)
{
	char key[64], value[64], want[64];
	int len = 0;

	for (int i = 0; i < count; i++) {
		snprintf(key, sizeof(key), "k%d-%d", rank, i);
		snprintf(want, sizeof(want), "%032d", rank + i);
		check(PMI2_KVS_Get(job, PMI2_ID_NULL, key, value, sizeof(value), &len), "get");
		if (strcmp(value, want) != 0) {
			fprintf(stderr, "bench pmi2: key %s is \"%s\"\n", key, value);
			exit(1);
		}
	}
}

int main(int argc, char **argv)
{
	int spawned, size, rank, appnum, count;

	if (argc != 3)
		return 1;
	count = atoi(argv[2]);
	if (strcmp(argv[1], "idle") == 0) {
		if (strcmp(getenv("SLURM_PROCID"), "0") == 0)
			puts("0");
		fflush(stdout);
		return sleep(60) > 0;
	}
	check(PMI2_Init(&spawned, &size, &rank, &appnum), "init");
	check(PMI2_Job_GetId(job, sizeof(job)), "job id");
	check(PMI2_KVS_Fence(), "fence");
	if (strcmp(argv[1], "fence") == 0) {
		for (int i = 0; i < count; i++) {
			long long t = now();
			check(PMI2_KVS_Fence(), "fence");
			if (rank == 0)
				printf("%lld\n", now() - t);
		}
	} else {
		long long t = now();
		put(rank, count);
		get((rank + 1) % size, count);
		check(PMI2_KVS_Fence(), "fence");
		if (rank == 0)
			printf("%lld\n", now() - t);
		fflush(stdout);
		if (strcmp(argv[1], "stay") == 0)
			sleep(60);
	}
	check(PMI2_Finalize(), "finalize");
	return 0;
}
