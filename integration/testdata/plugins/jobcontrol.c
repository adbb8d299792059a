/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin that uses the job control environment. Arguments of its plugstack line:
 *
 *   mark=FILE                         where it writes what the calls return, and in job_prolog
 *                                     and job_epilog each SPANK_ variable
 *   CTX:HOOK:OP:NAME[:VALUE[:OW]]     there: OP is set, unset, get, big (set 1 MiB) or null
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(jobcontrol, 1)

static int call(spank_t sp, const char *op, const char *name, const char *value, int overwrite,
		char *got, int room)
{
	static char big[(1 << 20) + 1];

	if (strcmp(op, "set") == 0)
		return spank_job_control_setenv(sp, name, value, overwrite);
	if (strcmp(op, "unset") == 0)
		return spank_job_control_unsetenv(sp, name);
	if (strcmp(op, "get") == 0)
		return spank_job_control_getenv(sp, name, got, room);
	if (strcmp(op, "big") == 0)
		return spank_job_control_setenv(sp, name, memset(big, 'x', sizeof(big) - 1), 1);
	return spank_job_control_unsetenv(sp, NULL);
}

static int visit(spank_t sp, const char *hook, int ac, char **av)
{
	int fd = open(av[0] + strlen("mark="), O_WRONLY | O_APPEND | O_CLOEXEC);
	char at[64];
	int n = snprintf(at, sizeof(at), "%d:%s:", spank_context(), hook);

	for (int i = 1; i < ac; i++) {
		char op[16] = "", name[64] = "", value[64] = "", got[64] = "";
		int overwrite = 1;

		if (strncmp(av[i], at, (size_t)n) != 0)
			continue;
		sscanf(av[i] + n, "%15[^:]:%63[^:]:%63[^:]:%d", op, name, value, &overwrite);
		int rc = call(sp, op, name, value, overwrite, got, sizeof(got));
		dprintf(fd, "%s %d%s%s\n", av[i], rc, got[0] ? " " : "", got);
	}
	for (char **e = environ; spank_context() == S_CTX_JOB_SCRIPT && *e != NULL; e++) {
		if (strncmp(*e, "SPANK_", 6) == 0)
			dprintf(fd, "%s %.40s %zu\n", hook, *e, strlen(*e));
	}
	close(fd);
	return 0;
}

#define HOOK(name)                                                                                 \
	int slurm_spank_##name(spank_t sp, int ac, char *av[])                                     \
	{                                                                                          \
		return visit(sp, #name, ac, av);                                                   \
	}

HOOK(init)
HOOK(init_post_opt)
HOOK(local_user_init)
HOOK(job_prolog)
HOOK(job_epilog)
