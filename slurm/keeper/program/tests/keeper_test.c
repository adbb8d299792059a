// SPDX-License-Identifier: Apache-2.0
/*
 * Runs the program that KEEPER names as a step daemon does. In the place of
 * the daemon's program it becomes this test's own, run with --orphan.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "keeper.h"

#define CHECK(what)                                                                                \
	do {                                                                                       \
		if (!(what)) {                                                                     \
			(void)fprintf(stderr, "%s:%d: %s\n", __func__, __LINE__, #what);           \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

/* One keeper under test. Two memory files stand for the cgroups' kill files. */
struct run {
	pid_t pid;
	int life;
	int estate, kill[2];
};

/* Puts descriptors where the keeper expects them, and runs it. */
static _Noreturn void child(const struct run *r, int life, int daemon)
{
	int at[] = {life,	-1,	   -1, daemon, r->estate, open("/dev/null", O_RDONLY),
		    r->kill[0], r->kill[1]};
	char title[] = "stepkeeper: [12.0]";
	char *argv[] = {title, NULL};

	for (int i = 0; i < 8; i++)
		if (at[i] >= 0)
			at[i] = fcntl(at[i], F_DUPFD, 20);
	for (int i = 0; i < 8; i++)
		if (at[i] >= 0)
			(void)dup2(at[i], i);
	for (int fd = 8; fd < 64; fd++)
		(void)close(fd);
	(void)setsid();
	(void)execv(getenv("KEEPER"), argv);
	_exit(99);
}

static struct run start(const char *daemon)
{
	struct run r;
	int ends[2], program = open(daemon, O_RDONLY | O_CLOEXEC);

	CHECK(program >= 0 && pipe2(ends, O_CLOEXEC) == 0);
	r.life = ends[1];
	r.estate = memfd_create("estate", MFD_CLOEXEC);
	r.kill[0] = memfd_create("kill", MFD_CLOEXEC);
	r.kill[1] = memfd_create("kill", MFD_CLOEXEC);
	r.pid = fork();
	if (r.pid == 0)
		child(&r, ends[0], program);
	(void)close(ends[0]);
	(void)close(program);
	return r;
}

/* The keeper's exit status, and the kill files' words. */
static int finish(struct run *r, char word[2])
{
	int status;

	CHECK(waitpid(r->pid, &status, 0) == r->pid);
	for (int i = 0; i < 2; i++) {
		word[i] = 0;
		CHECK(pread(r->kill[i], &word[i], 1, 0) >= 0);
		(void)close(r->kill[i]);
	}
	CHECK(WIFEXITED(status));
	return WEXITSTATUS(status);
}

/* What the keeper has become: it leaves its words where the test finds them. */
static int orphan(int argc, char **argv)
{
	CHECK(argc == 2 && strcmp(argv[0], "slurmstepd: [12.0]") == 0);
	CHECK(fcntl(KEEPER_FD_LOCK, F_GETFD) >= 0);
	CHECK(signal(SIGTERM, SIG_DFL) == SIG_DFL);
	CHECK(write(KEEPER_FD_ESTATE, "seen", 4) == 4);
	return 42;
}

static void test_goodbye(void)
{
	struct run r = start("/proc/self/exe");
	char word[2], bye = KEEPER_BYE;

	CHECK(write(r.life, "x", 1) == 1); /* of a later release */
	CHECK(write(r.life, &bye, 1) == 1);
	CHECK(finish(&r, word) == 0);
	CHECK(word[0] == 0 && word[1] == 0);
	CHECK(lseek(r.estate, 0, SEEK_END) == 0);
	(void)close(r.life);
	(void)close(r.estate);
}

static void test_death(void)
{
	struct run r = start("/proc/self/exe");
	char word[2];

	(void)close(r.life);
	CHECK(finish(&r, word) == 42);
	CHECK(word[0] == '1' && word[1] == '1');
	CHECK(lseek(r.estate, 0, SEEK_END) == 4);
	(void)close(r.estate);
}

/* A machine that goes down signals all processes: the daemon ends in order, and the keeper waits
 * for that. */
static void test_signals(void)
{
	static const int list[] = {SIGTERM, SIGHUP, SIGINT, SIGUSR1};
	struct run r = start("/proc/self/exe");
	char word[2], title[64] = "", path[64], bye = KEEPER_BYE;

	(void)snprintf(path, sizeof(path), "/proc/%d/comm", (int)r.pid);
	/* It has its name before it ignores anything. */
	for (int i = 0; i < 1000 && strcmp(title, "stepkeeper\n") != 0; i++) {
		int fd = open(path, O_RDONLY);
		ssize_t n = read(fd, title, sizeof(title) - 1);

		CHECK(n >= 0);
		title[n] = 0;
		(void)close(fd);
		(void)usleep(1000);
	}
	CHECK(strcmp(title, "stepkeeper\n") == 0);
	(void)usleep(20 * 1000);
	for (int i = 0; i < 4; i++)
		CHECK(kill(r.pid, list[i]) == 0);
	CHECK(write(r.life, &bye, 1) == 1);
	CHECK(finish(&r, word) == 0);
	(void)close(r.life);
	(void)close(r.estate);
}

/* It is of no use to others. */
static void test_stranger(void)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		char *argv[] = {"stepkeeper", NULL};

		for (int fd = 2; fd < 64; fd++)
			(void)close(fd);
		(void)execv(getenv("KEEPER"), argv);
		_exit(99);
	}
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 1);
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], KEEPER_ORPHAN) == 0)
		return orphan(argc, argv);
	CHECK(getenv("KEEPER"));
	test_goodbye();
	test_death();
	test_signals();
	test_stranger();
	(void)puts("ok keeper_test");
	return 0;
}
