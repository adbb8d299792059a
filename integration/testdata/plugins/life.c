// SPDX-License-Identifier: Apache-2.0
/* A plugin with init(), fini(), an atexit handler, a constructor and a destructor, each of which
 * writes NAME, the context and what it is to MARKS. IN=TEXT is the title of the host in which
 * BEGIN and FINI, statements, are carried out in init() and fini(), and FAILS in the hook that is the first
 * argument, which then returns -1; elsewhere it behaves. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/spank.h>

#ifndef NAME
#define NAME "life"
#endif
#ifndef TYPE
#define TYPE "spank"
#endif
#ifndef IN
#define IN "spankhost"
#endif
#ifndef BEGIN
#define BEGIN
#endif
#ifndef FINI
#define FINI
#endif
#ifndef FAILS
#define FAILS
#endif

const char plugin_name[] = NAME, plugin_type[] = TYPE;
const unsigned int plugin_version = SLURM_VERSION_NUMBER, spank_plugin_version = 1;

static pthread_t thread;
static int ends[2], ticks;

static void mark(const char *what)
{
	char line[256];
	int fd = open(MARKS, O_WRONLY | O_APPEND | O_CLOEXEC);
	int len = snprintf(line, sizeof(line), "%d %s %s\n", (int)spank_context(), NAME, what);

	if (fd >= 0 && write(fd, line, (size_t)len) == len)
		close(fd);
}

static int is_here(void)
{
	char title[256] = "";
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	ssize_t n = read(fd, title, sizeof(title) - 1);

	close(fd);
	return n > 0 && strstr(title, IN) != NULL;
}

static void at_exit(void)
{
	mark("atexit");
}

__attribute__((constructor)) static void construct(void)
{
	mark("constructor");
}

__attribute__((destructor)) static void destruct(void)
{
	mark("destructor");
}

#ifdef THREAD
/* Ends when fini() closes the pipe. */
static void *work(void *arg)
{
	char c;

	while (read(ends[0], &c, 1) > 0)
		ticks++;
	return arg;
}
#endif

#ifdef VARIABLES
int init = 1, fini = 2;
#elif !defined(NEITHER)
int init(void)
{
	mark("init()");
	atexit(at_exit);
#ifdef THREAD
	if (pipe2(ends, O_CLOEXEC) < 0 || pthread_create(&thread, NULL, work, NULL) != 0)
		return 1;
#endif
	if (is_here()) {
		BEGIN;
	}
	return 0;
}

void fini(void)
{
	mark("fini()");
#ifdef THREAD
	char line[64];

	close(ends[1]);
	pthread_join(thread, NULL);
	snprintf(line, sizeof(line), "joined %d", ticks);
	mark(line);
#endif
	if (is_here()) {
		FINI;
	}
}
#endif

#define HOOK(hook)                                                                                 \
	int slurm_spank_##hook(spank_t spank, int argc, char **argv)                               \
	{                                                                                          \
		if (ends[1] > 0)                                                                   \
			(void)!write(ends[1], "x", 1);                                             \
		mark(#hook);                                                                       \
		if (argc == 0 || strcmp(argv[0], #hook) != 0 || !is_here())                        \
			return 0;                                                                  \
		FAILS;                                                                             \
		return -1;                                                                         \
	}

HOOK(init)
HOOK(init_post_opt)
HOOK(local_user_init)
HOOK(user_init)
HOOK(task_post_fork)
HOOK(task_exit)
HOOK(exit)
HOOK(job_prolog)
HOOK(job_epilog)
HOOK(slurmd_exit)
#ifdef TASK_HOOKS
HOOK(task_init_privileged)
HOOK(task_init)
#endif
