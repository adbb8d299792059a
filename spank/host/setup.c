// SPDX-License-Identifier: Apache-2.0
/* SETUP and STEP: what stepd hands over before there is anything to do. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host.h"
#include "util.h"

void *read_blob(int fd, size_t *len)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return NULL;
	if (st.st_size < 0 || st.st_size > CONFIG_BLOB_MAX) {
		errno = EFBIG;
		return NULL;
	}
	size_t size = (size_t)st.st_size, got = 0;
	uint8_t *blob = must(malloc(size + 1));
	while (got < size) {
		ssize_t n = RETRY(pread(fd, blob + got, size - got, (off_t)got));

		if (n <= 0) {
			errno = n < 0 ? errno : EIO;
			free(blob);
			return NULL;
		}
		got += (size_t)n;
	}
	*len = size;
	return blob;
}

/* Opens what later code needs: no path of ours is resolved once a hook has run. */
static bool open_proc(struct host *h, struct outcome *out)
{
	struct stat st;

	h->proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
	h->threads = open("/proc/self/task", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (h->proc < 0 || h->threads < 0 || fstat(h->threads, &st) < 0)
		return fail(out, errno, "cannot open \"/proc\"");
	h->nthreads = st.st_nlink;
	if (h->cfg.join_ns == JOIN_TASKS) {
		h->namespaces = open("/proc/self/ns", O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (h->namespaces < 0 || fstatat(h->namespaces, "mnt", &st, 0) < 0)
			return fail(out, errno, "cannot open \"/proc/self/ns\"");
		h->mount_ns = st.st_ino;
		h->root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	}
	return true;
}

static bool read_config(struct host *h, int fd, struct outcome *out)
{
	const char *why;
	size_t len;
	void *blob = read_blob(fd, &len);

	if (blob == NULL)
		return fail(out, errno, "cannot read the configuration");
	/* The blob is kept: the configuration's strings are in it. */
	if (!config_decode(&h->cfg, blob, len, &why))
		return fail(out, EPROTO, "cannot use the configuration: %s", why);
	h->env = h->cfg.env;
	h->job_control = h->cfg.job_control;
	env_init(&h->job_control_gone);
	h->argv = h->cfg.argv;
	h->argc = h->cfg.argc;
	h->tasks = must_zero(h->cfg.ntasks, sizeof(*h->tasks));
	for (size_t i = 0; i < h->cfg.ntasks; i++)
		h->tasks[i].pidfd = -1;
	return true;
}

static void set_title(struct host *h)
{
	if (h->cfg.title[0] == 0 || h->title_size == 0)
		return;
	memset(h->title, 0, h->title_size);
	memcpy(h->title, h->cfg.title, strnlen(h->cfg.title, h->title_size - 1));
}

/* The signals that are blocked while plugins run, as measured: a bit each, from 1.
 * In local context the user's Ctrl-C is the client's to act on. */
static uint32_t blocked_signals(uint32_t context)
{
	switch (context) {
	case S_CTX_LOCAL:
	case S_CTX_ALLOCATOR:
		return 0x8027a07;
	case S_CTX_JOB_SCRIPT:
		return 0x1000;
	default:
		return 0x87a07;
	}
}

static void set_signals(uint32_t context)
{
	uint32_t mask = blocked_signals(context);
	sigset_t set;

	signals_default();
	sigemptyset(&set);
	for (int sig = 1; sig <= 32; sig++) {
		if (mask & 1u << (sig - 1))
			sigaddset(&set, sig);
	}
	(void)sigprocmask(SIG_SETMASK, &set, NULL);
}

/* Who we are in the beginning. A user's own host (local and allocator) stays
 * as the client has started it. */
static bool take_place(struct host *h, struct outcome *out)
{
	set_signals(h->cfg.context);
	if (h->cfg.nplugins > 0)
		crash_catch();
	if (h->cfg.context == S_CTX_LOCAL || h->cfg.context == S_CTX_ALLOCATOR)
		return true;
	if (!keyring_join(out))
		return false;
	umask(022);
	/* As slurmd and slurmstepd have it. */
	if ((geteuid() == 0 && setgroups(0, NULL) < 0) || chdir("/") < 0)
		return fail(out, errno, "cannot drop the groups and go to \"/\"");
	if (h->cfg.context == S_CTX_SLURMD)
		return true;   /* noded has said where its words go */
	limits_raise_nofile(); /* a step of 1,000 tasks has thousands of pipes in here */
	for (int fd = 0; fd <= 2; fd++) {
		if (dup2(h->null, fd) < 0)
			return fail(out, errno, "cannot put \"/dev/null\" at descriptor %d", fd);
	}
	return true;
}

static bool setup(struct host *h, struct outcome *out)
{
	set_title(h);
	if (h->cfg.join_ns != JOIN_NEVER && h->job_ns < 0)
		return fail(out, EBADF,
			    "cannot join the job's container: its namespace is missing");
	return take_place(h, out) && open_proc(h, out) && set_environ(&h->cfg.host_env, out);
}

void command_setup(struct host *h, struct reader *args, int *fds, size_t nfds, struct outcome *out)
{
	uint32_t version = rd_u32(args);

	if (!rd_done(args) || nfds < 5 || nfds > 8 || version != HOST_PROTOCOL_VERSION) {
		for (size_t i = 0; i < nfds; i++)
			close(fds[i]);
		fail(out, EPROTO, "cannot set up: protocol %u with %zu descriptors, want %u",
		     version, nfds, HOST_PROTOCOL_VERSION);
		return;
	}
	h->gate = fds[2];
	h->null = fds[3];
	h->helpers = fds[4];
	if (container_take(h, fds + 5, nfds - 5, out) && read_config(h, fds[0], out)) {
		if (!board_attach(&h->board, fds[1], h->cfg.ntasks))
			fail(out, errno, "cannot map the board");
		else
			setup(h, out);
	}
	/* The board's descriptor goes: a plugin's helper could hold it open. */
	close(fds[0]);
	close(fds[1]);
	guard_remember(h);
	board_stage(h, 0, STAGE_HOST);
}

void command_step(struct host *h, int *fds, size_t nfds, struct outcome *out)
{
	const char *why;
	size_t len;

	if (nfds != 1) {
		for (size_t i = 0; i < nfds; i++)
			close(fds[i]);
		fail(out, EPROTO, "cannot take the step: %zu descriptors, want 1", nfds);
		return;
	}
	void *blob = read_blob(fds[0], &len);
	int error = errno;
	close(fds[0]);
	if (blob == NULL) {
		fail(out, error, "cannot read the step");
		return;
	}
	if (!step_decode(&h->step, blob, len, h->cfg.ntasks, h->nfds, &why)) {
		fail(out, EPROTO, "cannot use the step: %s", why);
		return;
	}
	for (size_t i = 0; i < h->step.nenv_set; i++)
		env_put(&h->env, h->step.env_set[i]);
}
