// SPDX-License-Identifier: Apache-2.0
/*
 * Runs the program that PAMHOST names as a step daemon does, with the libpam of fakepam.c:
 * each user's name says what happens.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pamhost.h"

#define CHECK(what)                                                                                \
	do {                                                                                       \
		if (!(what)) {                                                                     \
			(void)fprintf(stderr, "%s:%d: %s\n", __func__, __LINE__, #what);           \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

struct run {
	pid_t pid;
	int life, answer, out;
};

static struct run start(char *user)
{
	struct run r;
	int life[2], answer[2], out[2];
	char gid[16];

	(void)snprintf(gid, sizeof(gid), "%u", getegid());
	CHECK(pipe2(life, O_CLOEXEC) == 0 && pipe2(answer, O_CLOEXEC) == 0 &&
	      pipe2(out, O_CLOEXEC) == 0);
	r.pid = fork();
	CHECK(r.pid >= 0);
	if (r.pid == 0) {
		char *argv[] = {"pamhost", user, gid, "n1", NULL};
		int in = fcntl(life[0], F_DUPFD, 20), to = fcntl(answer[1], F_DUPFD, 20);

		(void)dup2(out[1], 1);
		(void)dup2(in, PAMHOST_FD_LIFE);
		(void)dup2(to, PAMHOST_FD_ANSWER);
		for (int fd = 5; fd < 64; fd++)
			(void)close(fd);
		(void)execv(getenv("PAMHOST"), argv);
		_exit(99);
	}
	(void)close(life[0]);
	(void)close(answer[1]);
	(void)close(out[1]);
	r.life = life[1];
	r.answer = answer[0];
	r.out = out[0];
	return r;
}

static struct pamhost_answer answer(const struct run *r)
{
	struct pamhost_answer a;

	CHECK(read(r->answer, &a, sizeof(a)) == (ssize_t)sizeof(a));
	return a;
}

/* Closes the run, and checks what libpam was asked for, and the exit status. */
static void ends(struct run *r, int status, const char *calls)
{
	char got[1024];
	size_t n = 0;
	ssize_t more;
	int ended;

	if (r->life >= 0)
		(void)close(r->life);
	while ((more = read(r->out, got + n, sizeof(got) - 1 - n)) > 0)
		n += (size_t)more;
	got[n] = 0;
	CHECK(waitpid(r->pid, &ended, 0) == r->pid);
	if (strcmp(got, calls) != 0)
		(void)fprintf(stderr, "got:\n%swant:\n%s", got, calls);
	CHECK(strcmp(got, calls) == 0);
	CHECK(ended == status);
	(void)close(r->answer);
	(void)close(r->out);
}

static void test_session(void)
{
	struct run r = start("alice");
	struct pamhost_answer a = answer(&r);

	CHECK(a.code == 0 && a.text[0] == 0);
	CHECK(a.after[RLIMIT_NOFILE][0] == 100 && a.after[RLIMIT_NOFILE][1] == 200);
	CHECK(a.before[RLIMIT_NOFILE][0] > 100 && a.nice[1] == a.nice[0] + 1);
	CHECK(memcmp(a.before[RLIMIT_CORE], a.after[RLIMIT_CORE], sizeof(a.after[0])) == 0);
	CHECK(write(r.life, "x", 1) == 1); /* it is no end */
	(void)close(r.life);
	r.life = -1;
	a = answer(&r);
	CHECK(a.code == 0);
	if (getegid() == 0)
		ends(&r, 0,
		     "slurm 0\nalice 8\nn1 4\nsetcred 2\nopen 0\nclose 0\nsetcred 4\nend 0\n");
}

/* A session that is not opened: the error, and what libpam was asked for. */
static void refused(char *user, int code, const char *text, const char *calls)
{
	struct run r = start(user);
	struct pamhost_answer a = answer(&r);

	CHECK(a.code == code);
	CHECK(strcmp(a.text, text) == 0);
	ends(&r, 1 << 8, calls);
}

static void test_refused(void)
{
	refused("start", 4, "pam_start: error 4", "slurm 0\n");
	refused("cred", 17, "pam_setcred: error 17", "slurm 0\ncred 8\nn1 4\nsetcred 2\nend 17\n");
	refused("deny", 14, "pam_open_session: error 14",
		"slurm 0\ndeny 8\nn1 4\nsetcred 2\nopen 0\nsetcred 4\nend 14\n");
	refused("ask", 19, "pam_open_session: error 19",
		"slurm 0\nask 8\nn1 4\nsetcred 2\nopen 0\nsetcred 4\nend 19\n");
}

static void test_close_fails(void)
{
	struct run r = start("stay");

	CHECK(answer(&r).code == 0);
	(void)close(r.life);
	r.life = -1;
	struct pamhost_answer a = answer(&r);

	CHECK(a.code == 14 && strcmp(a.text, "pam_close_session: error 14") == 0);
	ends(&r, 1 << 8, "slurm 0\nstay 8\nn1 4\nsetcred 2\nopen 0\nclose 0\nend 14\n");
}

static void test_crash(void)
{
	struct run r = start("crash");
	char byte;

	CHECK(read(r.answer, &byte, 1) == 0);
	ends(&r, SIGABRT, "slurm 0\ncrash 8\nn1 4\nsetcred 2\nopen 0\n");
}

int main(void)
{
	struct rlimit core = {0, 0};

	(void)setrlimit(RLIMIT_CORE, &core);
	test_session();
	test_refused();
	test_close_fails();
	test_crash();
	return 0;
}
