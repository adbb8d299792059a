/* SPDX-License-Identifier: Apache-2.0
 *
 * driver calls the hooks of one plugin as a step's process would, with one
 * task, and runs a command as that task.
 *
 *     driver PLUGIN CONTEXT OPTION UID COMMAND [ARGUMENT of the plugin]...
 *
 * CONTEXT is "remote" or "local", OPTION the value of the plugin's option or
 * "-". It ends with 10 plus the number of the hook that failed.
 */
#include <dlfcn.h>
#include <grp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/spank.h>

static int remote;
static uid_t user;
static pid_t task;
static struct spank_option *option;

int spank_remote(spank_t spank)
{
	(void)spank;
	return remote;
}

spank_err_t spank_option_register(spank_t spank, struct spank_option *opt)
{
	(void)spank;
	option = opt;
	return ESPANK_SUCCESS;
}

spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...)
{
	va_list ap;

	(void)spank;
	va_start(ap, item);
	if (item == S_JOB_UID)
		*va_arg(ap, uid_t *) = user;
	else if (item == S_JOB_GID)
		*va_arg(ap, gid_t *) = user;
	else if (item == S_JOB_ID)
		*va_arg(ap, uint32_t *) = 4711;
	else if (item == S_JOB_STEPID)
		*va_arg(ap, uint32_t *) = 3;
	else if (item == S_TASK_PID)
		*va_arg(ap, pid_t *) = task;
	else
		abort();
	va_end(ap);
	return ESPANK_SUCCESS;
}

static void say(const char *format, va_list ap)
{
	vfprintf(stderr, format, ap);
	fputc('\n', stderr);
}

void slurm_error(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	say(format, ap);
	va_end(ap);
}

void slurm_info(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	say(format, ap);
	va_end(ap);
}

static void call(void *plugin, const char *hook, int code, int ac, char **av)
{
	spank_f *f = (spank_f *)(uintptr_t)dlsym(plugin, hook);

	if (f != NULL && f(NULL, ac, av) < 0)
		_exit(code);
}

int main(int argc, char **argv)
{
	int gate[2], status = 0;
	void *plugin;
	char byte;

	if (argc < 6)
		return 2;
	plugin = dlopen(argv[1], RTLD_LAZY);
	if (plugin == NULL) {
		fprintf(stderr, "%s\n", dlerror());
		return 2;
	}
	remote = strcmp(argv[2], "remote") == 0;
	user = (uid_t)atoi(argv[4]);
	call(plugin, "slurm_spank_init", 10, argc - 6, argv + 6);
	if (strcmp(argv[3], "-") != 0 && option->cb(option->val, argv[3], remote) < 0)
		_exit(11);
	call(plugin, "slurm_spank_init_post_opt", 12, argc - 6, argv + 6);
	if (!remote)
		return 0;
	if (pipe(gate) != 0)
		return 2;
	task = fork();
	if (task == 0) {
		close(gate[1]);
		if (read(gate[0], &byte, 1) != 1 || setgroups(0, NULL) != 0 || setgid(user) != 0 ||
		    setuid(user) != 0)
			_exit(3);
		execl("/bin/sh", "sh", "-c", argv[5], NULL);
		_exit(4);
	}
	call(plugin, "slurm_spank_task_post_fork", 13, argc - 6, argv + 6);
	if (write(gate[1], "", 1) != 1)
		return 2;
	waitpid(task, &status, 0);
	call(plugin, "slurm_spank_exit", 14, argc - 6, argv + 6);
	return WEXITSTATUS(status);
}
