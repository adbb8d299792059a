// SPDX-License-Identifier: Apache-2.0
/*
 * stepkeeper: waits for the end of its step daemon. When that comes without a
 * goodbye, it kills the step and becomes the step daemon's program, which
 * removes and reports what is left (slurm/keeper/program/keeper.h). It is run
 * by slurmstepd, one for each step, in a session of its own; its title names
 * the step: "stepkeeper: [12.0]".
 *
 * It resolves no path and reads no file: what it needs it has inherited.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "keeper.h"

#ifndef STEPD_VERSION
#define STEPD_VERSION "unreleased"
#endif

/* What ends the daemon's group or the machine must not end the keeper before the daemon: that
 * says goodbye when it ends in order. The program that follows has the daemon's own way with
 * signals. */
static void on_signals(void (*handler)(int))
{
	static const int endings[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

	for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++)
		(void)signal(endings[i], handler);
}

/* Whether the daemon has said goodbye. Returns with its end, however that comes. */
static bool await_end(void)
{
	bool bye = false;
	char word;
	ssize_t n;

	do {
		n = read(KEEPER_FD_LIFE, &word, 1);
		if (n == 1 && word == KEEPER_BYE)
			bye = true;
	} while (!bye && (n > 0 || (n < 0 && errno == EINTR)));
	return bye;
}

/* Kills at once what the kernel can kill at one word: memory may be short, and the program that
 * follows takes some to start. That one waits for the end of it all, and kills the rest. */
static void strike(void)
{
	for (int fd = KEEPER_FD_KILL; fcntl(fd, F_GETFD) >= 0; fd++)
		while (write(fd, "1", 1) < 0 && errno == EINTR)
			continue;
}

/* Becomes the daemon's program. Memory may be short for a moment; the last reason why it cannot
 * is returned. */
static int become_orphan(const char *title)
{
	static const struct timespec pause = {.tv_nsec = 100 * 1000 * 1000};
	char name[64];
	char *argv[] = {name, KEEPER_ORPHAN, NULL};
	const char *step = title ? strchr(title, ':') : NULL;

	(void)snprintf(name, sizeof(name), "slurmstepd%s", step ? step : "");
	for (int tries = 0; tries < 100; tries++) {
		(void)execveat(KEEPER_FD_DAEMON, "", argv, environ, AT_EMPTY_PATH);
		strike();
		(void)nanosleep(&pause, NULL);
	}
	return errno;
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "--version") == 0)
		return printf("stepkeeper %s\n", STEPD_VERSION) < 0;
	if (argc != 1 || fcntl(KEEPER_FD_LOCK, F_GETFD) < 0) {
		(void)fprintf(stderr, "stepkeeper: this program is run by slurmstepd\n");
		return 1;
	}
	(void)fcntl(KEEPER_FD_LIFE, F_SETFL, 0); /* a read that would not wait is no end */
	(void)prctl(PR_SET_NAME, "stepkeeper");
	on_signals(SIG_IGN);
	if (await_end())
		return 0;
	strike();
	on_signals(SIG_DFL);
	int err = become_orphan(argv[0]);
	(void)fprintf(stderr, "%s: cannot report the step's end: cannot start slurmstepd: %s\n",
		      argv[0], strerror(err));
	return 1;
}
