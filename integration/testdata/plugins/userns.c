/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the tasks in a user and mount namespace that a helper has made, as
 * pyxis does: userns.so DIR. The helper is forked in user_init and waits for the
 * step's end; task_init joins it, which the kernel refuses to a process with
 * threads (setns(2)).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(userns, 1)

static pid_t helper;

static int put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return -1;
	ssize_t n = write(fd, text, strlen(text));
	close(fd);
	return n == (ssize_t)strlen(text) ? 0 : -1;
}

static _Noreturn void help(uid_t uid, gid_t gid, const char *dir, int ready)
{
	char map[64];

	/* For good: the helper is the user's own. And its /proc is to be his. */
	if (setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0 ||
	    prctl(PR_SET_DUMPABLE, 1) < 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
		_exit(1);
	snprintf(map, sizeof(map), "0 %u 1\n", uid);
	if (put("/proc/self/uid_map", map) < 0 || put("/proc/self/setgroups", "deny") < 0)
		_exit(2);
	snprintf(map, sizeof(map), "0 %u 1\n", gid);
	if (put("/proc/self/gid_map", map) < 0 || mount("inside", dir, "tmpfs", 0, NULL) < 0 ||
	    write(ready, "r", 1) != 1)
		_exit(3);
	for (;;)
		pause();
}

int slurm_spank_user_init(spank_t sp, int ac, char *av[])
{
	uid_t uid;
	gid_t gid;
	int pipe[2];
	char byte;

	if (ac < 1 || spank_get_item(sp, S_JOB_UID, &uid) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_GID, &gid) != ESPANK_SUCCESS || pipe2(pipe, O_CLOEXEC) < 0)
		return -1;
	helper = fork();
	if (helper == 0) {
		close(pipe[0]);
		if (seteuid(0) < 0)
			_exit(4);
		help(uid, gid, av[0], pipe[1]);
	}
	close(pipe[1]);
	ssize_t n = read(pipe[0], &byte, 1);
	close(pipe[0]);
	if (helper < 0 || n != 1) {
		slurm_error("userns: the helper has failed");
		return -1;
	}
	return 0;
}

static int join(const char *kind, int type)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/ns/%s", helper, kind);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || setns(fd, type) < 0) {
		slurm_error("userns: cannot join %s: %s", path, strerror(errno));
		return -1;
	}
	return close(fd);
}

int slurm_spank_task_init(spank_t sp, int ac, char *av[])
{
	(void)sp;
	(void)ac;
	(void)av;
	return join("user", CLONE_NEWUSER) < 0 || join("mnt", CLONE_NEWNS) < 0 ? -1 : 0;
}
