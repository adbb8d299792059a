/* SPDX-License-Identifier: Apache-2.0
 *
 * Appends "JOB STEP: array ARRAY, task TASK" to the file that its argument names, in
 * slurm_spank_init of each step.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(array, 1)

int slurm_spank_init(spank_t sp, int ac, char **av)
{
	uint32_t job, step, array, task;
	char line[128];

	if (spank_remote(sp) != 1 || ac != 1)
		return 0;
	if (spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_STEPID, &step) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_ARRAY_ID, &array) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_ARRAY_TASK_ID, &task) != ESPANK_SUCCESS)
		return -1;
	int n = snprintf(line, sizeof(line), "%u %u: array %u, task %u\n", job, step, array, task);
	int fd = open(av[0], O_WRONLY | O_APPEND | O_CLOEXEC);
	if (fd < 0 || write(fd, line, (size_t)n) != n)
		return -1;
	return close(fd);
}
