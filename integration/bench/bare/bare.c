/* SPDX-License-Identifier: Apache-2.0
 * The peer that does nothing else: fork and exec N times, then wait for all. With
 * the paths of plugins behind N it has them mapped, and calls one hook of each in
 * every child: what a process with plugins cannot do without. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define PLUGINS_MAX 64

typedef int hook_f(void *spank, int ac, char **av);

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 1;
	int nhooks = argc > 2 ? argc - 2 : 0;
	hook_f *hooks[PLUGINS_MAX];

	if (nhooks > PLUGINS_MAX)
		return 1;
	for (int i = 0; i < nhooks; i++) {
		void *dl = dlopen(argv[2 + i], RTLD_LAZY);

		if (dl == NULL) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
		*(void **)&hooks[i] = dlsym(dl, "slurm_spank_task_init");
	}
	for (int i = 0; i < n; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			for (int k = 0; k < nhooks; k++)
				hooks[k](NULL, 0, NULL);
			execl("/bin/true", "true", (char *)NULL);
			_exit(127);
		}
		if (pid < 0)
			return 1;
	}
	while (wait(NULL) > 0)
		;
	return 0;
}
