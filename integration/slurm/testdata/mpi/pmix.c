/* SPDX-License-Identifier: Apache-2.0
 *
 * A client of libpmix without MPI: every rank puts a value, fences with data, and reads
 * its right neighbour's. Prints "rank R of N ok". With an argument rank 1 aborts with that
 * code, and the others wait for it.
 */
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(pmix_status_t rc, const char *what)
{
	if (rc != PMIX_SUCCESS) {
		fprintf(stderr, "pmix: %s: %s\n", what, PMIx_Error_string(rc));
		exit(1);
	}
}

int main(int argc, char **argv)
{
	pmix_proc_t me, job, next;
	pmix_value_t value, *size, *found;
	pmix_info_t collect;
	bool yes = true;

	check(PMIx_Init(&me, NULL, 0), "init");
	PMIX_LOAD_PROCID(&job, me.nspace, PMIX_RANK_WILDCARD);
	check(PMIx_Get(&job, PMIX_JOB_SIZE, NULL, 0, &size), "get size");
	if (argc > 1) {
		if (me.rank == 1)
			PMIx_Abort(atoi(argv[1]), "on request", NULL, 0);
		sleep(30);
		return 0;
	}
	value.type = PMIX_UINT32;
	value.data.uint32 = 100 + me.rank;
	check(PMIx_Put(PMIX_GLOBAL, "card", &value), "put");
	check(PMIx_Commit(), "commit");
	PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
	check(PMIx_Fence(&job, 1, &collect, 1), "fence");
	PMIX_LOAD_PROCID(&next, me.nspace, (me.rank + 1) % size->data.uint32);
	check(PMIx_Get(&next, "card", NULL, 0, &found), "get");
	if (found->data.uint32 != 100 + next.rank) {
		fprintf(stderr, "pmix: the neighbour's card is %u\n", found->data.uint32);
		return 1;
	}
	printf("rank %u of %u ok\n", me.rank, size->data.uint32);
	check(PMIx_Finalize(NULL, 0), "finalize");
	return 0;
}
