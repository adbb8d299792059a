/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin that writes its process's environment, NAME=VALUE by line, into
 * DIR/HOOK.CONTEXT in each hook; DIR is its argument. Two lines are not of the
 * environment: "dlopen" says whether ld.so finds libnodes.so, "tool" what the
 * program nodestool has printed, which is looked for in PATH. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <slurm/spank.h>

SPANK_PLUGIN(environ, 1)

extern char **environ;

static int note(const char *hook, int ac, char *av[])
{
	char path[4096], text[64] = "";

	if (ac < 1)
		return -1;
	snprintf(path, sizeof(path), "%s/%s.%d", av[0], hook, (int)spank_context());
	FILE *f = fopen(path, "w");
	if (f == NULL)
		return -1;
	for (char **e = environ; e != NULL && *e != NULL; e++)
		fprintf(f, "%s\n", *e);
	void *lib = dlopen("libnodes.so", RTLD_NOW);
	fprintf(f, "dlopen=%s\n", lib != NULL ? "found" : "missing");
	FILE *tool = popen("exec nodestool 2>/dev/null", "r");
	if (tool != NULL && fgets(text, sizeof(text), tool) != NULL)
		text[strcspn(text, "\n")] = 0;
	if (tool != NULL)
		pclose(tool);
	fprintf(f, "tool=%s\n", text);
	return fclose(f);
}

#define HOOK(name)                                                                                 \
	int slurm_spank_##name(spank_t sp, int ac, char *av[])                                     \
	{                                                                                          \
		(void)sp;                                                                          \
		return note(#name, ac, av);                                                        \
	}

HOOK(init)
HOOK(init_post_opt)
HOOK(local_user_init)
HOOK(user_init)
HOOK(task_init_privileged)
HOOK(task_post_fork)
HOOK(task_init)
HOOK(task_exit)
HOOK(exit)
HOOK(job_prolog)
HOOK(job_epilog)
HOOK(slurmd_exit)
