/* SPDX-License-Identifier: Apache-2.0
 *
 * Executes a program itself in task_init, as singularity-exec does.
 */
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(execself, 1)

int slurm_spank_task_init(spank_t sp, int ac, char *av[])
{
	(void)sp;
	(void)ac;
	(void)av;
	execl("/bin/sh", "sh", "-c", "echo from the plugin; exit 5", (char *)NULL);
	return -1;
}
