/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of a host and the functions by which its files serve each other.
 * There is one host per process, and one thread.
 */
#ifndef STEPD_HOST_H
#define STEPD_HOST_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "config.h"
#include "protocol.h"
#include "slurm/spank.h"
#include "wire.h"

#define HANDLE_MAGIC 0x53504e4bu

/* Links of /proc/self/task in a process with one thread: its own two and one for each. */
#define ONE_THREAD 3

/* What a plugin holds: one per plugin, valid as long as the process. */
struct spank_handle {
	uint32_t magic;
	struct plugin *plugin;
};

/* An option that a plugin offers. */
struct option {
	struct spank_option opt;
	bool given;
	char *value; /* the last one given, NULL for none */
};

struct plugin {
	uint32_t index; /* in the stack: its number on the wire */
	const struct plugin_conf *conf;
	const char *base; /* the file's base name, as messages have it */
	const char *name; /* plugin_name, else base */
	void *dl;
	char *error;  /* dlopen's, NULL if it was loaded */
	bool kept;    /* INIT left it in the stack, and so did its init() */
	bool threads; /* it has left threads running */
	bool begun;   /* its init() has returned 0, or it has none */
	spank_f *hooks[HOOK_COUNT];
	struct option *options;
	size_t noptions;
	struct spank_handle handle;
	uint32_t told; /* guard.c: what was reported about it */
	/* S_SLURM_VERSION*: the release that it was built for. */
	char version[16], major[8], minor[8], micro[8];
};

struct task {
	pid_t pid; /* 0 before the fork */
	int pidfd; /* -1 but while it is waited for */
	bool reaped;
	pid_t epilog; /* the process of its epilog, which is waited for; 0 without one */
	int epilog_fd;
};

/* The first hook that failed for good in a command: REP_DONE's fields. */
struct outcome {
	int rc;
	int error; /* errno */
	uint32_t plugin, hook, rank;
	char what[256]; /* empty for a hook's own failure */
};

struct board_map {
	struct board *head;
	struct board_slot *slots;
	struct board_entry *entries;
	uint32_t nslots, nentries;
};

/* How the host is before a hook, and must be after it (guard.c). */
struct file_id {
	dev_t dev;
	ino_t ino;
};

struct user_ids {
	uid_t uid[3]; /* real, effective, saved */
	gid_t gid[3];
};

struct guard {
	pid_t pid;
	struct file_id control, log, gate, null;
	struct user_ids user;
	sigset_t mask;
	struct rlimit nofile;
	uint32_t told; /* of no plugin in particular */
};

struct host {
	/* Channels; -1 where this process has none. */
	int control, log;
	/* Opened before the first hook: no path of ours is resolved after it (a
	 * plugin may have changed what paths mean). */
	int null, gate, helpers, proc, threads, namespaces;
	/* Of the job's container, and the pid namespace that this process is in. */
	int job_ns, pid_ns, user_ns, own_pid_ns;
	int root;	/* outside of the job's mounts, where tasks join them; else -1 */
	int exec_pipe;	/* in a task: closes when it execs */
	int emptied[2]; /* a pipe: a byte in it says that the first task has opened its files */
	bool copy;	/* in a task: a plugin has forked this process */
	uint64_t token; /* of the hook that runs here: board_claim */
	struct guard guard;
	struct board_map board;
	struct config cfg;
	struct step_conf step;
	int *fds; /* what FDS handed over; they end with the forks */
	size_t nfds;
	struct plugin *plugins;
	struct task *tasks;
	pid_t stepd;	/* whose signals are for the tasks */
	pid_t group;	/* of the tasks: the first one's pid, 0 before its fork */
	struct env env; /* the job's environment */
	struct env job_control;
	struct env job_control_gone; /* NAME= of what plugins have unset, which the job may have */
	char **argv;		     /* the tasks' command */
	int argc;
	/* Where we are. */
	uint32_t done;	   /* bit per command that succeeded */
	bool forked_ours;  /* a task's fork is under way: not a plugin's */
	bool in_task;	   /* this process is a task */
	bool pids_known;   /* S_JOB_PID_TO_* can answer */
	bool chdir_failed; /* the host's own chdir to the job's directory */
	bool early;	   /* streams were opened before user_init */
	uint32_t hook;	   /* NO_HOOK outside */
	uint32_t rank;	   /* the task of the hook, NO_RANK */
	struct plugin *plugin;
	const struct plugin *closing; /* whose destructors run: no handle of it is good any more */
	int exit_status;	      /* raw, in task_exit */
	char *title;		      /* argv[0], where ps looks */
	size_t title_size;
	nlink_t nthreads; /* last seen, to blame a plugin once */
	bool strays;	  /* threads whose plugin is not known */
	bool ready;	  /* every init() of the stack has returned */
	/* __libc_single_threaded, NULL before glibc 2.32. */
	const volatile char *one_thread;
	ino_t mount_ns; /* last seen */
};

/* The one host of this process: callbacks without a handle need it. */
extern struct host host;

/* serve.c */
int host_serve(struct host *h);

/* commands.c: carries out one command; fds become its own. False if it is not to
 * be answered: WAIT, when the next command has come. */
bool command_run(struct host *h, uint32_t cmd, struct reader *args, int *fds, size_t nfds,
		 struct outcome *out);

/* container.c: sorts the namespaces of the job's container by what they are. */
bool container_take(struct host *h, const int *fds, size_t n, struct outcome *out);
/* Enters the job's mount namespace, at its root, if it is for who (enum join_ns) to
 * do so. False with errno. */
bool container_enter(struct host *h, uint32_t who);
/* Enters the job's user namespace: there is no way back. False with errno. */
bool container_enter_user(struct host *h);
/* Has the children that are forked from here on born in the job's pid namespace, or
 * in the host's own again. False with errno. */
bool container_births(struct host *h, bool inside);

/* stdio.c: opens the early streams, as the user in effect. */
bool stdio_open_early(struct host *h, struct outcome *out);

/* setup.c */
void command_setup(struct host *h, struct reader *args, int *fds, size_t nfds, struct outcome *out);
void command_step(struct host *h, int *fds, size_t nfds, struct outcome *out);
/* Reads a memfd to its end; the caller frees it. NULL with errno. */
void *read_blob(int fd, size_t *len);

/* contexts.c: what is called in the contexts that fork nothing. */
void command_option(struct host *h, struct reader *args, const int *fds, size_t nfds,
		    struct outcome *out);
void command_post_opt(struct host *h, struct outcome *out);
void command_local_user_init(struct host *h, const int *fds, size_t nfds, struct outcome *out);
void command_state(struct host *h, struct outcome *out);
/* Puts the variables of env into environ, over those that it has. */
bool set_environ(const struct env *env, struct outcome *out);
/* Takes over a blob that came with a command, and sets its TAG_HOST_ENV in environ. */
bool update_environ(struct host *h, const int *fds, size_t nfds, struct outcome *out);
void command_hook(struct host *h, struct reader *args, struct outcome *out);

/* Notes the first failure: what with errno. Returns false, for `return fail(...)'. */
bool fail(struct outcome *out, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Sends REP_DONE. */
void reply_done(struct host *h, uint32_t cmd, const struct outcome *out);

/* guard.c: after a hook: what the plugin has done to its process. Where that cannot
 * go on it ends here, with the hook on the board. */
void guard_remember(struct host *h);
void guard_remember_user(struct host *h);
/* After a plugin: the least, in one system call; and what p may have done, in five. */
void guard_channel(struct host *h);
void guard_check(struct host *h, struct plugin *p);
/* The only plugin that has the hook h->hook (NO_HOOK: any), else NULL; and the
 * names of all that have. */
struct plugin *guard_names(struct host *h, char *names, size_t size);
/* After a chain: all of it; it may have been any plugin that has the hook h->hook. */
void guard_check_all(struct host *h);

/* atfork.c */
void atfork_install(void);

/* board.c */
bool board_attach(struct board_map *b, int fd, size_t ntasks);
void board_stage(struct host *h, uint32_t slot, enum stage stage);
void board_error(struct host *h, uint32_t slot, int error);
/* Called when a hook of a task comes back: false in a copy of the task where
 * another process has come back before. */
bool board_claim(struct host *h, uint32_t slot);
bool board_at_exec(struct host *h, uint32_t slot);
void board_execed(struct host *h, uint32_t slot);
struct board_entry *board_hook_enter(struct host *h, uint32_t slot, uint32_t plugin, uint32_t hook,
				     uint32_t rank);
/* Where the host is outside of the journal: NO_HOOK, or what is done to a plugin. */
void board_at(struct host *h, uint32_t plugin, uint32_t hook);
void board_hook_leave(struct host *h, uint32_t slot, struct board_entry *entry, int rc);

/* life.c: a function of the plugin's own object, NULL where it has none. */
spank_f *own_function(const struct plugin *p, const char *name);
/* Calls init() of every kept plugin, and closes those that are not kept. What an
 * init() of anything but 0 refuses is closed, too. False where that was a required one. */
bool stack_begin(struct host *h, struct outcome *out);
/* Closes every plugin, after its fini() where fini is set. */
void stack_end(struct host *h, bool fini);

/* crash.c: has a process say where it was when it crashes. */
void crash_catch(void);

/* stack.c */
void stack_load(struct host *h);
/* Calls one hook of every kept plugin. False when a required one failed for
 * good (less than 0), with the reason in out. */
bool stack_call(struct host *h, enum hook hook, uint32_t rank, struct outcome *out);
/* Brackets any call into a plugin: the board, the handle's state, the checks after it. */
struct board_entry *plugin_enter(struct host *h, struct plugin *p, uint32_t hook, uint32_t rank);
void plugin_leave(struct host *h, struct plugin *p, struct board_entry *entry, int rc);

/* options.c */
void options_load_table(struct host *h, struct plugin *p);
void option_add(struct host *h, struct plugin *p, const struct spank_option *opt);
/* Names what the user gave; first. */
void options_prepare(struct host *h);
/* Calls back what the user gave; an option that no plugin offers is an error. */
bool options_call(struct host *h, struct outcome *out);
/* Calls back one option that the user gave; its value, or NULL. */
int option_give(struct host *h, struct plugin *p, struct option *o, char *value);
void option_setenv(const struct plugin *p, const struct option *o, const char *value);
/* Sends REP_OPTION for each. */
void options_tell(struct host *h);

/* user.c: each checks what it did. */
bool user_drop(struct host *h, struct outcome *out);
bool user_reclaim(struct outcome *out);
bool user_become(struct host *h, const char **what);
/* Has the host killed when stepd dies: a change of credentials ends that. */
void user_rearm(void);
bool user_groups_are(const gid_t *groups, size_t n);
/* Opens a path that the user has named, as the effective user, close-on-exec: -1 and errno,
 * ELOOP also of a link in /proc that stands for an open file or a process's folder. */
int user_open(const char *path, int flags, mode_t mode);
/* chdir to such a path. */
bool user_enter(const char *dir);
/* chdir to the job's directory as the effective user, else /tmp; false if it was /tmp. */
void signals_default(void);
bool user_chdir(const struct config *c, int *error);
void log_chdir(const struct config *c, int error);

/* keyring.c: a session keyring of the host's own, which the tasks share; before any plugin runs. */
bool keyring_join(struct outcome *out);
/* Puts the user's keyring into it; by a task that is the user. */
void keyring_link_user(void);

/* fork.c, task.c, stdio.c, exec.c, limits.c */
void command_fork(struct host *h, struct outcome *out);
_Noreturn void task_main(struct host *h, uint32_t rank);
/* The step that is a job's own, of what no step of the job has started: its one task is
 * root's, and only waits. */
bool host_is_extern(const struct host *h);
/* Whether the task has the step's terminal. */
bool task_has_terminal(const struct host *h, uint32_t rank);
_Noreturn void task_fail(struct host *h, enum stage stage, int error, const char *object,
			 int status);
_Noreturn void task_fail_why(struct host *h, enum stage stage, int error, const char *object,
			     const char *why, int status);
void task_stdio(struct host *h);
_Noreturn void task_exec(struct host *h);
void limits_apply(struct host *h);
void limits_unset(struct env *env);
void limits_raise_nofile(void);

/* taskscripts.c: what runs around a task. */
void task_prologs(struct host *h);
/* False if there is no epilog, or it cannot be run. */
bool epilog_begin(struct host *h, uint32_t rank);
/* Reaps one that has ended. */
void epilog_end(struct host *h, uint32_t rank);

/* exec_explain.c: for a program that execve could not find though its file
 * exists: the missing interpreter's or loader's path, or false. */
bool explain_interpreter(const char *path, char *interp, size_t size, bool *script);
/* What runs the program at path; false if nothing does, or it cannot be known. */
bool interpreter_of(const char *path, char *interp, size_t size, bool *script);

/* exec_why.c: in words, why the user cannot use a path, open or execute a file, or find a
 * program in PATH (found: the file that exists and may not be executed). false, or an
 * empty text: it is not known. Only as the user. */
bool why_path(const char *path, char *why, size_t size);
bool why_open(const char *path, int error, char *why, size_t size);
bool why_exec(struct host *h, const char *path, int error, char *why, size_t size);
void why_not_found(struct host *h, const char *found, int error, char *why, size_t size);
#define WHY_MAX 2048

/* reap.c */
bool command_wait(struct host *h, struct outcome *out);

/* lookup.c */
int lookup_main(void);

/* init.c: process 1 of a pid namespace. The value is for exit. */
int init_main(void);

/* api_log.c */
void log_text(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* p is NULL for no plugin in particular. */
void log_warn(struct host *h, const struct plugin *p, uint32_t hook, const char *what);
void log_threads(struct host *h, const struct plugin *p, uint32_t count);
/* A limit that the user passes on is higher than what the node allows. */
void log_limit(struct host *h, const char *name, uint64_t want, uint64_t have);
void log_fail(struct host *h, uint32_t rank, enum stage stage, int error, const char *object,
	      const char *why);

#endif
