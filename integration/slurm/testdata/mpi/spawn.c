/* SPDX-License-Identifier: Apache-2.0
 *
 * A client of Slurm's libpmi2 that spawns other steps, with no MPI library around it.
 *
 *   spawn [HOW [INFO=VALUE...]]
 *
 * HOW is "one" (the default): two children of one command; "two": two commands, of two children
 * and one; "linger": "one" whose parents and children live until they are ended; "COMMAND": that
 * one, which cannot be started. Rank 0 of the parents publishes a name and spawns; the children
 * find the name and the key that they were given, and print what they are. When rank 0 of theirs
 * has published that all have come, the parent ends.
 */
#define _GNU_SOURCE
#include <slurm/pmi2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(int rc, const char *what)
{
	if (rc != PMI2_SUCCESS) {
		fprintf(stderr, "spawn: %s: error %d\n", what, rc);
		exit(1);
	}
}

static void child(int rank, int size, int appnum, char **argv)
{
	char job[256], value[256], cwd[256] = "?";
	int len = 0;

	check(PMI2_Job_GetId(job, sizeof(job)), "job id");
	check(PMI2_KVS_Get(job, PMI2_ID_NULL, "PARENT_ROOT_PORT_NAME", value, sizeof(value), &len),
	      "get");
	if (strcmp(value, "a port; with = and spaces") != 0) {
		fprintf(stderr, "spawn: child %d found \"%s\"\n", rank, value);
		exit(1);
	}
	check(PMI2_Nameserv_lookup("parent", NULL, value, sizeof(value)), "lookup");
	check(PMI2_KVS_Fence(), "fence");
	if (getcwd(cwd, sizeof(cwd)))
		printf("child %d of %d, command %d \"%s\" in %s: parent is %s\n", rank, size,
		       appnum, argv[2], strrchr(cwd, '/'), value);
	fflush(stdout);
	if (rank == 0)
		check(PMI2_Nameserv_publish("children", NULL, "all"), "publish");
	if (strcmp(argv[2], "linger") == 0)
		sleep(600);
	for (char **e = environ; *e; e++)
		if (strncmp(*e, "SLURM_PMI2_SP", 13) == 0 && !strstr(*e, "PORT"))
			printf("it has %s\n", *e);
}

/* spawn has the children started. */
static int spawn(const char *how, const char *self, int infos, struct MPID_Info *info)
{
	int count = strcmp(how, "two") == 0 ? 2 : 1;
	const char *word = strcmp(how, "linger") == 0 ? how : "first one";
	const char *one[] = {"child", word, NULL}, *two[] = {"child", "it's 100%", NULL};
	const char *commands[] = {self, self}, **args[] = {one, two};
	int argcs[] = {2, 2}, procs[] = {2, 1}, sizes[] = {infos, 0}, errors[3] = {0};
	const struct MPID_Info *list[] = {info, info};
	struct MPID_Info key = {.key = "PARENT_ROOT_PORT_NAME",
				.value = "a port; with = and spaces"};
	const struct MPID_Info *preput[] = {&key};
	char job[256] = "";

	int rc = PMI2_Job_Spawn(count, commands, argcs, args, procs, sizes, list, 1, preput, job,
				sizeof(job), errors);
	if (rc == PMI2_SUCCESS)
		for (int i = 0; i < (count == 1 ? 2 : 3); i++)
			if (errors[i])
				rc = errors[i];
	return rc;
}

int main(int argc, char **argv)
{
	int spawned, size, rank, appnum, infos = 0;
	char value[256];
	struct MPID_Info info[8] = {{0}};

	check(PMI2_Init(&spawned, &size, &rank, &appnum), "init");
	if (argc > 2 && strcmp(argv[1], "child") == 0) {
		if (!spawned)
			printf("child %d does not know its parent\n", rank);
		child(rank, size, appnum, argv);
		check(PMI2_Finalize(), "finalize");
		return 0;
	}
	const char *how = argc > 1 ? argv[1] : "one", *self = argv[0];
	for (; infos < 8 && infos + 2 < argc; infos++) {
		info[infos].key = argv[infos + 2];
		info[infos].value = strchr(argv[infos + 2], '=') + 1;
		info[infos].value[-1] = 0;
		info[infos].next = infos + 3 < argc ? &info[infos + 1] : NULL;
	}
	if (rank == 0) {
		check(PMI2_Nameserv_publish("parent", NULL, "here"), "publish");
		if (strcmp(how, "one") != 0 && strcmp(how, "two") != 0 &&
		    strcmp(how, "linger") != 0)
			self = how;
		int rc = spawn(how, self, infos, info);
		printf("spawn: %s\n", rc == PMI2_SUCCESS ? "ok" : "failed");
		fflush(stdout);
		while (rc == PMI2_SUCCESS &&
		       PMI2_Nameserv_lookup("children", NULL, value, sizeof(value)) != PMI2_SUCCESS)
			usleep(20000); /* names have no wait */
		if (strcmp(how, "linger") == 0)
			sleep(600);
		check(PMI2_Nameserv_unpublish("parent", NULL), "unpublish");
		if (PMI2_Nameserv_lookup("parent", NULL, value, sizeof(value)) == PMI2_SUCCESS)
			printf("the name is still there\n");
	}
	check(PMI2_KVS_Fence(), "fence");
	check(PMI2_Finalize(), "finalize");
	return 0;
}
