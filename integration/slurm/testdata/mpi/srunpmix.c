/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin mpi/pmix for srun and slurmd of a Slurm that was built without one, as Debian's 26.05
 * is: it lets srun take --mpi=pmix. What the step daemon does with it, it does by itself. An
 * abort's code does not reach srun by this plugin.
 *
 * VERSION is Slurm's, by which it knows its own plugins.
 */
#include <stddef.h>
#include <stdint.h>

const char plugin_name[] = "PMIx for srun";
const char plugin_type[] = "mpi/pmix";
const uint32_t plugin_version = VERSION;
const uint32_t plugin_id = 107; /* Slurm's, of PMIx 5 */

int init(void)
{
	return 0;
}

int mpi_p_slurmstepd_prefork(const void *step, char ***env)
{
	(void)step, (void)env;
	return -1; /* of Slurm's own step daemon */
}

int mpi_p_slurmstepd_task(const void *task, char ***env)
{
	(void)task, (void)env;
	return -1;
}

void *mpi_p_client_prelaunch(const void *step, char ***env)
{
	static int state;

	(void)step, (void)env;
	return &state; /* NULL is a failure */
}

int mpi_p_client_fini(void *state)
{
	(void)state;
	return 0;
}

void mpi_p_conf_options(void **options, int *count)
{
	(void)options, (void)count;
}

void mpi_p_conf_set(void *table)
{
	(void)table;
}

void *mpi_p_conf_get(void)
{
	return NULL;
}

void *mpi_p_conf_get_printable(void)
{
	return NULL;
}
