// SPDX-License-Identifier: Apache-2.0
/* A plugin that is compiled with an installed Slurm's own headers, -DVERSION of
 * another release, and asks for the job. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <slurm/slurm.h>
#include <slurm/spank.h>

#ifndef VERSION
#define VERSION SLURM_VERSION_NUMBER
#endif

const char plugin_name[] = "job";
const char plugin_type[] = "spank";
const unsigned int plugin_version = VERSION;
const unsigned int spank_plugin_version = 1;

static const char *text(const char *s)
{
	return s ? s : "NULL";
}

static void tell(job_info_msg_t *msg)
{
	slurm_job_info_t *j = msg->job_array;

	slurm_info("records %u job %u state %u uid %u gid %u user %s name %s", msg->record_count,
		   j->job_id, j->job_state, j->user_id, j->group_id, text(j->user_name),
		   text(j->name));
	slurm_info("nodes %s batch_host %s partition %s cluster %s dir %s from %s account %s",
		   text(j->nodes), text(j->batch_host), text(j->partition), text(j->cluster),
		   text(j->work_dir), text(j->alloc_node), text(j->account));
	slurm_info("num %u nodes %u cpus %u tasks %u per_task restarts %u batch %u mem %" PRIu64,
		   j->num_nodes, j->num_cpus, j->num_tasks, j->cpus_per_task, j->restart_cnt,
		   j->batch_flag, j->pn_min_memory);
	slurm_info("array %u %x limit %x start %lld end %lld submit %lld shared %x",
		   j->array_job_id, j->array_task_id, j->time_limit, (long long)j->start_time,
		   (long long)j->end_time, (long long)j->submit_time, j->shared);
	slurm_info("requeue %x index %d bill %d resources %d", j->requeue, j->node_inx[0],
		   j->billable_tres == (double)NO_VAL, j->job_resrcs != NULL);
	slurm_info("lists gres %u %d het %u %s required %s %d excluded %s %d", j->gres_detail_cnt,
		   j->gres_detail_str != NULL, j->het_job_id, text(j->het_job_id_set),
		   text(j->req_nodes), j->req_node_inx[0], text(j->exc_nodes), j->exc_node_inx[0]);
}

static int load(uint32_t id)
{
	job_info_msg_t *msg = NULL;

	errno = 0;
	int rc = slurm_load_job(&msg, id, SHOW_DETAIL);
	if (rc != 0) {
		slurm_info("load %u: %d %d %s", id, rc, errno, slurm_strerror(errno));
		return rc;
	}
	tell(msg);
	slurm_free_job_info_msg(msg);
	return 0;
}

static int visit(spank_t sp, int ac, char **av)
{
	uint32_t id = 0;

	(void)ac, (void)av;
	slurm_init(NULL);
	spank_get_item(sp, S_JOB_ID, &id);
	load(id);
	load(id + 1);
	load(UINT32_MAX);
	slurm_info("no room: %d", slurm_load_job(NULL, id, SHOW_DETAIL));
	slurm_free_job_info_msg(NULL);
	slurm_fini();
	return 0;
}

#define HOOK(name)                                                                                 \
	int slurm_spank_##name(spank_t sp, int ac, char *av[])                                     \
	{                                                                                          \
		return visit(sp, ac, av);                                                          \
	}

HOOK(init)
HOOK(local_user_init)
HOOK(job_prolog)
HOOK(job_epilog)
HOOK(slurmd_exit)
