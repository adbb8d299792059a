/* A client of Slurm's libpmi2 for the tests: it makes every call that the
 * library has, checks what comes back, and prints "ok RANK of SIZE". */
#include <slurm/pmi2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank = -1, size, spawned, appnum;
static char jobid[256];

#define MUST(what)                                                                                 \
	do {                                                                                       \
		if (!(what)) {                                                                     \
			fprintf(stderr, "rank %d: line %d: wrong: %s\n", rank, __LINE__, #what);   \
			exit(99);                                                                  \
		}                                                                                  \
	} while (0)

static void key_values(int round)
{
	char key[64], want[PMI2_MAX_VALLEN], got[PMI2_MAX_VALLEN];
	int len;

	snprintf(key, sizeof key, "key=%d;%d", round, rank);
	snprintf(want, sizeof want, ";a=b;;%d c\n%d;", round, rank);
	/* The library sends keys as they are: a ';' in one would end the pair. */
	*strchr(key, ';') = ':';
	*strchr(key, '=') = '-';
	MUST(PMI2_KVS_Put(key, want) == PMI2_SUCCESS);
	MUST(PMI2_KVS_Fence() == PMI2_SUCCESS);
	for (int other = 0; other < size; other++) {
		snprintf(key, sizeof key, "key-%d:%d", round, other);
		snprintf(want, sizeof want, ";a=b;;%d c\n%d;", round, other);
		len = 0;
		MUST(PMI2_KVS_Get(jobid, PMI2_ID_NULL, key, got, sizeof got, &len) == PMI2_SUCCESS);
		MUST(!strcmp(got, want) && len == (int)strlen(want));
	}
	MUST(PMI2_KVS_Get(jobid, PMI2_ID_NULL, "nobody", got, sizeof got, &len) != PMI2_SUCCESS);
}

static void limits(void)
{
	char key[PMI2_MAX_KEYLEN + 1], value[PMI2_MAX_VALLEN + 1], got[PMI2_MAX_VALLEN + 1];
	int len;

	memset(key, 'k', sizeof key);
	key[PMI2_MAX_KEYLEN] = 0;
	key[0] = '0' + rank % 10;
	key[1] = '0' + rank / 10;
	memset(value, 'v', sizeof value);
	value[PMI2_MAX_VALLEN - 1] = 0;
	MUST(PMI2_KVS_Put(key, value) == PMI2_SUCCESS);
	MUST(PMI2_KVS_Fence() == PMI2_SUCCESS);
	MUST(PMI2_KVS_Get(jobid, rank, key, got, sizeof got, &len) == PMI2_SUCCESS);
	MUST(!strcmp(got, value) && len == PMI2_MAX_VALLEN - 1);
}

static void node_attributes(void)
{
	char name[64], got[PMI2_MAX_ATTRVALUE];
	int found = -1, list[64] = {0}, len = 0;

	MUST(PMI2_Info_GetNodeAttr("nobody", got, sizeof got, &found, 0) == PMI2_SUCCESS && !found);
	if (rank) {
		snprintf(name, sizeof name, "ready-%d", rank);
		MUST(PMI2_Info_PutNodeAttr(name, "yes") == PMI2_SUCCESS);
		MUST(PMI2_Info_GetNodeAttr("go", got, sizeof got, &found, 1) == PMI2_SUCCESS);
		MUST(found && !strcmp(got, "a;b"));
	} else {
		for (int other = 1; other < size; other++) {
			snprintf(name, sizeof name, "ready-%d", other);
			MUST(PMI2_Info_GetNodeAttr(name, got, sizeof got, &found, 1) ==
			     PMI2_SUCCESS);
			MUST(found && !strcmp(got, "yes"));
		}
		MUST(PMI2_Info_PutNodeAttr("go", "a;b") == PMI2_SUCCESS);
	}
	MUST(PMI2_Info_GetNodeAttrIntArray("localRanks", list, 64, &len, &found) == PMI2_SUCCESS);
	MUST(found && len == size && list[rank] == rank);
}

static void job_attributes(void)
{
	char want[64], got[PMI2_MAX_ATTRVALUE];
	int found = -1, number = -1, len = 0;

	snprintf(want, sizeof want, "(vector,(0,1,%d))", size);
	MUST(PMI2_Info_GetJobAttr("PMI_process_mapping", got, sizeof got, &found) == PMI2_SUCCESS);
	MUST(found && !strcmp(got, want));
	MUST(PMI2_Info_GetJobAttrIntArray("universeSize", &number, 1, &len, &found) ==
	     PMI2_SUCCESS);
	MUST(found && len == 1 && number == size);
	MUST(PMI2_Info_GetJobAttr("nobody", got, sizeof got, &found) == PMI2_SUCCESS && !found);
}

static void names(void)
{
	char port[256] = "";

	if (rank == 0)
		MUST(PMI2_Nameserv_publish("service", NULL, "tag#0;$host") == PMI2_SUCCESS);
	MUST(PMI2_KVS_Fence() == PMI2_SUCCESS);
	MUST(PMI2_Nameserv_lookup("service", NULL, port, sizeof port) == PMI2_SUCCESS);
	MUST(!strcmp(port, "tag#0;$host"));
	MUST(PMI2_Nameserv_publish("service", NULL, "again") != PMI2_SUCCESS);
	MUST(PMI2_KVS_Fence() == PMI2_SUCCESS);
	if (rank == 0)
		MUST(PMI2_Nameserv_unpublish("service", NULL) == PMI2_SUCCESS);
	MUST(PMI2_KVS_Fence() == PMI2_SUCCESS);
	MUST(PMI2_Nameserv_lookup("service", NULL, port, sizeof port) != PMI2_SUCCESS);
}

static void ring(void)
{
	char mine[32], left[32], right[32], want[32];
	int ring_rank = -1, ring_size = -1;

	snprintf(mine, sizeof mine, "<%d>", rank);
	MUST(PMIX_Ring(mine, &ring_rank, &ring_size, left, right, sizeof left) == PMI2_SUCCESS);
	MUST(ring_rank == rank && ring_size == size);
	snprintf(want, sizeof want, "<%d>", (rank + size - 1) % size);
	MUST(!strcmp(left, want));
	snprintf(want, sizeof want, "<%d>", (rank + 1) % size);
	MUST(!strcmp(right, want));
}

/* The server of the test starts nothing: it says what it was asked. */
static void spawn(void)
{
	const char *commands[] = {"/bin/true", "/bin/false"};
	const char *first[] = {"a;b", "c=d e"}, *second[] = {"x"};
	const char **argvs[] = {first, second};
	int argcs[] = {2, 1}, maxprocs[] = {2, 1}, infos[] = {1, 0}, errors[3] = {7, 7, 7};
	char key[] = "wdir", value[] = "/tmp", port[] = "port", tag[] = "tag#0;$x";
	const struct MPID_Info wdir = {.key = key, .value = value},
			       given = {.key = port, .value = tag};
	const struct MPID_Info *info[] = {&wdir, NULL}, *preput[] = {&given};
	char spawned_id[64] = "";

	MUST(PMI2_Job_Spawn(2, commands, argcs, argvs, maxprocs, infos, info, 1, preput, spawned_id,
			    sizeof spawned_id, errors) == PMI2_SUCCESS);
	MUST(!strcmp(spawned_id, "12.4") && errors[0] == 0 && errors[2] == 0);
	commands[0] = "/no/such/file";
	MUST(PMI2_Job_Spawn(1, commands, argcs, argvs, maxprocs, infos, info, 0, NULL, spawned_id,
			    sizeof spawned_id, errors) != PMI2_SUCCESS);
}

/* What the protocol knows and no server offers is refused, and the rank goes on. */
static void refusals(void)
{
	MUST(PMI2_Job_Connect("elsewhere", NULL) != PMI2_SUCCESS);
	MUST(PMI2_Job_Disconnect("elsewhere") != PMI2_SUCCESS);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "all";

	MUST(PMI2_Init(&spawned, &size, &rank, &appnum) == PMI2_SUCCESS);
	MUST(PMI2_Initialized() && !spawned && appnum == 0);
	MUST(size == atoi(getenv("PMI_SIZE")) && rank == atoi(getenv("PMI_RANK")));
	/* PMI2_Job_GetRank is not called: in 22.05 it answers 0 on every rank. */
	MUST(PMI2_Job_GetId(jobid, sizeof jobid) == PMI2_SUCCESS);
	MUST(!strcmp(jobid, getenv("PMI_JOBID")));

	if (!strcmp(mode, "all")) {
		for (int round = 0; round < 3; round++)
			key_values(round);
		limits();
		node_attributes();
		job_attributes();
		names();
		ring();
		spawn();
		refusals();
		MUST(PMI2_KVS_Fence() == PMI2_SUCCESS);
	} else {
		MUST(PMI2_KVS_Fence() == PMI2_SUCCESS);
		if (rank == size - 1) {
			if (!strcmp(mode, "abort"))
				PMI2_Abort(1, "boom; with=signs");
			if (!strcmp(mode, "exit"))
				_exit(3);
			if (!strcmp(mode, "crash"))
				abort();
			if (!strcmp(mode, "leave")) {
				MUST(PMI2_Finalize() == PMI2_SUCCESS);
				return 0;
			}
		}
		PMI2_KVS_Fence();
	}
	MUST(PMI2_Finalize() == PMI2_SUCCESS);
	printf("ok %d of %d\n", rank, size);
	return 0;
}
