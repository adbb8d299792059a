// SPDX-License-Identifier: Apache-2.0
/* A SPANK plugin for the tests: reports where it is called, and misbehaves as its
 * arguments say: fail=HOOK:RC crash=HOOK thread=HOOK helper=HOOK prepend opt. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(probe, 1)

static int calls; /* lives in the host, and is copied by the forks */

static void *idle(void *arg)
{
	(void)arg;
	pause();
	return NULL;
}

static void *crash(void *arg)
{
	raise(SIGSEGV);
	return arg;
}

/* CLOSE in the host's environment: the destructor crashes; CLOSE=thread: a thread does, for which
 * it waits. */
__attribute__((destructor)) static void destruct(void)
{
	const char *how = getenv("CLOSE");
	pthread_t thread;

	if (how == NULL)
		return;
	if (strcmp(how, "thread") != 0)
		raise(SIGSEGV);
	else if (pthread_create(&thread, NULL, crash, NULL) == 0)
		pthread_join(thread, NULL);
}

static unsigned long blocked(void)
{
	sigset_t set;
	unsigned long mask = 0;

	sigprocmask(SIG_BLOCK, NULL, &set);
	for (int sig = 1; sig < 32; sig++)
		mask |= (unsigned long)(sigismember(&set, sig) == 1) << (sig - 1);
	return mask;
}

static void tell(spank_t spank, const char *hook, int ac)
{
	uid_t r, e, s;
	gid_t rg, eg, sg;
	char cwd[256], fd2[256] = "";
	int rank = -1;
	pid_t pid = 0;
	mode_t mask = umask(0);

	umask(mask);
	getresuid(&r, &e, &s);
	getresgid(&rg, &eg, &sg);
	spank_get_item(spank, S_TASK_ID, &rank);
	spank_get_item(spank, S_TASK_PID, &pid);
	if (readlink("/proc/self/fd/2", fd2, sizeof(fd2) - 1) < 0)
		fd2[0] = '?';
	slurm_info("%s uid=%u,%u,%u gid=%u,%u,%u groups=%d cwd=%s blk=%lx umask=%o calls=%d ac=%d "
		   "task=%d pid=%d fd2=%.5s",
		   hook, r, e, s, rg, eg, sg, getgroups(0, NULL), getcwd(cwd, sizeof(cwd)),
		   blocked(), mask, calls, ac, rank, pid > 0 ? 1 : (int)pid, fd2);
}

static int opt_cb(int val, const char *optarg, int remote)
{
	slurm_info("option val=%d arg=%s remote=%d", val, optarg ? optarg : "(null)", remote);
	return strcmp(optarg ? optarg : "", "bad") == 0 ? -1 : 0;
}

static void misbehave(spank_t spank, const char *hook, const char *what)
{
	const char *prepend[] = {"/usr/bin/env", "PREPENDED=1"};
	pthread_t t;

	if (strncmp(what, "crash=", 6) == 0 && strcmp(what + 6, hook) == 0)
		raise(SIGSEGV);
	if (strncmp(what, "thread=", 7) == 0 && strcmp(what + 7, hook) == 0)
		pthread_create(&t, NULL, idle, NULL);
	if (strncmp(what, "exit=", 5) == 0 && strcmp(what + 5, hook) == 0)
		exit(0);
	if (strncmp(what, "helper=", 7) == 0 && strcmp(what + 7, hook) == 0 && fork() == 0) {
		slurm_error("from the helper");
		pause();
	}
	if (strcmp(what, "prepend") == 0 && strncmp(hook, "task_init", 9) == 0 && hook[9] == 0)
		slurm_info("prepend %d", spank_prepend_task_argv(spank, 2, prepend));
}

static void items(spank_t spank, const char *hook)
{
	uint32_t a = 0, b = 0, c = 0, d = 0;
	char buf[8] = "", *version = NULL;

	slurm_info("items %s %d %d %d %d %d env %d %d %d %d %d job %d remote %d getopt %d", hook,
		   spank_get_item(spank, S_JOB_LOCAL_TO_GLOBAL_ID, 1, &a),
		   spank_get_item(spank, S_JOB_LOCAL_TO_GLOBAL_ID, 3, &b),
		   spank_get_item(spank, S_JOB_GLOBAL_TO_LOCAL_ID, 99, &c),
		   spank_get_item(spank, S_JOB_PID_TO_LOCAL_ID, 1, &d),
		   spank_get_item(spank, S_TASK_EXIT_STATUS, &d), spank_getenv(spank, "NO", buf, 8),
		   spank_getenv(spank, "PATH", buf, 4), spank_getenv(spank, "PATH", NULL, 4),
		   spank_setenv(spank, "PATH", "x", 0), spank_unsetenv(spank, NULL),
		   spank_job_control_setenv(spank, "A", "b", 1), spank_remote(spank),
		   spank_option_getopt(spank, NULL, NULL));
	spank_get_item(spank, S_SLURM_VERSION, &version);
	slurm_info("null %d bogus %d version %s", spank_get_item(NULL, S_JOB_UID, &a),
		   spank_get_item(spank, (spank_item_t)999, &a), version);
}

static int hook(spank_t spank, const char *name, int ac, char **av)
{
	int rc = 0;

	calls++;
	tell(spank, name, ac);
	for (int i = 0; i < ac; i++) {
		size_t len = strlen(name);

		misbehave(spank, name, av[i]);
		if (strcmp(av[i], "items") == 0)
			items(spank, name);
		if (strncmp(av[i], "fail=", 5) == 0 && strncmp(av[i] + 5, name, len) == 0 &&
		    av[i][5 + len] == ':')
			rc = atoi(av[i] + 5 + len + 1);
		if (strcmp(av[i], "opt") == 0 && strcmp(name, "init") == 0) {
			struct spank_option opt = {(char *)"popt", NULL, (char *)"help", 1, 5,
						   opt_cb};
			struct spank_option flag = {(char *)"pflag", NULL, (char *)"help", 0, 6,
						    opt_cb};

			int first = spank_option_register(spank, &opt);

			slurm_info("register %d %d", first, spank_option_register(spank, &flag));
		}
	}
	return rc;
}

#define HOOK(name)                                                                                 \
	int slurm_spank_##name(spank_t spank, int ac, char **av)                                   \
	{                                                                                          \
		return hook(spank, #name, ac, av);                                                 \
	}

/* LIFE=RC in the host's environment: init() returns it, and both say that they are called. */
int init(void)
{
	const char *rc = getenv("LIFE");

	if (rc != NULL)
		slurm_info("init() in context %d", spank_context());
	return rc ? atoi(rc) : 0;
}

void fini(void)
{
	if (getenv("LIFE") != NULL)
		slurm_info("fini() in context %d", spank_context());
}

HOOK(init)
HOOK(init_post_opt)
HOOK(user_init)
HOOK(task_init_privileged)
HOOK(task_init)
HOOK(task_post_fork)
HOOK(task_exit)
HOOK(exit)
