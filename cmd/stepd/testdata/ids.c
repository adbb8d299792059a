/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin that prints which tasks it is called for: in each hook of a task the items
 * that name it, and in user_init the table of all conversions. Arguments: fail=RANK
 * lets task_exit of that rank fail, slow=RANK makes its start take 200 ms, hang
 * lets init never return. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(ids, 1)

int slurm_spank_init(spank_t sp, int ac, char **av)
{
	(void)sp;
	while (ac > 0 && strcmp(av[0], "hang") == 0)
		pause();
	return 0;
}

static int say(spank_t sp, const char *hook)
{
	uint32_t global = 99, local_count = 99, total = 99, nnodes = 99, node = 99;
	int local = 99;

	spank_get_item(sp, S_TASK_ID, &local);
	spank_get_item(sp, S_TASK_GLOBAL_ID, &global);
	spank_get_item(sp, S_JOB_LOCAL_TASK_COUNT, &local_count);
	spank_get_item(sp, S_JOB_TOTAL_TASK_COUNT, &total);
	spank_get_item(sp, S_JOB_NNODES, &nnodes);
	spank_get_item(sp, S_JOB_NODEID, &node);
	slurm_spank_log("%s: task %d is rank %u, %u of %u here, node %u of %u", hook, local, global,
			local_count, total, node, nnodes);
	return (int)global;
}

int slurm_spank_user_init(spank_t sp, int ac, char *av[])
{
	(void)ac;
	(void)av;
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t local = 99, global = 99;
		int rc_local = spank_get_item(sp, S_JOB_GLOBAL_TO_LOCAL_ID, i, &local);
		int rc_global = spank_get_item(sp, S_JOB_LOCAL_TO_GLOBAL_ID, i, &global);

		slurm_spank_log("%u: local %u rc=%d, global %u rc=%d", i, local, rc_local, global,
				rc_global);
	}
	return 0;
}

int slurm_spank_task_init_privileged(spank_t sp, int ac, char *av[])
{
	uint32_t global = 99;

	spank_get_item(sp, S_TASK_GLOBAL_ID, &global);
	if (ac > 0 && strncmp(av[0], "slow=", 5) == 0 && (uint32_t)atoi(av[0] + 5) == global)
		usleep(200000);
	return 0;
}

int slurm_spank_task_init(spank_t sp, int ac, char *av[])
{
	(void)ac;
	(void)av;
	say(sp, "task_init");
	return 0;
}

int slurm_spank_task_post_fork(spank_t sp, int ac, char *av[])
{
	uint32_t global = 99, local = 99;
	pid_t pid = 0;

	(void)ac;
	(void)av;
	say(sp, "task_post_fork");
	spank_get_item(sp, S_TASK_PID, &pid);
	spank_get_item(sp, S_JOB_PID_TO_GLOBAL_ID, pid, &global);
	spank_get_item(sp, S_JOB_PID_TO_LOCAL_ID, pid, &local);
	slurm_spank_log("by pid: task %u is rank %u", local, global);
	return 0;
}

int slurm_spank_task_exit(spank_t sp, int ac, char *av[])
{
	int rank = say(sp, "task_exit");

	return ac > 0 && strncmp(av[0], "fail=", 5) == 0 && atoi(av[0] + 5) == rank ? -1 : 0;
}
