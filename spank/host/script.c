// SPDX-License-Identifier: Apache-2.0
/* One script, from its fork to its end: with a deadline, and with a bound on what
 * it may write. */
#define _GNU_SOURCE
#include "script.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "util.h"

/* A script that runs. */
struct run {
	pid_t pid;
	int pidfd;  /* readable when it has ended */
	int out;    /* what it writes; -1 after its end */
	int failed; /* an errno comes where it could not be executed; -1 after its end */
	int error;
	bool late, flood;
	size_t total;
	char *line;
	size_t len;
	script_line *told;
	void *arg;
};

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static _Noreturn void child(struct host *h, const struct script *s, int fd, int out, int failed)
{
	char *argv[] = {(char *)s->path, NULL};
	int error;

	/* Its own group: what it leaves can be told apart from the task. */
	(void)setpgid(0, 0);
	if (dup2(h->null, 0) >= 0 && (fd == 1 || dup2(h->null, 1) >= 0) && dup2(out, fd) >= 0)
		(void)execve(s->path, argv, h->env.v);
	error = errno;
	(void)!write(failed, &error, sizeof(error));
	_exit(1);
}

/* False with errno. */
static bool start(struct host *h, const struct script *s, int fd, struct run *r)
{
	int out[2], failed[2];

	if (pipe2(out, O_CLOEXEC) < 0)
		return false;
	if (pipe2(failed, O_CLOEXEC) < 0) {
		close(out[0]);
		close(out[1]);
		return false;
	}
	h->forked_ours = true;
	r->pid = fork();
	h->forked_ours = false;
	if (r->pid == 0)
		child(h, s, fd, out[1], failed[1]);
	int error = errno;
	close(out[1]);
	close(failed[1]);
	r->out = out[0];
	r->failed = failed[0];
	r->pidfd = r->pid > 0 ? (int)syscall(SYS_pidfd_open, r->pid, 0) : -1;
	(void)fcntl(r->out, F_SETFL, O_NONBLOCK);
	errno = error;
	return r->pid > 0;
}

static void take_line(struct host *h, struct run *r)
{
	r->line[r->len] = 0;
	r->told(h, r->line, r->arg);
	r->len = 0;
}

static void take(struct host *h, struct run *r, const char *p, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (p[i] == '\n') {
			take_line(h, r);
			continue;
		}
		if (r->len == SCRIPT_LINE_MAX) {
			r->flood = true;
			return;
		}
		r->line[r->len++] = p[i];
	}
}

/* Reads what there is. */
static void read_out(struct host *h, struct run *r)
{
	char buf[4096];
	ssize_t n;

	while (r->out >= 0 && !r->flood) {
		n = RETRY(read(r->out, buf, sizeof(buf)));
		if (n < 0 && errno == EAGAIN)
			return;
		if (n <= 0) {
			close(r->out);
			r->out = -1;
			return;
		}
		r->total += (size_t)n;
		r->flood = r->total > SCRIPT_OUTPUT_MAX;
		take(h, r, buf, (size_t)n);
	}
}

static void read_failed(struct run *r)
{
	if (RETRY(read(r->failed, &r->error, sizeof(r->error))) != sizeof(r->error))
		r->error = 0;
	close(r->failed);
	r->failed = -1;
}

/* Until it has ended, is late, or has written too much. */
static void follow(struct host *h, struct run *r, uint32_t timeout_s)
{
	int64_t end = now_ms() + (int64_t)timeout_s * 1000;

	for (;;) {
		struct pollfd fds[] = {{.fd = r->pidfd, .events = POLLIN},
				       {.fd = r->out, .events = POLLIN},
				       {.fd = r->failed, .events = POLLIN}};
		int64_t left = timeout_s > 0 ? end - now_ms() : -1;

		if (timeout_s > 0 && left <= 0) {
			r->late = true;
			return;
		}
		if (RETRY(poll(fds, ARRAY_SIZE(fds), (int)(left > 60000 ? 60000 : left))) < 0)
			return;
		if (fds[1].revents)
			read_out(h, r);
		if (fds[2].revents)
			read_failed(r);
		/* What it has left running may hold its output open for ever. */
		if (fds[0].revents || r->flood)
			break;
	}
	if (r->failed >= 0)
		read_failed(r);
	read_out(h, r);
	if (!r->flood && r->len > 0)
		take_line(h, r);
}

static bool explain(const struct script *s, const struct run *r, int wait_status, char *why,
		    size_t size, int *status)
{
	*status = 1;
	if (r->error != 0)
		snprintf(why, size, "cannot run it: %s", strerror(r->error));
	else if (r->late)
		snprintf(why, size, "it did not end within %u s", s->timeout_s);
	else if (r->flood)
		snprintf(why, size, "it wrote more than %u bytes, or a line of more than %u",
			 SCRIPT_OUTPUT_MAX, SCRIPT_LINE_MAX);
	else if (WIFSIGNALED(wait_status))
		snprintf(why, size, "%s", strsignal(WTERMSIG(wait_status)));
	else if (WEXITSTATUS(wait_status) != 0)
		snprintf(why, size, "Exited with exit code %d", *status = WEXITSTATUS(wait_status));
	else
		return true;
	return false;
}

bool script_run(struct host *h, const struct script *s, int fd, script_line *told, void *arg,
		char *why, size_t size, int *status)
{
	_cleanup_free_ char *line = must_zero(SCRIPT_LINE_MAX + 1, 1);
	struct run r = {.line = line, .told = told, .arg = arg};
	int wait_status = 0;

	if (!start(h, s, fd, &r) || r.pidfd < 0) {
		snprintf(why, size, "cannot start it: %s", strerror(errno));
		*status = 1;
	} else {
		follow(h, &r, s->timeout_s);
	}
	if (r.pid > 0) {
		bool killed = r.pidfd < 0 || r.late || r.flood;
		/* Before it is reaped: its number still belongs to its group. What an
		 * epilog leaves would end with the step in any case. */
		if (killed || fd == 2)
			(void)kill(-r.pid, SIGKILL);
		if (killed)
			(void)kill(r.pid, SIGKILL);
		(void)RETRY(waitpid(r.pid, &wait_status, 0));
	}
	if (r.out >= 0 && r.pid > 0)
		close(r.out);
	if (r.failed >= 0 && r.pid > 0)
		close(r.failed);
	if (r.pidfd < 0)
		return false;
	close(r.pidfd);
	return explain(s, &r, wait_status, why, size, status);
}

static char *trim(char *s)
{
	size_t len;

	s += strspn(s, " \t");
	len = strlen(s);
	while (len > 0 && strchr(" \t\r", s[len - 1]) != NULL)
		len--;
	s[len] = 0;
	return s;
}

enum verb verb_parse(char *line, char **name, char **value)
{
	if (strncmp(line, "print ", 6) == 0) {
		*value = line + 6;
		return VERB_PRINT;
	}
	if (strncmp(line, "unset ", 6) == 0) {
		*name = trim(line + 6);
		return env_name_ok(*name) ? VERB_UNSET : VERB_NONE;
	}
	if (strncmp(line, "export ", 7) != 0)
		return VERB_NONE;
	char *sign = strchr(line, '=');
	if (sign == NULL)
		return VERB_NONE;
	*sign = 0;
	*name = trim(line + 7);
	*value = sign + 1;
	return env_name_ok(*name) ? VERB_EXPORT : VERB_NONE;
}
