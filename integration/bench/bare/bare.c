/* SPDX-License-Identifier: Apache-2.0
 * The peer that does nothing else: fork and exec N times, then wait for all. With
 * the paths of plugins behind N it has them mapped, and calls one hook of each in
 * every child: what a process with plugins cannot do without. With -g no child goes
 * on to exec before all are forked, as in a step, so that all live at once.
 * bare [-g] N [PLUGIN...] */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PLUGINS_MAX 64

typedef int hook_f(void *spank, int ac, char **av);

static hook_f *hooks[PLUGINS_MAX];

static int load(int n, char **paths)
{
	if (n > PLUGINS_MAX)
		return -1;
	for (int i = 0; i < n; i++) {
		void *dl = dlopen(paths[i], RTLD_LAZY);

		if (dl == NULL) {
			fprintf(stderr, "%s\n", dlerror());
			return -1;
		}
		*(void **)&hooks[i] = dlsym(dl, "slurm_spank_task_init");
	}
	return n;
}

/* gate is a pipe, whose end of file opens it. */
static _Noreturn void child(int nhooks, const int gate[2])
{
	char c;

	for (int k = 0; k < nhooks; k++)
		hooks[k](NULL, 0, NULL);
	close(gate[1]);
	if (read(gate[0], &c, 1) != 0)
		_exit(126);
	execl("/bin/true", "true", (char *)NULL);
	_exit(127);
}

int main(int argc, char **argv)
{
	int gated = argc > 1 && strcmp(argv[1], "-g") == 0;
	int n = argc > 1 + gated ? atoi(argv[1 + gated]) : 1;
	int nhooks = argc > 2 + gated ? load(argc - 2 - gated, argv + 2 + gated) : 0;
	int gate[2] = {-1, -1};

	if (nhooks < 0 || pipe(gate) < 0)
		return 1;
	if (!gated) {
		close(gate[1]);
		gate[1] = -1;
	}
	for (int i = 0; i < n; i++) {
		pid_t pid = fork();

		if (pid == 0)
			child(nhooks, gate);
		if (pid < 0)
			return 1;
	}
	close(gate[1]);
	while (wait(NULL) > 0)
		;
	return 0;
}
