// SPDX-License-Identifier: Apache-2.0
/* A plugin that asks slurmctld, by Slurm's own library. */
#include <stdint.h>
#include <stdio.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(slurmapi, 1)

int slurm_spank_user_init(spank_t sp, int ac, char **av)
{
	node_info_msg_t *nodes = NULL;
	(void)sp, (void)ac, (void)av;
	if (slurm_load_node(0, &nodes, SHOW_ALL) != 0) {
		slurm_error("cannot ask slurmctld: %s", slurm_strerror(slurm_get_errno()));
		return -1;
	}
	slurm_spank_log("slurmctld has %u node, %s", nodes->record_count,
			nodes->node_array[0].name);
	slurm_free_node_info_msg(nodes);
	return 0;
}
