/* SPDX-License-Identifier: Apache-2.0
 *
 * What a plugin leaves to the tasks, and how it ends. Arguments of its plugstack line:
 *
 *   ctx=N            do this in that context, not in the remote one
 *   HOOK:open        open a descriptor; the tasks have its number in ENDS_HOOK
 *   HOOK:open-close  the same, with O_CLOEXEC
 *   HOOK:exit:N      call exit(N)
 *   HOOK:fork:S:FILE leave a helper that appends to FILE its pid, and "done" after S seconds
 *   HOOK:system:S:FILE   the same, by system(3)
 *
 * The option --ends=N calls exit(N) on the local side.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(ends, 1)

static int open_one(spank_t sp, const char *hook, unsigned int flags)
{
	char name[64], number[16];
	int fd = memfd_create(hook, flags);

	if (fd < 0)
		return -1;
	snprintf(name, sizeof(name), "ENDS_%s", hook);
	snprintf(number, sizeof(number), "%d", fd);
	return spank_setenv(sp, name, number, 1) == ESPANK_SUCCESS ? 0 : -1;
}

static int append(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));

	close(fd);
	return n < 0 ? -1 : 0;
}

static int leave_fork(const char *seconds, const char *path)
{
	char text[32];
	pid_t pid = fork();

	if (pid != 0)
		return pid < 0 ? -1 : 0;
	snprintf(text, sizeof(text), "%d\n", getpid());
	append(path, text);
	usleep((useconds_t)(atof(seconds) * 1000000));
	_exit(append(path, "done\n") != 0);
}

static int leave_system(const char *seconds, const char *path)
{
	char command[512];

	snprintf(command, sizeof(command),
		 "sh -c 'echo $$ >>%s; sleep %s; echo done >>%s' </dev/null >/dev/null 2>&1 &",
		 path, seconds, path);
	return system(command);
}

static int act(spank_t sp, const char *hook, char *what)
{
	char *at = what, *arg[4] = {NULL};

	for (size_t i = 0; i < 4 && at != NULL; i++)
		arg[i] = strsep(&at, ":");
	if (strcmp(arg[0], hook) != 0 || arg[1] == NULL)
		return 0;
	if (strcmp(arg[1], "open") == 0)
		return open_one(sp, hook, 0);
	if (strcmp(arg[1], "open-close") == 0)
		return open_one(sp, hook, MFD_CLOEXEC);
	if (arg[2] != NULL && strcmp(arg[1], "exit") == 0)
		exit(atoi(arg[2]));
	if (arg[3] != NULL && strcmp(arg[1], "fork") == 0)
		return leave_fork(arg[2], arg[3]);
	if (arg[3] != NULL && strcmp(arg[1], "system") == 0)
		return leave_system(arg[2], arg[3]);
	return -1;
}

static int visit(spank_t sp, const char *hook, int ac, char **av)
{
	unsigned int context = S_CTX_REMOTE;

	for (int i = 0; i < ac; i++)
		if (sscanf(av[i], "ctx=%u", &context) != 1 && context == spank_context()) {
			char what[512];

			snprintf(what, sizeof(what), "%s", av[i]);
			if (act(sp, hook, what) != 0)
				return -1;
		}
	return 0;
}

static int on_option(int val, const char *optarg, int remote)
{
	(void)val;
	if (!remote && optarg != NULL)
		exit(atoi(optarg));
	return 0;
}

static struct spank_option option = {"ends", "N", "call exit(N) at once", 1, 0, on_option};

int slurm_spank_init(spank_t sp, int ac, char *av[])
{
	if (spank_context() != S_CTX_SLURMD && spank_option_register(sp, &option) != 0)
		return -1;
	return visit(sp, "init", ac, av);
}

#define HOOK(name)                                                                                 \
	int slurm_spank_##name(spank_t sp, int ac, char *av[])                                     \
	{                                                                                          \
		return visit(sp, #name, ac, av);                                                   \
	}

HOOK(init_post_opt)
HOOK(local_user_init)
HOOK(user_init)
HOOK(task_init_privileged)
HOOK(task_post_fork)
HOOK(task_init)
HOOK(task_exit)
HOOK(exit)
