/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin that misbehaves on order. Arguments of its plugstack line:
 *
 *   hook=NAME   where to misbehave ("task_init"); everywhere else it returns 0
 *   do=WHAT     what to do there: "say" something, "print" it, "complain" on standard error
 *               alone, "fail", or one of misdeeds.h
 *   rank=N      only for this task
 *   mark=FILE   append "TAG HOOK RANK" to FILE in every hook
 *   tag=TEXT    the name in those marks
 *   option      register an option
 *   ctx=N       not in remote context but in that one (ruder.so, for the hooks)
 *   order=NAME  further arguments are in that variable of the job, so that steps
 *               beside each other can have their own
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <slurm/spank.h>

#include "misdeeds.h"

SPANK_PLUGIN(rude, 1)

static char order[1024];

/* The value of NAME=VALUE, which ends at a blank. */
static const char *argument(int ac, char **av, const char *name)
{
	static char values[5][256];
	static unsigned int next;
	size_t n = strlen(name);
	const char *found = NULL;

	for (int i = 0; i < ac; i++)
		if (av[i] != NULL && strncmp(av[i], name, n) == 0 && av[i][n] == '=')
			return av[i] + n + 1;
	for (const char *at = order; (at = strstr(at, name)) != NULL; at++)
		if (at[n] == '=' && (at == order || at[-1] == ' '))
			found = at + n + 1;
	if (found == NULL)
		return NULL;
	char *value = values[next++ % 5];
	snprintf(value, sizeof(values[0]), "%.*s", (int)strcspn(found, " "), found);
	return value;
}

static void mark(spank_t sp, const char *hook, int ac, char **av)
{
	const char *path = argument(ac, av, "mark"), *tag = argument(ac, av, "tag");
	char line[256], rank[16] = "-";
	uint32_t id;

	if (path == NULL)
		return;
	if (spank_get_item(sp, S_TASK_GLOBAL_ID, &id) == ESPANK_SUCCESS)
		snprintf(rank, sizeof(rank), "%u", id);
	int n = snprintf(line, sizeof(line), "%s %s %s\n", tag ? tag : "rude", hook, rank);
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (fd < 0 || write(fd, line, n) != n)
		slurm_error("rude: cannot write mark %s", path);
	if (fd >= 0) {
		fchmod(fd, 0666);
		close(fd);
	}
}

static int say(void)
{
	slurm_error("rude says %s", "error");
	slurm_info("rude says info");
	slurm_verbose("rude says verbose");
	slurm_debug("rude says debug");
	slurm_spank_log("rude says log");
	fprintf(stderr, "rude says stderr\n");
	fflush(stderr);
	printf("rude says stdout\n");
	fflush(stdout);
	return 0;
}

static int visit(const char *hook, spank_t sp, int ac, char **av)
{
	const char *name = argument(ac, av, "order");
	uint32_t id;

	if (strcmp(hook, "init") == 0 && ac > 0 && av[ac - 1] != NULL &&
	    strcmp(av[ac - 1], "option") == 0 &&
	    spank_option_register(sp, &option) != ESPANK_SUCCESS)
		return -1;
	order[0] = 0;
	const char *ctx = argument(ac, av, "ctx");
	if ((int)spank_context() != (ctx != NULL ? atoi(ctx) : S_CTX_REMOTE))
		return 0;
	if (name != NULL)
		(void)spank_getenv(sp, name, order, sizeof(order));
	const char *where = argument(ac, av, "hook"), *what = argument(ac, av, "do"),
		   *rank = argument(ac, av, "rank");
	mark(sp, hook, ac, av);
	if (where == NULL || what == NULL || strcmp(where, hook) != 0)
		return 0;
	if (rank != NULL && spank_get_item(sp, S_TASK_GLOBAL_ID, &id) == ESPANK_SUCCESS &&
	    (uint32_t)atoi(rank) != id)
		return 0;
	if (strcmp(what, "say") == 0)
		return say();
	if (strcmp(what, "print") == 0)
		return printf("printed in %s\n", hook) < 0; /* and does not flush it */
	if (strcmp(what, "complain") == 0)
		return fprintf(stderr, "complained in %s\n", hook) < 0;
	if (strcmp(what, "fail") == 0)
		return -1;
	return misbehave(what, sp, ac, av);
}

#define HOOK(name)                                                                                 \
	int slurm_spank_##name(spank_t sp, int ac, char *av[])                                     \
	{                                                                                          \
		return visit(#name, sp, ac, av);                                                   \
	}

HOOK(init)
HOOK(init_post_opt)
HOOK(user_init)
HOOK(task_init_privileged)
HOOK(task_init)
HOOK(task_post_fork)
HOOK(task_exit)
HOOK(exit)
