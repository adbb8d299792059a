// SPDX-License-Identifier: Apache-2.0
/* spank_get_item. Codes as measured: traces/table_items.tsv. Where Slurm crashed,
 * the documented error is returned. */
#define _GNU_SOURCE
#include <stdarg.h>

#include "api.h"

/* Stores *value at the pointer that comes next in ap. */
#define GIVE(type, value)                                                                          \
	__extension__({                                                                            \
		type *to_ = va_arg(*ap, type *);                                                   \
		if (to_ != NULL)                                                                   \
			*to_ = (value);                                                            \
		to_ != NULL ? ESPANK_SUCCESS : ESPANK_BAD_ARG;                                     \
	})

static spank_err_t version_item(const struct plugin *p, spank_item_t item, va_list *ap)
{
	switch (item) {
	case S_SLURM_VERSION:
		return GIVE(char *, (char *)p->version);
	case S_SLURM_VERSION_MAJOR:
		return GIVE(char *, (char *)p->major);
	case S_SLURM_VERSION_MINOR:
		return GIVE(char *, (char *)p->minor);
	default:
		return GIVE(char *, (char *)p->micro);
	}
}

static spank_err_t job_item(struct host *h, spank_item_t item, va_list *ap)
{
	const struct config *c = &h->cfg;

	switch (item) {
	case S_JOB_UID:
		return GIVE(uid_t, c->uid);
	case S_JOB_GID:
		return GIVE(gid_t, c->gid);
	case S_JOB_ID:
		return GIVE(uint32_t, c->job_id);
	case S_JOB_STEPID:
		return GIVE(uint32_t, c->step_id);
	case S_JOB_NNODES:
		return GIVE(uint32_t, c->nnodes);
	case S_JOB_NODEID:
		return GIVE(uint32_t, c->nodeid);
	case S_JOB_LOCAL_TASK_COUNT:
		return GIVE(uint32_t, (uint32_t)c->ntasks);
	case S_JOB_TOTAL_TASK_COUNT:
		return GIVE(uint32_t, c->total_tasks);
	case S_JOB_NCPUS:
		return GIVE(uint16_t, (uint16_t)(c->ncpus > UINT16_MAX ? UINT16_MAX : c->ncpus));
	case S_JOB_ENV:
		/* Measured: the local side has none; its environment is the process's. */
		return GIVE(char **, h->cfg.context == S_CTX_REMOTE ? h->env.v : NULL);
	case S_SLURM_RESTART_COUNT:
		return GIVE(uint32_t, c->restarts);
	case S_JOB_ARRAY_ID:
		return GIVE(uint32_t, c->array_id);
	case S_JOB_ARRAY_TASK_ID:
		return GIVE(uint32_t, c->array_task);
	default:
		return ESPANK_BAD_ARG;
	}
}

static spank_err_t allocation_item(const struct host *h, spank_item_t item, va_list *ap)
{
	const struct config *c = &h->cfg;

	switch (item) {
	case S_STEP_CPUS_PER_TASK:
		return GIVE(uint32_t, c->cpus_per_task);
	case S_JOB_ALLOC_CORES:
		return GIVE(char *, c->job_cores);
	case S_JOB_ALLOC_MEM:
		return GIVE(uint64_t, c->job_mem);
	case S_STEP_ALLOC_CORES:
		return GIVE(char *, c->step_cores);
	default:
		return GIVE(uint64_t, c->step_mem);
	}
}

static spank_err_t pair_item(struct host *h, spank_item_t item, va_list *ap)
{
	if (item == S_JOB_ARGV) {
		int *argc = va_arg(*ap, int *);
		char ***argv = va_arg(*ap, char ***);

		if (argc == NULL || argv == NULL)
			return ESPANK_BAD_ARG;
		*argc = h->argc;
		*argv = h->argv;
	} else {
		gid_t **gids = va_arg(*ap, gid_t **);
		int *n = va_arg(*ap, int *);

		if (gids == NULL || n == NULL)
			return ESPANK_BAD_ARG;
		*gids = h->cfg.groups;
		*n = (int)h->cfg.ngroups;
	}
	return ESPANK_SUCCESS;
}

static spank_err_t task_item(const struct host *h, spank_item_t item, va_list *ap)
{
	/* S_TASK_* exist in the four hooks that are called for a task. */
	if (h->hook == NO_HOOK || h->rank >= h->cfg.ntasks)
		return ESPANK_NOT_TASK;
	switch (item) {
	case S_TASK_ID:
		return GIVE(int, (int)h->rank);
	case S_TASK_GLOBAL_ID:
		return GIVE(uint32_t, h->cfg.global_ids[h->rank]);
	case S_TASK_PID:
		/* Measured: only the parent knows it. */
		return GIVE(pid_t, h->in_task ? -1 : h->tasks[h->rank].pid);
	default:
		if (h->hook != HOOK_TASK_EXIT)
			return ESPANK_NOT_TASK;
		return GIVE(int, h->exit_status);
	}
}

static spank_err_t by_pid(const struct host *h, spank_item_t item, va_list *ap)
{
	pid_t pid = va_arg(*ap, pid_t);
	uint32_t *to = va_arg(*ap, uint32_t *);

	if (to == NULL)
		return ESPANK_BAD_ARG;
	if (h->in_task || !h->pids_known)
		return ESPANK_NOT_EXECD;
	for (uint32_t i = 0; i < h->cfg.ntasks; i++) {
		if (pid > 0 && h->tasks[i].pid == pid) {
			*to = item == S_JOB_PID_TO_LOCAL_ID ? i : h->cfg.global_ids[i];
			return ESPANK_SUCCESS;
		}
	}
	return ESPANK_NOEXIST;
}

static spank_err_t by_rank(const struct host *h, spank_item_t item, va_list *ap)
{
	const struct config *c = &h->cfg;
	uint32_t id = va_arg(*ap, uint32_t);
	uint32_t *to = va_arg(*ap, uint32_t *);

	if (to == NULL)
		return ESPANK_BAD_ARG;
	if (item == S_JOB_LOCAL_TO_GLOBAL_ID) {
		if (id >= c->ntasks)
			return ESPANK_NOEXIST;
		*to = c->global_ids[id];
		return ESPANK_SUCCESS;
	}
	for (uint32_t i = 0; i < c->ntasks; i++) {
		if (c->global_ids[i] == id) {
			*to = i;
			return ESPANK_SUCCESS;
		}
	}
	/* Measured: a rank that the step does not have is a bad argument. */
	return id >= c->total_tasks ? ESPANK_BAD_ARG : ESPANK_NOEXIST;
}

/* Whether an item is available outside of remote context: traces/table_items.tsv,
 * table_sbatch_items.tsv, table_slurmd_items.tsv. */
static spank_err_t elsewhere(const struct host *h, spank_item_t item)
{
	bool of_job = false;

	switch (item) {
	case S_JOB_UID:
	case S_JOB_GID:
		if (h->cfg.context == S_CTX_JOB_SCRIPT)
			return ESPANK_SUCCESS;
		if (h->cfg.context == S_CTX_ALLOCATOR)
			return ESPANK_NOT_AVAIL;
		of_job = true;
		break;
	case S_JOB_ID:
		if (h->cfg.context == S_CTX_JOB_SCRIPT)
			return ESPANK_SUCCESS;
		of_job = true;
		break;
	case S_JOB_STEPID:
	case S_JOB_NNODES:
	case S_JOB_TOTAL_TASK_COUNT:
	case S_JOB_ARGV:
	case S_JOB_ENV:
		of_job = true;
		break;
	default:
		break;
	}
	switch (h->cfg.context) {
	case S_CTX_LOCAL:
		if (!of_job)
			return ESPANK_NOT_REMOTE;
		return h->hook == HOOK_LOCAL_USER_INIT ? ESPANK_SUCCESS : ESPANK_NOT_AVAIL;
	case S_CTX_ALLOCATOR:
		return of_job ? ESPANK_BAD_ARG : ESPANK_NOT_REMOTE;
	default:
		return ESPANK_NOT_AVAIL;
	}
}

static spank_err_t get_item(struct host *h, const struct plugin *p, spank_item_t item, va_list *ap)
{
	if (item >= S_SLURM_VERSION && item <= S_SLURM_VERSION_MICRO)
		return version_item(p, item, ap);
	if (h->cfg.context != S_CTX_REMOTE) {
		spank_err_t err = elsewhere(h, item);

		if (err != ESPANK_SUCCESS)
			return err;
	}
	switch (item) {
	case S_JOB_ARGV:
	case S_JOB_SUPPLEMENTARY_GIDS:
		return pair_item(h, item, ap);
	case S_TASK_ID:
	case S_TASK_GLOBAL_ID:
	case S_TASK_EXIT_STATUS:
	case S_TASK_PID:
		return task_item(h, item, ap);
	case S_JOB_PID_TO_GLOBAL_ID:
	case S_JOB_PID_TO_LOCAL_ID:
		return by_pid(h, item, ap);
	case S_JOB_LOCAL_TO_GLOBAL_ID:
	case S_JOB_GLOBAL_TO_LOCAL_ID:
		return by_rank(h, item, ap);
	case S_STEP_CPUS_PER_TASK:
	case S_JOB_ALLOC_CORES:
	case S_JOB_ALLOC_MEM:
	case S_STEP_ALLOC_CORES:
	case S_STEP_ALLOC_MEM:
		return allocation_item(h, item, ap);
	default:
		return job_item(h, item, ap);
	}
}

SPANK_API spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...)
{
	struct host *h = host_of(spank);
	spank_err_t err;
	va_list ap;

	if (h == NULL)
		return ESPANK_BAD_ARG;
	va_start(ap, item);
	err = get_item(h, spank->plugin, item, &ap);
	va_end(ap);
	return err;
}
