/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin that misbehaves on order. Arguments of its plugstack line:
 *
 *   hook=NAME   where to misbehave ("task_init"); everywhere else it returns 0
 *   do=WHAT     what to do there, see misbehave()
 *   rank=N      only for this task
 *   mark=FILE   append "TAG HOOK RANK" to FILE in every hook
 *   tag=TEXT    the name in those marks
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(rude, 1)

static const char *argument(int ac, char **av, const char *name)
{
	size_t n = strlen(name);
	for (int i = 0; i < ac; i++)
		if (strncmp(av[i], name, n) == 0 && av[i][n] == '=')
			return av[i] + n + 1;
	return NULL;
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

static void *sleeper(void *arg)
{
	for (;;)
		pause();
	return arg;
}

/* A helper that leaves the session, the process group and its parent. */
static void daemonize(const char *how)
{
	pid_t pid = fork();
	if (pid > 0) {
		waitpid(pid, NULL, 0);
		return;
	}
	if (strcmp(how, "daemon") == 0) {
		setsid();
		if (fork() > 0)
			_exit(0);
	}
	signal(SIGTERM, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	execl("/bin/sleep", "sleep", "86399", (char *)NULL);
	_exit(127);
}

static int misbehave(const char *what)
{
	if (strcmp(what, "segv") == 0) {
		volatile int *nowhere = NULL;
		*nowhere = 1;
	} else if (strcmp(what, "abort") == 0) {
		abort();
	} else if (strcmp(what, "exit") == 0) {
		exit(3);
	} else if (strcmp(what, "kill") == 0) {
		raise(SIGKILL);
	} else if (strcmp(what, "hang") == 0) {
		for (;;)
			pause();
	} else if (strcmp(what, "closefds") == 0) {
		close_range(3, ~0U, 0);
	} else if (strcmp(what, "daemon") == 0) {
		daemonize(what);
	} else if (strcmp(what, "thread") == 0) {
		pthread_t t;
		pthread_create(&t, NULL, sleeper, NULL);
	} else if (strcmp(what, "chdir") == 0) {
		return chdir("/usr");
	} else if (strcmp(what, "umask") == 0) {
		umask(0);
	} else if (strcmp(what, "say") == 0) {
		slurm_error("rude says %s", "error");
		slurm_info("rude says info");
		slurm_verbose("rude says verbose");
		slurm_debug("rude says debug");
		slurm_spank_log("rude says log");
		fprintf(stderr, "rude says stderr\n");
		fflush(stderr);
		printf("rude says stdout\n");
		fflush(stdout);
	} else if (strncmp(what, "rc=", 3) == 0) {
		return atoi(what + 3);
	}
	return 0;
}

static int visit(const char *hook, spank_t sp, int ac, char **av)
{
	const char *where = argument(ac, av, "hook"), *what = argument(ac, av, "do"),
		   *rank = argument(ac, av, "rank");
	uint32_t id;

	if (!spank_remote(sp))
		return 0;
	mark(sp, hook, ac, av);
	if (where == NULL || what == NULL || strcmp(where, hook) != 0)
		return 0;
	if (rank != NULL && spank_get_item(sp, S_TASK_GLOBAL_ID, &id) == ESPANK_SUCCESS &&
	    (uint32_t)atoi(rank) != id)
		return 0;
	return misbehave(what);
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
