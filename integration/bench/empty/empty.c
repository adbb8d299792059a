/* SPDX-License-Identifier: Apache-2.0
 * A plugin that has every hook and does nothing in any of them. */
#include <slurm/spank.h>

SPANK_PLUGIN(empty, 1);

#define HOOK(name)                                                                                 \
	int name(spank_t spank, int ac, char *argv[])                                              \
	{                                                                                          \
		(void)spank, (void)ac, (void)argv;                                                 \
		return 0;                                                                          \
	}

HOOK(slurm_spank_init)
HOOK(slurm_spank_job_prolog)
HOOK(slurm_spank_init_post_opt)
HOOK(slurm_spank_local_user_init)
HOOK(slurm_spank_user_init)
HOOK(slurm_spank_task_init_privileged)
HOOK(slurm_spank_task_init)
HOOK(slurm_spank_task_post_fork)
HOOK(slurm_spank_task_exit)
HOOK(slurm_spank_job_epilog)
HOOK(slurm_spank_slurmd_exit)
HOOK(slurm_spank_exit)
