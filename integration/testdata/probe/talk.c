/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin that speaks in every callback, in each way that it has: what the
 * user sees of it is compared with what was measured.
 */
#include <stdio.h>

#include <slurm/spank.h>

SPANK_PLUGIN(talk, 1)

static int talk(const char *cb)
{
	const int ctx = spank_context();

	slurm_error("%d:%s slurm_error", ctx, cb);
	slurm_info("%d:%s slurm_info", ctx, cb);
	slurm_verbose("%d:%s slurm_verbose", ctx, cb);
	slurm_debug("%d:%s slurm_debug", ctx, cb);
	slurm_spank_log("%d:%s slurm_spank_log", ctx, cb);
	fprintf(stderr, "%d:%s stderr\n", ctx, cb);
	printf("%d:%s stdout\n", ctx, cb);
	fflush(stdout);
	return 0;
}

#define HOOK(name)                                                                                 \
	int slurm_spank_##name(spank_t sp, int ac, char *av[])                                     \
	{                                                                                          \
		(void)sp;                                                                          \
		(void)ac;                                                                          \
		(void)av;                                                                          \
		return talk(#name);                                                                \
	}

HOOK(init)
HOOK(init_post_opt)
HOOK(local_user_init)
HOOK(user_init)
HOOK(task_init_privileged)
HOOK(task_init)
HOOK(task_post_fork)
HOOK(task_exit)
HOOK(exit)
HOOK(job_prolog)
HOOK(job_epilog)
