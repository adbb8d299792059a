// SPDX-License-Identifier: Apache-2.0
/* Prints the numbers and sizes that a plugin is compiled with: built with our
 * headers and with an installed Slurm's, the output must be the same. */
#include <slurm/spank.h>
#include <slurm/slurm_errno.h>
#include <stdio.h>
#include <stddef.h>
#define P(x) printf(#x " %lld\n", (long long)(x))
int main()
{
	P(S_JOB_UID);
	P(S_JOB_GID);
	P(S_JOB_ID);
	P(S_JOB_STEPID);
	P(S_JOB_NNODES);
	P(S_JOB_NODEID);
	P(S_JOB_LOCAL_TASK_COUNT);
	P(S_JOB_TOTAL_TASK_COUNT);
	P(S_JOB_NCPUS);
	P(S_JOB_ARGV);
	P(S_JOB_ENV);
	P(S_TASK_ID);
	P(S_TASK_GLOBAL_ID);
	P(S_TASK_EXIT_STATUS);
	P(S_TASK_PID);
	P(S_JOB_PID_TO_GLOBAL_ID);
	P(S_JOB_PID_TO_LOCAL_ID);
	P(S_JOB_LOCAL_TO_GLOBAL_ID);
	P(S_JOB_GLOBAL_TO_LOCAL_ID);
	P(S_JOB_SUPPLEMENTARY_GIDS);
	P(S_SLURM_VERSION);
	P(S_SLURM_VERSION_MAJOR);
	P(S_SLURM_VERSION_MINOR);
	P(S_SLURM_VERSION_MICRO);
	P(S_STEP_CPUS_PER_TASK);
	P(S_JOB_ALLOC_CORES);
	P(S_JOB_ALLOC_MEM);
	P(S_STEP_ALLOC_CORES);
	P(S_STEP_ALLOC_MEM);
	P(S_SLURM_RESTART_COUNT);
	P(S_JOB_ARRAY_ID);
	P(S_JOB_ARRAY_TASK_ID);
	P(S_CTX_ERROR);
	P(S_CTX_LOCAL);
	P(S_CTX_REMOTE);
	P(S_CTX_ALLOCATOR);
	P(S_CTX_SLURMD);
	P(S_CTX_JOB_SCRIPT);
	P(ESPANK_SUCCESS);
	P(ESPANK_ERROR);
	P(ESPANK_BAD_ARG);
	P(ESPANK_NOT_TASK);
	P(ESPANK_ENV_EXISTS);
	P(ESPANK_ENV_NOEXIST);
	P(ESPANK_NOSPACE);
	P(ESPANK_NOT_REMOTE);
	P(ESPANK_NOEXIST);
	P(ESPANK_NOT_EXECD);
	P(ESPANK_NOT_AVAIL);
	P(ESPANK_NOT_LOCAL);
	P(SLURM_SUCCESS);
	P(SLURM_ERROR);
	P(sizeof(struct spank_option));
	P(offsetof(struct spank_option, has_arg));
	P(offsetof(struct spank_option, val));
	P(offsetof(struct spank_option, cb));
	P(sizeof(spank_err_t));
	P(sizeof(spank_item_t));
	P(SPANK_OPTION_MAXLEN);
}
