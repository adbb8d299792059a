/* SPDX-License-Identifier: Apache-2.0
 *
 * Forks a helper in every hook of the host, and tells in slurm_spank_exit which of
 * them still live and where each is: helpers.so. A task finds its cgroup in HELPERS_CGROUP.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(helpers, 1)

static struct {
	const char *hook;
	pid_t pid;
} helpers[8];
static int count;

static int start(spank_t sp, const char *hook)
{
	int ready[2];
	char byte;

	if (!spank_remote(sp))
		return 0;
	if (pipe2(ready, O_CLOEXEC) < 0)
		return -1;
	pid_t pid = fork();
	if (pid == 0) {
		if (write(ready[1], "r", 1) != 1)
			_exit(1);
		close(ready[1]);
		for (;;)
			pause();
	}
	close(ready[1]);
	if (pid < 0 || read(ready[0], &byte, 1) != 1)
		return -1;
	close(ready[0]);
	helpers[count].hook = hook;
	helpers[count++].pid = pid;
	return 0;
}

/* The task of task_init sees where the hook ran, in HELPERS_CGROUP. */
int slurm_spank_task_init(spank_t sp, int ac, char *av[])
{
	char text[4096] = "";

	(void)ac;
	(void)av;
	int fd = open("/proc/self/cgroup", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
	close(fd);
	return n <= 0 ? -1 : (int)spank_setenv(sp, "HELPERS_CGROUP", text, 1);
}

/* The last part of the process's cgroup. */
static void leaf(pid_t pid, char *buf, size_t size)
{
	char path[64], text[1024] = "";

	snprintf(path, sizeof(path), "/proc/%d/cgroup", pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
	close(fd);
	char *slash = n > 0 ? strrchr(text, '/') : NULL;
	snprintf(buf, size, "%.*s", slash ? (int)strcspn(slash + 1, "\n") : 0,
		 slash ? slash + 1 : "");
}

int slurm_spank_exit(spank_t sp, int ac, char *av[])
{
	(void)ac;
	(void)av;
	if (!spank_remote(sp))
		return 0;
	for (int i = 0; i < count; i++) {
		char where[256];
		int status = 0;

		leaf(helpers[i].pid, where, sizeof(where));
		if (waitpid(helpers[i].pid, &status, WNOHANG) == 0)
			slurm_info("helper of %s lives in %s", helpers[i].hook, where);
		else
			slurm_info("helper of %s is dead: status %d", helpers[i].hook, status);
	}
	return 0;
}

#define HOOK(name)                                                                                 \
	int slurm_spank_##name(spank_t sp, int ac, char *av[])                                     \
	{                                                                                          \
		(void)ac;                                                                          \
		(void)av;                                                                          \
		return start(sp, #name);                                                           \
	}

HOOK(init)
HOOK(init_post_opt)
HOOK(user_init)
HOOK(task_post_fork)
