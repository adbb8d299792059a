// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "config.h"

#include <limits.h>
#include <string.h>

#include "protocol.h"
#include "slurm/spank.h"
#include "util.h"
#include "wire.h"

/* Makes room for one more element: arrays grow at powers of two. */
static void *grow(void *array, size_t n, size_t size)
{
	return (n & (n - 1)) == 0 ? must_grow(array, n ? 2 * n : 1, size) : array;
}

static char **add_string(char **array, size_t n, char *s)
{
	array = grow(array, n + 1, sizeof(*array)); /* n strings and the NULL */
	array[n] = s;
	array[n + 1] = NULL;
	return array;
}

static void add_arg(char ***argv, int *argc, char *s, struct reader *r)
{
	if (*argc == INT_MAX - 2) {
		r->bad = true;
		return;
	}
	*argv = add_string(*argv, (size_t)*argc, s);
	++*argc;
}

static void read_groups(struct config *c, struct reader *r)
{
	size_t n = r->left / 4;

	free(c->groups);
	c->groups = must_zero(n, sizeof(*c->groups));
	for (c->ngroups = 0; c->ngroups < n; c->ngroups++)
		c->groups[c->ngroups] = rd_u32(r);
}

static void read_global_ids(struct config *c, struct reader *r)
{
	size_t n = r->left / 4;

	if (n > CONFIG_TASKS_MAX) {
		r->bad = true;
		return;
	}
	free(c->global_ids);
	c->global_ids = must_zero(n, sizeof(*c->global_ids));
	for (c->ntasks = 0; c->ntasks < n; c->ntasks++)
		c->global_ids[c->ntasks] = rd_u32(r);
}

static void read_plugin(struct config *c, struct reader *r)
{
	struct plugin_conf *p;

	if (c->nplugins == CONFIG_PLUGINS_MAX) {
		r->bad = true;
		return;
	}
	c->plugins = grow(c->plugins, c->nplugins, sizeof(*c->plugins));
	p = &c->plugins[c->nplugins++];
	*p = (struct plugin_conf){0};
	p->required = rd_u32(r) != 0;
	p->path = rd_str(r);
	p->argv = must_zero(2, sizeof(*p->argv));
}

static void read_plugin_arg(struct config *c, struct reader *r)
{
	struct plugin_conf *p = c->nplugins ? &c->plugins[c->nplugins - 1] : NULL;

	if (p == NULL)
		r->bad = true; /* of which plugin? */
	else
		add_arg(&p->argv, &p->argc, rd_str(r), r);
}

static void read_option(struct config *c, struct reader *r)
{
	struct option_given *o;

	c->options = grow(c->options, c->noptions, sizeof(*c->options));
	o = &c->options[c->noptions++];
	o->has_value = rd_u32(r) != 0;
	o->plugin = rd_str(r);
	o->name = rd_str(r);
	o->value = rd_str(r);
	o->key = NULL;
}

static uint32_t *number_of(struct config *c, uint16_t tag)
{
	switch (tag) {
	case TAG_CONTEXT:
		return &c->context;
	case TAG_UID:
		return &c->uid;
	case TAG_GID:
		return &c->gid;
	case TAG_JOB_ID:
		return &c->job_id;
	case TAG_STEP_ID:
		return &c->step_id;
	case TAG_NNODES:
		return &c->nnodes;
	case TAG_NODEID:
		return &c->nodeid;
	case TAG_TOTAL_TASKS:
		return &c->total_tasks;
	case TAG_NCPUS:
		return &c->ncpus;
	case TAG_CPUS_PER_TASK:
		return &c->cpus_per_task;
	case TAG_RESTARTS:
		return &c->restarts;
	case TAG_ARRAY_ID:
		return &c->array_id;
	case TAG_ARRAY_TASK:
		return &c->array_task;
	case TAG_UMASK:
		return &c->umask;
	case TAG_JOIN_NS:
		return &c->join_ns;
	case TAG_BATCH:
		return &c->batch;
	case TAG_JOB_NNODES:
		return &c->job_nnodes;
	case TAG_JOB_NCPUS:
		return &c->job_ncpus;
	case TAG_JOB_NTASKS:
		return &c->job_ntasks;
	case TAG_JOB_PER_TASK:
		return &c->job_per_task;
	case TAG_JOB_LIMIT:
		return &c->job_limit;
	case TAG_JOB_END:
		return &c->job_end;
	case TAG_JOB_ARRAY:
		return &c->job_array;
	default:
		return NULL;
	}
}

static char **string_of(struct config *c, uint16_t tag)
{
	switch (tag) {
	case TAG_TITLE:
		return &c->title;
	case TAG_USER:
		return &c->user;
	case TAG_NODE_NAME:
		return &c->node_name;
	case TAG_JOB_CORES:
		return &c->job_cores;
	case TAG_STEP_CORES:
		return &c->step_cores;
	case TAG_CWD:
		return &c->cwd;
	case TAG_JOB_NAME:
		return &c->job_name;
	case TAG_PARTITION:
		return &c->partition;
	case TAG_NODE_LIST:
		return &c->node_list;
	case TAG_CLUSTER:
		return &c->cluster;
	case TAG_SUBMIT_HOST:
		return &c->submit_host;
	default:
		return NULL;
	}
}

/* Reads a value that is neither a plain number nor a plain string; false for an unknown tag. */
static bool read_other(struct config *c, uint16_t tag, struct reader *r)
{
	switch (tag) {
	case TAG_GROUPS:
		read_groups(c, r);
		return true;
	case TAG_GLOBAL_IDS:
		read_global_ids(c, r);
		return true;
	case TAG_JOB_MEM:
		c->job_mem = rd_u64(r);
		return true;
	case TAG_JOB_START:
		c->job_start = rd_u64(r);
		return true;
	case TAG_STEP_MEM:
		c->step_mem = rd_u64(r);
		return true;
	case TAG_ARG:
		add_arg(&c->argv, &c->argc, rd_str(r), r);
		return true;
	case TAG_ENV:
		env_append(&c->env, rd_str(r));
		return true;
	case TAG_HOST_ENV:
		env_put(&c->host_env, rd_str(r));
		return true;
	case TAG_JOB_CONTROL:
		env_put(&c->job_control, rd_str(r));
		return true;
	case TAG_NO_NEW_PRIVS:
		c->no_new_privs = rd_u32(r) != 0;
		return true;
	case TAG_OOM_SCORE:
		c->has_oom_score = true;
		c->oom_score = (int32_t)rd_u32(r);
		return true;
	case TAG_PLUGIN:
		read_plugin(c, r);
		return true;
	case TAG_PLUGIN_ARG:
		read_plugin_arg(c, r);
		return true;
	case TAG_OPTION:
		read_option(c, r);
		return true;
	default:
		return false;
	}
}

/* Reads one item; false if it is malformed or unknown and not optional. */
static bool read_item(struct config *c, struct reader *blob)
{
	uint16_t tag = rd_u16(blob), flags = rd_u16(blob);
	uint32_t len = rd_u32(blob);
	struct reader r = rd_sub(blob, len);
	uint32_t *number = number_of(c, tag);
	char **string = string_of(c, tag);

	if (r.bad)
		return false;
	if (number != NULL)
		*number = rd_u32(&r);
	else if (string != NULL)
		*string = rd_str(&r);
	else if (!read_other(c, tag, &r))
		return (flags & TLV_OPTIONAL) != 0;
	return rd_done(&r);
}

static const char *config_check(const struct config *c)
{
	if (c->uid == (uid_t)-1 || c->gid == (gid_t)-1)
		return "it has no uid or gid";
	if (c->context < S_CTX_LOCAL || c->context > S_CTX_JOB_SCRIPT)
		return "its context is unknown";
	if (c->context != S_CTX_REMOTE) /* it has no tasks */
		return c->ntasks > 0 ? "it has tasks" : NULL;
	if (c->argv == NULL)
		return "it has no command";
	if (c->join_ns > JOIN_HOST)
		return "its join_ns is unknown";
	if (c->cwd[0] == 0)
		return "it has no working directory";
	if ((c->umask & ~(mode_t)0777) != 0)
		return "its umask is above 0777";
	return NULL;
}

bool config_update(struct config *c, void *blob, size_t len, const char **why)
{
	struct reader r = rd_init(blob, len);

	*why = NULL;
	while (r.left > 0 && !r.bad && *why == NULL) {
		if (!read_item(c, &r))
			*why = "an item is malformed";
	}
	return *why == NULL;
}

bool config_decode(struct config *c, void *blob, size_t len, const char **why)
{
	static char none[1];

	/* uid and gid have no default: root must be said. */
	*c = (struct config){.uid = (uid_t)-1, .gid = (gid_t)-1, .umask = 022};
	c->job_name = c->partition = c->node_list = c->cluster = c->submit_host = none;
	c->title = c->user = c->node_name = c->job_cores = c->step_cores = c->cwd = none;
	env_init(&c->env);
	env_init(&c->host_env);
	env_init(&c->job_control);
	if (config_update(c, blob, len, why))
		*why = config_check(c);
	return *why == NULL;
}

void config_free(struct config *c)
{
	for (size_t i = 0; i < c->nplugins; i++)
		free(c->plugins[i].argv);
	free(c->plugins);
	free(c->groups);
	free(c->global_ids);
	free(c->argv);
	for (size_t i = 0; i < c->noptions; i++)
		free(c->options[i].key);
	free(c->options);
	env_free(&c->env);
	env_free(&c->host_env);
	env_free(&c->job_control);
	*c = (struct config){0};
}
