// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host.h"
#include "util.h"

/* Puts "dir/name" into buf; false if it does not fit. An empty dir is the current one. */
static bool in_dir(char *buf, size_t size, const char *dir, size_t len, const char *name)
{
	int n = snprintf(buf, size, "%.*s%s%s", (int)len, dir, len ? "/" : "./", name);

	return n >= 0 && (size_t)n < size;
}

/* Looks for name in the task's own PATH. 0 and the path, else the errno that
 * execvp would give: EACCES if all that was found cannot be run, with the first such. */
static int find_program(const char *path, const char *name, char *buf, size_t size)
{
	char first[PATH_MAX] = "";
	int error = ENOENT;

	buf[0] = 0;
	if (name[0] == 0)
		return ENOENT;
	for (const char *dir = path; dir != NULL;) {
		size_t len = strcspn(dir, ":");
		struct stat st;

		if (len < size && in_dir(buf, size, dir, len, name) && stat(buf, &st) == 0) {
			if (S_ISREG(st.st_mode) && access(buf, X_OK) == 0)
				return 0;
			if (error != EACCES)
				strcpy(first, buf); /* both have PATH_MAX */
			error = EACCES;
		}
		dir = dir[len] ? dir + len + 1 : NULL;
	}
	strcpy(buf, first);
	return error;
}

/* All descriptors of the host are closed by exec but those that were declared for this
 * task. What plugins have opened without O_CLOEXEC reaches it, as in Slurm. */
static void keep_declared(struct host *h)
{
	for (uint32_t at = h->step.ranks[h->rank].fds.first; at != NO_ITEM;
	     at = h->step.items[at].next) {
		if (fcntl(h->fds[h->step.items[at].index], F_SETFD, 0) < 0)
			task_fail(h, STAGE_EXEC, errno, h->step.items[at].text, 1);
	}
}

/* Makes the directory that TMPDIR names, or has it be /tmp. Measured: the first task's alone,
 * and after task_init and the task prologs. */
static void make_tmpdir(struct env *env)
{
	const char *dir = env_get(env, "TMPDIR");
	struct stat st;

	if (dir != NULL) {
		if (mkdir(dir, 0700) == 0)
			return;
		int error = errno;
		bool there = error == EEXIST && stat(dir, &st) == 0;

		if (there && S_ISDIR(st.st_mode))
			return;
		if (there)
			log_text(LEVEL_ERROR, "TMPDIR [%s] is not a directory", dir);
		else
			log_text(LEVEL_ERROR, "Unable to create TMPDIR [%s]: %s", dir,
				 strerror(error));
		log_text(LEVEL_ERROR, "Setting TMPDIR to /tmp");
	}
	env_set(env, "TMPDIR", "/tmp");
}

static void last_env(struct host *h)
{
	for (size_t i = 0; i < h->step.nenv_unset; i++)
		env_unset(&h->env, h->step.env_unset[i]);
	limits_unset(&h->env);
	if (h->rank == 0)
		make_tmpdir(&h->env);
}

/* Reports why execve failed, in words where the errno misleads, and ends. */
static _Noreturn void exec_failed(struct host *h, const char *path, int error)
{
	char interp[PATH_MAX], object[2 * PATH_MAX + 32], why[WHY_MAX] = "";
	bool script;

	(void)why_exec(h, path, error, why, sizeof(why));

	if (error == ENOENT && explain_interpreter(path, interp, sizeof(interp), &script)) {
		/* Slurm's words for a script; a program's loader is named with the program. */
		snprintf(object, sizeof(object), "%s%sbad interpreter(%s)", script ? "" : path,
			 script ? "" : ": ", interp);
		path = object;
	}
	task_fail_why(h, STAGE_EXEC, error, path, why, error & 0xff);
}

_Noreturn void task_exec(struct host *h)
{
	char found[PATH_MAX];
	const char *path = h->argv[0];

	last_env(h);
	keep_declared(h);
	if (strchr(path, '/') == NULL) {
		/* Without PATH nothing is found, as measured (--export). */
		int error = find_program(env_get(&h->env, "PATH"), path, found, sizeof(found));

		board_stage(h, h->rank + 1, STAGE_EXEC);
		if (error != 0) {
			char why[WHY_MAX];

			why_not_found(h, found, error, why, sizeof(why));
			task_fail_why(h, STAGE_EXEC, error, path, why, error);
		}
		path = h->argv[0] = found;
	} else if (path[0] == '.') {
		size_t len;

		/* As in Slurm, the task sees an absolute name; where the cwd has none, its own. */
		if (getcwd(found, sizeof(found)) != NULL && (len = strlen(found)) > 0 &&
		    (size_t)snprintf(found + len, sizeof(found) - len, "/%s", path) <
			    sizeof(found) - len)
			path = h->argv[0] = found;
	}
	/* Last: from here on the pipe's end of file means that it was exec'd. */
	board_stage(h, h->rank + 1, STAGE_EXEC);
	execve(path, h->argv, h->env.v);
	exec_failed(h, path, errno);
}
