/* SPDX-License-Identifier: Apache-2.0
 *
 * stepd's description of a step for the host: the blobs of SETUP and STEP, decoded.
 * Strings point into the blob, which lives as long as the process.
 */
#ifndef STEPD_CONFIG_H
#define STEPD_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "env.h"

/* Tasks, as MaxTasksPerNode's default; and bytes of a blob. */
#define CONFIG_TASKS_MAX   65533
#define CONFIG_BLOB_MAX	   (64u << 20)
#define CONFIG_PLUGINS_MAX 4096

/* A line of plugstack.conf. */
struct plugin_conf {
	bool required;
	char *path;
	char **argv; /* ends with NULL */
	int argc;
};

/* An option that the user gave, once for each time its callback is to be called. */
struct option_given {
	bool has_value;
	char *plugin;
	char *name;
	char *value;
	char *key; /* options.c: both names as the environment has them */
};

struct config {
	uint32_t context;
	char *title;
	uid_t uid;
	gid_t gid;
	gid_t *groups;
	size_t ngroups;
	char *user;
	uint32_t job_id, step_id, nnodes, nodeid;
	char *node_name;
	uint32_t total_tasks;
	uint32_t *global_ids; /* of each local task */
	size_t ntasks;
	uint32_t ncpus, cpus_per_task;
	char *job_cores, *step_cores;
	uint64_t job_mem, step_mem;
	uint32_t restarts, array_id, array_task;
	char **argv; /* ends with NULL */
	int argc;
	struct env env;
	struct env host_env;
	struct env job_control;
	char *job_name, *partition, *node_list, *cluster, *submit_host;
	uint32_t batch; /* 1: of a batch job */
	/* The job's own, 0 until set. */
	uint32_t job_nnodes, job_ncpus, job_ntasks, job_per_task, job_limit, job_end, job_array;
	uint64_t job_start;
	char *cwd;
	mode_t umask;
	bool no_new_privs;
	uint32_t join_ns; /* enum join_ns */
	bool has_oom_score;
	int32_t oom_score;
	struct plugin_conf *plugins;
	size_t nplugins;
	struct option_given *options;
	size_t noptions;
};

/* Fills c from a blob of SETUP, which it rewrites and keeps. False if the blob
 * is malformed; why then names the field. */
bool config_decode(struct config *c, void *blob, size_t len, const char **why);
/* Adds the items of a further blob, which it keeps as well. */
bool config_update(struct config *c, void *blob, size_t len, const char **why);
void config_free(struct config *c);

/* Where one of the descriptors 0 to 2 of a task leads. */
struct stream {
	uint32_t kind;	/* enum stream_kind */
	uint32_t index; /* of the table, or the flags of open */
	const char *path;
};

/* An element of a task's list: of environment entries or of descriptors. */
struct item {
	char *text;
	uint32_t index; /* of the table */
	uint32_t next;	/* NO_ITEM ends the list */
};
#define NO_ITEM 0xffffffffu

struct list {
	uint32_t first, last;
};

/* A memory policy, as set_mempolicy(2) takes it. */
#define MEM_WORDS_MAX 16 /* 1024 nodes: the kernel has no more */
struct mem_policy {
	uint32_t mode;
	uint32_t words;
	uint64_t nodes[MEM_WORDS_MAX];
};

/* Settings that differ by rank. */
struct rank_conf {
	struct stream stream[3];
	bool own_stream[3];  /* set for this rank, not for all */
	uint32_t mem_policy; /* of step_conf.mem_policies, from 1; 0: none was set */
	struct list env;
	struct list fds;
	struct list argv; /* empty: the job's */
	const char *cwd;  /* NULL: the job's */
};

/* A script that is run around each task. */
struct script {
	uint32_t kind;	    /* enum script_kind */
	uint32_t timeout_s; /* 0: it may take any time */
	const char *label, *path;
};

struct step_conf {
	struct rank_conf *ranks; /* ntasks + 1: the last is for all */
	size_t ntasks;
	struct item *items;
	size_t nitems, items_cap;
	struct mem_policy *mem_policies;
	size_t nmem_policies;
	struct script *scripts;
	size_t nscripts;
	char **env_set, **env_unset, **exit_env;
	size_t nenv_set, nenv_unset, nexit_env;
};

/* Fills s from a blob of STEP for ntasks tasks and a table of nfds descriptors. */
bool step_decode(struct step_conf *s, void *blob, size_t len, size_t ntasks, size_t nfds,
		 const char **why);
void step_free(struct step_conf *s);

/* The lists of what is for all ranks. */
const struct rank_conf *step_common(const struct step_conf *s);

/* The memory policy of a rank, or the one for all; NULL if neither was set. */
const struct mem_policy *step_mem_policy(const struct step_conf *s, size_t rank);

/* The stream of a rank, or the one for all; STREAM_NULL if neither was set. */
struct stream step_stream(const struct step_conf *s, size_t rank, int fd);

#endif
