/* SPDX-License-Identifier: Apache-2.0
 *
 * A spankhost under test, driven over its channels as stepd drives it.
 */
#ifndef STEPD_DRIVER_H
#define STEPD_DRIVER_H

#include <stdbool.h>
#include <sys/types.h>

#include "blob.h"
#include "protocol.h"
#include "wire.h"

#define TEST_UID 7001
#define PATH_ENV "PATH=/usr/bin:/bin"

#define SCENE_PLUGINS 32

struct plugin_line {
	const char *path;
	bool required;
	const char *args[8];
};

/* What a test wants of a step. */
struct scene {
	uint32_t ntasks;
	const char *argv[8];
	const char *env[16];
	const char *cwd; /* NULL: / */
	struct plugin_line plugins[SCENE_PLUGINS];
	int job_ns; /* a mount namespace, 0 for none */
	uint32_t join;
	void (*config)(struct blob *setup); /* NULL, or adds items */
};

/* A system call that lies: it does nothing, and returns -error, or 0. */
struct lie {
	int nr;
	uint32_t arg;	/* the argument that causes it ... */
	uint32_t value; /* ... by this */
	int error;
	bool any; /* whatever the argument */
};

struct done {
	int rc, error;
	uint32_t cmd, plugin, hook, rank;
	char what[512];
};

struct driver {
	pid_t pid;
	int control, log, gate;
	uint32_t ntasks, nfds;
	struct board *board;
	size_t board_size;
	struct blob step;
	/* What the host said. */
	uint32_t flags[SCENE_PLUGINS], hooks[SCENE_PLUGINS], version[SCENE_PLUGINS];
	char dlerror[512], name[64], missing[4096];
	pid_t *pids;
	int *pidfds, *exec_pipes;
	int *status;
	uint32_t nforked, nexited;
	int refused, refused_rc; /* the last plugin */
};

/* Starts the program at $SPANKHOST; drv_end kills what is left of it. */
void drv_start(struct driver *d);
void drv_start_lying(struct driver *d, const struct lie *lie);
void drv_end(struct driver *d);

/* Sends a command and reads replies to its REP_DONE. */
struct done drv_do(struct driver *d, uint32_t cmd, const struct blob *body, const int *fds,
		   size_t nfds);
void drv_send(struct driver *d, uint32_t cmd, const struct blob *body, const int *fds, size_t nfds);
struct done drv_replies(struct driver *d);

/* SETUP and LOAD, and INIT keeping all. */
void drv_setup(struct driver *d, const struct scene *s);
struct done drv_init(struct driver *d, const struct scene *s);

/* Hands a descriptor over and returns its place in the table. */
uint32_t drv_fd(struct driver *d, int fd);

/* Adds a stream to the step; rank may be NO_RANK. */
void drv_stream(struct driver *d, uint32_t rank, uint32_t fd, uint32_t kind, uint32_t index,
		const char *path);
/* Makes a pipe, hands its write end over as fd of all, and returns the read end. */
int drv_output(struct driver *d, uint32_t fd);

/* STEP to FORK, POST_FORK, the gate and WAIT; each must succeed. */
void drv_fork(struct driver *d);
void drv_run(struct driver *d);
void drv_open_gate(struct driver *d);

/* Everything in the log so far, one record a line. Free it. */
char *drv_log(struct driver *d);

/* Runs a whole step with stdout in a pipe; returns what the tasks wrote and the log. Free both.
 * status is the first task's. */
char *drv_step(const struct scene *s, char **log, int *status);

/* Ends the test unless part is, or is not, in text. */
void has(const char *text, const char *part);
void has_not(const char *text, const char *part);

/* Skips the whole program where it is not root. */
void drv_needs_root(const char *program);

/* What comes out of a pipe up to its end of file. Free it. */
char *drv_read_all(int fd);

#endif
