// SPDX-License-Identifier: Apache-2.0
/* A plugin that imports what nothing provides, and calls it where its argument
 * says: call=HOOK, fatal=HOOK, helper=HOOK. -DMANY: more than are told; -DOWN: with
 * theirs.c as a library of its own. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(imports, 1)

void slurm_fatal(const char *format, ...);
void nobody_has_this(void);
void slurm_update_node(void *msg);
void may_be_missing(void) __attribute__((weak));
int slurm_error_returns(const char *format, ...) __asm__("slurm_error");

void slurm_free_job_info_msg(void *msg);
void *their_message(void);
int their_freed(void);

#ifdef MANY
#define TEN(F, d)  F(d##0) F(d##1) F(d##2) F(d##3) F(d##4) F(d##5) F(d##6) F(d##7) F(d##8) F(d##9)
#define ALL(F)	   TEN(F, 1) TEN(F, 2) TEN(F, 3) TEN(F, 4) TEN(F, 5) TEN(F, 6) TEN(F, 7)
#define DECLARE(n) void many_##n(void);
#define CALL(n)	   many_##n();
ALL(DECLARE)
void call_all(void);
void call_all(void)
{
	ALL(CALL)
}
#endif

static void helper(void)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		nobody_has_this();
		_exit(0);
	}
	waitpid(pid, &status, 0);
	slurm_info("helper ended with %d", WEXITSTATUS(status));
}

static int visit(spank_t sp, const char *hook, int ac, char **av)
{
	for (int i = 0; i < ac; i++) {
		const char *where = strchr(av[i], '=');

		if (where == NULL || strcmp(where + 1, hook) != 0)
			continue;
		if (strncmp(av[i], "call=", 5) == 0)
			slurm_update_node(sp);
		if (strncmp(av[i], "other=", 6) == 0)
			nobody_has_this();
		if (strncmp(av[i], "fatal=", 6) == 0)
			slurm_fatal("no %s in %s", "way", hook);
		if (strncmp(av[i], "helper=", 7) == 0)
			helper();
#ifdef OWN
		if (strncmp(av[i], "own=", 4) == 0) {
			slurm_free_job_info_msg(their_message());
			slurm_info("theirs freed %d", their_freed());
		}
#endif
		if (strncmp(av[i], "fine=", 5) == 0) {
			hostlist_t *hl = slurm_hostlist_create("n[1-3]");
			char *first = slurm_hostlist_shift(hl);

			slurm_info("weak %d first %s rest %d error %d pow %g",
				   may_be_missing != NULL, first, slurm_hostlist_count(hl),
				   slurm_error_returns("an error"), pow(2, ac));
			free(first);
			slurm_hostlist_destroy(hl);
		}
	}
	return 0;
}

int slurm_spank_init(spank_t sp, int ac, char **av)
{
	return visit(sp, "init", ac, av);
}

int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	return visit(sp, "task_init", ac, av);
}
