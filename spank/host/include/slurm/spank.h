/* SPDX-License-Identifier: Apache-2.0
 *
 * SPANK, the plugin interface around the launch of a job step: what a plugin
 * includes to be loaded by stepd's spankhost. Names and numbers are Slurm's
 * since 21.08, so one binary serves both.
 *
 * A plugin says SPANK_PLUGIN(name, version); once and defines any of the
 * slurm_spank_ functions below.
 */
#ifndef SPANK_H
#define SPANK_H

#include <sys/types.h>
#include <stddef.h>
#include <stdint.h>

#include <slurm/slurm_errno.h>
#include <slurm/slurm_version.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Identifies a function of this interface. It is valid as long as the process lives. */
typedef struct spank_handle *spank_t;

/* A callback: its arguments are the words of the plugin's line in plugstack.conf.
 * Less than 0 fails what is under way if the line says `required'. */
typedef int(spank_f)(spank_t spank, int ac, char *argv[]);

/* In the order of a step; beside each the process, effective uid and directory it runs with. */
extern spank_f slurm_spank_init;	    /* host, root, / */
extern spank_f slurm_spank_job_prolog;	    /* before the job's first step; a process of its own */
extern spank_f slurm_spank_init_post_opt;   /* host, root, /; the options are known */
extern spank_f slurm_spank_local_user_init; /* in the client, with the user's rights */
extern spank_f slurm_spank_user_init;	    /* host, the user (real and saved uid 0), job's */
extern spank_f slurm_spank_task_init_privileged; /* each task, root with the user's groups, job's */
extern spank_f slurm_spank_task_init;	   /* each task, the user for good, job's; exec is next */
extern spank_f slurm_spank_task_post_fork; /* host, root, /; for each task, before any execs */
extern spank_f slurm_spank_task_exit;	   /* host, root, /; for each task that ended */
extern spank_f slurm_spank_job_epilog;	   /* after the job's last step; a process of its own */
extern spank_f slurm_spank_slurmd_exit;	   /* when the node daemon ends */
extern spank_f slurm_spank_exit;	   /* host, root, /; the last one */

/* Items of spank_get_item, and the types of the pointers that follow it. */
enum spank_item {
	S_JOB_UID = 0,		       /* uid_t * */
	S_JOB_GID = 1,		       /* gid_t * */
	S_JOB_ID = 2,		       /* uint32_t * */
	S_JOB_STEPID = 3,	       /* uint32_t * */
	S_JOB_NNODES = 4,	       /* uint32_t * */
	S_JOB_NODEID = 5,	       /* uint32_t *: this node among them, from 0 */
	S_JOB_LOCAL_TASK_COUNT = 6,    /* uint32_t *: tasks on this node */
	S_JOB_TOTAL_TASK_COUNT = 7,    /* uint32_t * */
	S_JOB_NCPUS = 8,	       /* uint16_t *: CPUs of this node in the job */
	S_JOB_ARGV = 9,		       /* int *, char ***: the command */
	S_JOB_ENV = 10,		       /* char ***: the job's environment, not `environ' */
	S_TASK_ID = 11,		       /* int *: local rank */
	S_TASK_GLOBAL_ID = 12,	       /* uint32_t *: rank */
	S_TASK_EXIT_STATUS = 13,       /* int *: raw wait status, in task_exit */
	S_TASK_PID = 14,	       /* pid_t *: -1 in the task itself */
	S_JOB_PID_TO_GLOBAL_ID = 15,   /* pid_t, uint32_t * */
	S_JOB_PID_TO_LOCAL_ID = 16,    /* pid_t, uint32_t * */
	S_JOB_LOCAL_TO_GLOBAL_ID = 17, /* uint32_t, uint32_t * */
	S_JOB_GLOBAL_TO_LOCAL_ID = 18, /* uint32_t, uint32_t * */
	S_JOB_SUPPLEMENTARY_GIDS = 19, /* gid_t **, int * */
	S_SLURM_VERSION = 20,	       /* char **: the release that the plugin was built for */
	S_SLURM_VERSION_MAJOR = 21,    /* char ** */
	S_SLURM_VERSION_MINOR = 22,    /* char **, two digits */
	S_SLURM_VERSION_MICRO = 23,    /* char ** */
	S_STEP_CPUS_PER_TASK = 24,     /* uint32_t *: 1 with --overcommit */
	S_JOB_ALLOC_CORES = 25,	       /* char **: "0-3,8" */
	S_JOB_ALLOC_MEM = 26,	       /* uint64_t *: MB */
	S_STEP_ALLOC_CORES = 27,       /* char ** */
	S_STEP_ALLOC_MEM = 28,	       /* uint64_t *: MB */
	S_SLURM_RESTART_COUNT = 29,    /* uint32_t * */
	S_JOB_ARRAY_ID = 30,	       /* uint32_t * */
	S_JOB_ARRAY_TASK_ID = 31,      /* uint32_t * */
};
typedef enum spank_item spank_item_t;

/* Where a plugin finds itself. */
enum spank_context {
	S_CTX_ERROR = 0,
	S_CTX_LOCAL = 1,      /* the client that starts a step */
	S_CTX_REMOTE = 2,     /* the step on its node */
	S_CTX_ALLOCATOR = 3,  /* the client that allocates or submits */
	S_CTX_SLURMD = 4,     /* the node daemon */
	S_CTX_JOB_SCRIPT = 5, /* prolog and epilog */
};
typedef enum spank_context spank_context_t;

/* An option that a plugin adds to the client's commands. */
typedef int (*spank_opt_cb_f)(int val, const char *optarg, int remote);

struct spank_option {
	char *name;	   /* at most SPANK_OPTION_MAXLEN bytes */
	char *arginfo;	   /* its argument in --help, NULL for none */
	char *usage;	   /* one line for --help */
	int has_arg;	   /* 0 none, 1 required, 2 optional */
	int val;	   /* handed to cb */
	spank_opt_cb_f cb; /* may be NULL */
};

#define SPANK_OPTION_MAXLEN 75
#define SPANK_OPTIONS_TABLE_END                                                                    \
	{                                                                                          \
		NULL, NULL, NULL, 0, 0, NULL                                                       \
	}

/* A plugin may export `struct spank_option spank_options[]', ended by SPANK_OPTIONS_TABLE_END;
 * spank_option_register works in more contexts. */

/* In C++ a const object is the file's own unless it was declared otherwise. */
#ifdef __cplusplus
#define SPANK_EXPORTED_                                                                            \
	extern "C" {                                                                               \
	extern const char plugin_name[], plugin_type[];                                            \
	extern const unsigned int plugin_version, spank_plugin_version;                            \
	}
#else
#define SPANK_EXPORTED_
#endif

#define SPANK_PLUGIN(name_, version_)                                                              \
	SPANK_EXPORTED_                                                                            \
	const char plugin_name[] = #name_;                                                         \
	const char plugin_type[] = "spank";                                                        \
	const unsigned int plugin_version = SLURM_VERSION_NUMBER;                                  \
	const unsigned int spank_plugin_version = (version_);

/* 1 for the name of a callback that is known here, 0 for another, -1 for NULL. */
int spank_symbol_supported(const char *symbol);

/* 1 in remote context, 0 in another, -1 for a bad handle. */
int spank_remote(spank_t spank);

spank_context_t spank_context(void);

spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...);

/* The job's environment, in remote context. */
spank_err_t spank_getenv(spank_t spank, const char *var, char *buf, int len);
spank_err_t spank_setenv(spank_t spank, const char *var, const char *val, int overwrite);
spank_err_t spank_unsetenv(spank_t spank, const char *var);

/* The environment of prolog and epilog, in local and allocator context; SPANK_ is put before the name. */
spank_err_t spank_job_control_getenv(spank_t spank, const char *var, char *buf, int len);
spank_err_t spank_job_control_setenv(spank_t spank, const char *var, const char *val,
				     int overwrite);
spank_err_t spank_job_control_unsetenv(spank_t spank, const char *var);

/* Adds an option; in slurm_spank_init. */
spank_err_t spank_option_register(spank_t spank, struct spank_option *opt);

/* Reports whether the user gave the option, and its argument; in job_prolog,
 * local_user_init, user_init, task_init_privileged, task_init, task_exit and job_epilog.
 */
spank_err_t spank_option_getopt(spank_t spank, struct spank_option *opt, char **optarg);

/* Puts words before the task's command; in task_init_privileged and task_init. */
spank_err_t spank_prepend_task_argv(spank_t spank, int argc, const char *argv[]);

/* The text is not to be freed. */
const char *spank_strerror(spank_err_t err);

#ifdef __GNUC__
#define SPANK_PRINTF_ __attribute__((format(printf, 1, 2)))
#else
#define SPANK_PRINTF_
#endif

/* To the log; slurm_error also to the user, with `error:' before it, slurm_spank_log as it is. */
void slurm_info(const char *format, ...) SPANK_PRINTF_;
void slurm_error(const char *format, ...) SPANK_PRINTF_;
void slurm_verbose(const char *format, ...) SPANK_PRINTF_;
void slurm_debug(const char *format, ...) SPANK_PRINTF_;
void slurm_debug2(const char *format, ...) SPANK_PRINTF_;
void slurm_debug3(const char *format, ...) SPANK_PRINTF_;
void slurm_spank_log(const char *format, ...) SPANK_PRINTF_;

#ifdef __cplusplus
}
#endif

#endif
