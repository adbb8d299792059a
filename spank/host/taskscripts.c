// SPDX-License-Identifier: Apache-2.0
/* What runs around a task, as its user and in its place: prologs, in the task
 * itself before it execs, and epilogs, in a process of their own after its end. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host.h"
#include "script.h"
#include "util.h"

#define CONTEXT "SLURM_SCRIPT_CONTEXT"

static bool has_kind(const struct host *h, enum script_kind kind)
{
	for (size_t i = 0; i < h->step.nscripts; i++) {
		if (h->step.scripts[i].kind == kind)
			return true;
	}
	return false;
}

/* To the task's own standard output, to the last byte. */
static void print(const char *text)
{
	size_t len = strlen(text);
	_cleanup_free_ char *line = must_zero(len + 1, 1);

	memcpy(line, text, len);
	line[len++] = '\n';
	for (size_t at = 0; at < len;) {
		ssize_t n = RETRY(write(STDOUT_FILENO, line + at, len - at));
		if (n <= 0)
			return; /* it has no reader any more */
		at += (size_t)n;
	}
}

static void obey(struct host *h, char *line, void *arg)
{
	char *name, *value;

	(void)arg;
	switch (verb_parse(line, &name, &value)) {
	case VERB_EXPORT:
		env_set(&h->env, name, value);
		break;
	case VERB_UNSET:
		env_unset(&h->env, name);
		break;
	case VERB_PRINT:
		print(value);
		break;
	case VERB_NONE:
		break; /* a script may say more than that */
	}
}

void task_prologs(struct host *h)
{
	char why[256], object[PATH_MAX + 512];
	int status;

	if (!has_kind(h, SCRIPT_PROLOG))
		return;
	board_stage(h, h->rank + 1, STAGE_TASK_PROLOG);
	for (size_t i = 0; i < h->step.nscripts; i++) {
		const struct script *s = &h->step.scripts[i];

		if (s->kind != SCRIPT_PROLOG)
			continue;
		env_set(&h->env, CONTEXT, "prolog_task");
		if (script_run(h, s, STDOUT_FILENO, obey, NULL, why, sizeof(why), &status))
			continue;
		snprintf(object, sizeof(object), "%s \"%s\": %s", s->label, s->path, why);
		task_fail(h, STAGE_TASK_PROLOG, 0, object, status);
	}
	env_unset(&h->env, CONTEXT);
}

static void tell(struct host *h, char *line, void *arg)
{
	(void)h;
	(void)arg;
	log_text(LEVEL_SPANK_LOG, "%s", line);
}

/* Where the task was: its container, its user, its directory. */
static bool take_place(struct host *h, const char **what)
{
	sigset_t none;
	int error;

	*what = "cannot join the job's mount namespace";
	if (!container_enter(h, JOIN_TASKS))
		return false;
	*what = "the groups are not the user's";
	if (!user_groups_are(h->cfg.groups, h->cfg.ngroups))
		return false;
	if (!user_become(h, what))
		return false;
	(void)user_chdir(&h->cfg, &error);
	signals_default();
	sigemptyset(&none);
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
	return true;
}

static _Noreturn void epilog_main(struct host *h, uint32_t rank, int go)
{
	const char *what;
	char why[256], byte;
	int status;

	h->in_task = true;
	h->rank = rank;
	h->hook = NO_HOOK;
	h->plugin = NULL;
	/* End of file: it cannot be tracked, or stepd is gone. */
	if (RETRY(read(go, &byte, 1)) != 1)
		_exit(0);
	if (!take_place(h, &what)) {
		log_text(LEVEL_ERROR, "task %u: epilog: %s: %m", h->cfg.global_ids[rank], what);
		_exit(0);
	}
	for (size_t i = 0; i < h->step.nscripts; i++) {
		const struct script *s = &h->step.scripts[i];

		if (s->kind != SCRIPT_EPILOG)
			continue;
		if (!script_run(h, s, STDERR_FILENO, tell, NULL, why, sizeof(why), &status))
			log_text(LEVEL_ERROR, "task %u: %s \"%s\": %s", h->cfg.global_ids[rank],
				 s->label, s->path, why);
	}
	_exit(0);
}

/* Tells stepd whom to track; it lets the process go by a byte. */
static bool announce(struct host *h, uint32_t rank, pid_t pid, int go)
{
	uint8_t buf[16];
	struct writer w = wr_init(buf, sizeof(buf));

	wr_u32(&w, REP_EPILOG);
	wr_u32(&w, rank);
	wr_i32(&w, pid);
	struct iovec iov = {buf, w.len};
	return packet_send(h->control, &iov, 1, &go, 1) == 0;
}

bool epilog_begin(struct host *h, uint32_t rank)
{
	struct task *t = &h->tasks[rank];
	int go[2];

	if (!has_kind(h, SCRIPT_EPILOG) || pipe2(go, O_CLOEXEC) < 0)
		return false;
	h->forked_ours = true;
	pid_t pid = container_births(h, true) ? fork() : -1;
	h->forked_ours = false;
	if (pid == 0) {
		close(go[1]);
		epilog_main(h, rank, go[0]);
	}
	int error = errno;
	(void)container_births(h, false);
	errno = error;
	close(go[0]);
	if (pid > 0) {
		t->epilog = pid;
		t->epilog_fd = (int)syscall(SYS_pidfd_open, pid, 0);
		if (t->epilog_fd >= 0 && announce(h, rank, pid, go[1])) {
			close(go[1]);
			return true;
		}
	}
	log_text(LEVEL_ERROR, "task %u: cannot start its epilog: %m", h->cfg.global_ids[rank]);
	close(go[1]); /* it ends by that */
	if (pid > 0)
		epilog_end(h, rank);
	return false;
}

void epilog_end(struct host *h, uint32_t rank)
{
	struct task *t = &h->tasks[rank];

	(void)RETRY(waitpid(t->epilog, NULL, 0));
	if (t->epilog_fd >= 0)
		close(t->epilog_fd);
	t->epilog = 0;
	t->epilog_fd = -1;
}
