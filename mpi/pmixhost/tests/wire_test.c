// SPDX-License-Identifier: Apache-2.0
/* Frames: what stepd says is read whole or refused, and what is read is written
 * again as it was. Under the sanitizers. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "host.h"
#include "protocol.h"

static int failures;

#define CHECK(cond)                                                                                \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			printf("not ok %s:%d %s\n", __FILE__, __LINE__, #cond);                    \
			failures++;                                                                \
		}                                                                                  \
	} while (0)

static void example(struct out *w)
{
	pmix_proc_t who = {.nspace = "slurm.pmix.1.0", .rank = 7};
	uint32_t n = 42;
	bool yes = true;
	pmix_info_t *info, *inner;
	pmix_data_array_t array = {.type = PMIX_INFO, .size = 1};

	double number = 2.5;
	int8_t small = -3;
	struct timeval time = {.tv_sec = 3, .tv_usec = 4};
	pmix_envar_t var = {.envar = "A", .value = "b", .separator = ':'};

	PMIX_INFO_CREATE(info, 9);
	PMIX_INFO_LOAD(&info[0], PMIX_JOB_SIZE, &n, PMIX_UINT32);
	PMIX_INFO_LOAD(&info[1], PMIX_HOSTNAME, "node", PMIX_STRING);
	PMIX_INFO_LOAD(&info[2], PMIX_SPAWNED, &yes, PMIX_BOOL);
	PMIX_INFO_LOAD(&info[3], PMIX_PARENT_ID, &who, PMIX_PROC);
	PMIX_INFO_CREATE(inner, 1);
	PMIX_INFO_LOAD(&inner[0], PMIX_RANK, &who.rank, PMIX_PROC_RANK);
	array.array = inner;
	PMIX_INFO_LOAD(&info[4], PMIX_PROC_DATA, &array, PMIX_DATA_ARRAY);
	PMIX_INFO_LOAD(&info[5], "number", &number, PMIX_DOUBLE);
	PMIX_INFO_LOAD(&info[6], "small", &small, PMIX_INT8);
	PMIX_INFO_LOAD(&info[7], "time", &time, PMIX_TIMEVAL);
	PMIX_INFO_LOAD(&info[8], PMIX_SET_ENVAR, &var, PMIX_ENVAR);
	out_infos(w, info, 9);
	PMIX_INFO_FREE(inner, 1);
	PMIX_INFO_FREE(info, 9);
}

static bool read_back(const uint8_t *p, size_t len, struct out *again)
{
	struct reader r = rd_init(p, len);
	size_t n = 0;
	pmix_info_t *info = rd_infos(&r, &n);
	bool whole = rd_done(&r);

	if (whole && again != NULL)
		out_infos(again, info, n);
	if (info != NULL)
		PMIX_INFO_FREE(info, n);
	return whole;
}

int main(void)
{
	struct out w = {0}, again = {0};
	uint8_t *copy;
	uint32_t seed = 1;

	example(&w);
	CHECK(read_back(w.p, w.len, &again));
	CHECK(again.len == w.len && memcmp(again.p, w.p, w.len) == 0);
	copy = must(malloc(w.len));
	/* A copy of just so many bytes: one read beyond them is seen. */
	for (size_t n = 0; n < w.len; n++) {
		uint8_t *cut = must(malloc(n + 1));

		memcpy(cut, w.p, n);
		CHECK(!read_back(cut, n, NULL));
		free(cut);
	}
	for (int round = 0; round < 20000; round++) {
		memcpy(copy, w.p, w.len);
		for (int k = 0; k < 3; k++) {
			seed = seed * 1664525u + 1013904223u;
			copy[(seed >> 8) % w.len] = (uint8_t)(seed >> 24);
		}
		read_back(copy, w.len, NULL);
	}
	free(copy);
	out_free(&w);
	out_free(&again);
	if (failures == 0)
		printf("ok frames of pmixhost\n");
	return failures != 0;
}
