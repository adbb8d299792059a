/* SPDX-License-Identifier: Apache-2.0
 *
 * Says in every hook where it is, and does what its arguments order:
 * HOOK=rc:N, HOOK=segv, HOOK=hang, HOOK=exit, HOOK=stop.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(sess, 1)

#ifdef FAILURE_MODE
const int slurm_spank_init_failure_mode = FAILURE_MODE;
#endif

static int on_option(int val, const char *optarg, int remote);

struct spank_option spank_options[] = {
	{"table", "value", "of the table", 1, 1, on_option},
	SPANK_OPTIONS_TABLE_END,
};
static struct spank_option reg = {"reg", "value", "registered", 2, 2, on_option};

static int on_option(int val, const char *optarg, int remote)
{
	slurm_info("option %d=%s remote=%d", val, optarg ? optarg : "NULL", remote);
	return optarg && strcmp(optarg, "bad") == 0 ? -1 : 0;
}

static int visit(spank_t sp, const char *hook, int ac, char **av)
{
	uint32_t job = 0, step = 0;
	uid_t uid = 0;
	char *value = NULL;
	size_t n = strlen(hook);
	int ejob = spank_get_item(sp, S_JOB_ID, &job),
	    estep = spank_get_item(sp, S_JOB_STEPID, &step);
	int euid = spank_get_item(sp, S_JOB_UID, &uid),
	    eopt = spank_option_getopt(sp, &reg, &value);

	slurm_info("%s ctx=%d remote=%d job=%d:%u step=%d:%u uid=%d getopt=%d:%s", hook,
		   spank_context(), spank_remote(sp), ejob, job, estep, step, euid, eopt,
		   value ? value : "NULL");
	for (int i = 0; i < ac; i++) {
		if (strncmp(av[i], hook, n) != 0 || av[i][n] != '=')
			continue;
		if (strncmp(av[i] + n + 1, "rc:", 3) == 0)
			return atoi(av[i] + n + 4);
		if (strcmp(av[i] + n + 1, "segv") == 0)
			raise(SIGSEGV);
		if (strcmp(av[i] + n + 1, "stop") == 0)
			raise(SIGSTOP);
		if (strcmp(av[i] + n + 1, "exit") == 0)
			exit(3);
		while (strcmp(av[i] + n + 1, "hang") == 0)
			pause();
	}
	return 0;
}

int slurm_spank_init(spank_t sp, int ac, char *av[])
{
	if (spank_context() == S_CTX_LOCAL || spank_context() == S_CTX_ALLOCATOR) {
		spank_option_register(sp, &reg);
		spank_job_control_setenv(sp, "JC", "init", 1);
		setenv("FROM_INIT", "1", 1);
	}
	return visit(sp, "init", ac, av);
}

#define HOOK(name)                                                                                 \
	int slurm_spank_##name(spank_t sp, int ac, char *av[])                                     \
	{                                                                                          \
		return visit(sp, #name, ac, av);                                                   \
	}

HOOK(init_post_opt)
HOOK(local_user_init)
HOOK(job_prolog)
HOOK(job_epilog)
HOOK(slurmd_exit)
HOOK(exit)
