/* SPDX-License-Identifier: Apache-2.0
 *
 * A client of libpmix without MPI, for the benchmark: pmix stay COUNT. Every rank
 * puts so many keys of 32 bytes, all fence with their data, rank 0 prints 0, and all
 * stay for a minute.
 */
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void check(pmix_status_t rc, const char *what)
{
	if (rc != PMIX_SUCCESS) {
		fprintf(stderr, "bench pmix: %s: %s\n", what, PMIx_Error_string(rc));
		exit(1);
	}
}

int main(int argc, char **argv)
{
	pmix_proc_t me, all;
	pmix_info_t collect;
	pmix_value_t value;
	bool yes = true;
	char key[64], text[64];

	if (argc != 3)
		return 1;
	check(PMIx_Init(&me, NULL, 0), "init");
	for (int i = 0; i < atoi(argv[2]); i++) {
		snprintf(key, sizeof(key), "k%d", i);
		snprintf(text, sizeof(text), "%032u", me.rank + i);
		value.type = PMIX_STRING;
		value.data.string = text;
		check(PMIx_Put(PMIX_GLOBAL, key, &value), "put");
	}
	check(PMIx_Commit(), "commit");
	PMIX_PROC_CONSTRUCT(&all);
	PMIX_LOAD_PROCID(&all, me.nspace, PMIX_RANK_WILDCARD);
	PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
	check(PMIx_Fence(&all, 1, &collect, 1), "fence");
	if (me.rank == 0)
		puts("0");
	fflush(stdout);
	sleep(60);
	check(PMIx_Finalize(NULL, 0), "finalize");
	return 0;
}
