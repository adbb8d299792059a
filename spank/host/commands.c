// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "host.h"
#include "util.h"

bool fail(struct outcome *out, int error, const char *format, ...)
{
	va_list ap;

	if (out->rc != 0)
		return false;
	out->rc = -1;
	out->error = error;
	out->plugin = NO_PLUGIN;
	out->hook = NO_HOOK;
	out->rank = NO_RANK;
	va_start(ap, format);
	vsnprintf(out->what, sizeof(out->what), format, ap);
	va_end(ap);
	return false;
}

static void close_all(const int *fds, size_t n)
{
	for (size_t i = 0; i < n; i++)
		close(fds[i]);
}

static void command_fds(struct host *h, const int *fds, size_t n, struct outcome *out)
{
	if (n > HOST_FD_TABLE_MAX - h->nfds) {
		close_all(fds, n);
		fail(out, EMFILE, "cannot keep %zu descriptors", h->nfds + n);
		return;
	}
	h->fds = must_grow(h->fds, h->nfds + n, sizeof(*h->fds));
	memcpy(h->fds + h->nfds, fds, n * sizeof(*fds));
	h->nfds += n;
}

static bool read_keep(struct host *h, struct reader *args, struct outcome *out)
{
	uint32_t count = rd_u32(args);

	if (args->bad || count != h->cfg.nplugins || args->left != count)
		return fail(out, EPROTO, "cannot initialize: keep is malformed");
	for (uint32_t i = 0; i < count; i++) {
		h->plugins[i].kept = args->p[i] != 0;
		if (h->plugins[i].kept && h->plugins[i].dl == NULL)
			return fail(out, EPROTO, "cannot keep \"%s\": it is not loaded",
				    h->plugins[i].base);
	}
	return true;
}

static void command_init(struct host *h, struct reader *args, struct outcome *out)
{
	if (!read_keep(h, args, out))
		return;
	/* The whole step in the job's container: from the first hook on, so that
	 * what plugins mount is the tasks', too. */
	if (!container_enter(h, JOIN_HOST) || (h->cfg.join_ns == JOIN_HOST && chdir("/") < 0)) {
		fail(out, errno, "cannot join the job's container");
		return;
	}
	if (!stack_begin(h, out))
		return;
	options_prepare(h);
	if (h->cfg.context == S_CTX_JOB_SCRIPT)
		return; /* its hooks alone (spank(8)) */
	for (size_t i = 0; i < h->cfg.nplugins; i++) {
		/* Measured: salloc and sbatch know only what was registered. */
		if (h->plugins[i].kept && h->cfg.context != S_CTX_ALLOCATOR)
			options_load_table(h, &h->plugins[i]);
	}
	if (!stack_call(h, HOOK_INIT, NO_RANK, out))
		return;
	if (h->cfg.context != S_CTX_REMOTE)
		options_tell(h);
	else if (options_call(h, out))
		stack_call(h, HOOK_INIT_POST_OPT, NO_RANK, out);
}

/* What plugins write to standard error reaches the user from here to the last task's end: by
 * own, where that is not -1. */
static bool stderr_of_rank0(struct host *h, int own, struct outcome *out)
{
	struct stream s = step_stream(&h->step, 0, 2);

	if (s.kind == STREAM_SAME)
		s = step_stream(&h->step, 0, 1);
	bool handed = s.kind == STREAM_FD || s.kind == STREAM_TERMINAL;
	if (own < 0)
		own = handed ? h->fds[s.index] : h->null;
	if (dup2(own, 2) < 0)
		return fail(out, errno, "cannot take the first task's standard error");
	return true;
}

static void user_init(struct host *h, int own_stderr, struct outcome *out)
{
	int error;

	if (host_is_extern(h))
		return; /* nothing of it is the user's */
	if (user_drop(h, out)) {
		bool there = user_chdir(&h->cfg, &error);
		bool ready = stdio_open_early(h, out) && stderr_of_rank0(h, own_stderr, out);

		if (ready && !there) {
			h->chdir_failed = true;
			log_chdir(&h->cfg, error);
		}
		if (ready && stack_call(h, HOOK_USER_INIT, NO_RANK, out))
			return; /* the forks start from here */
	}
	user_reclaim(out);
	if (chdir("/") < 0)
		fail(out, errno, "cannot change directory to \"/\"");
}

static void command_user_init(struct host *h, int *fds, size_t nfds, struct outcome *out)
{
	if (nfds <= 1)
		user_init(h, nfds == 1 ? fds[0] : -1, out);
	else
		fail(out, EPROTO, "user_init takes one descriptor");
	close_all(fds, nfds);
}

static void command_post_fork(struct host *h, struct outcome *out)
{
	if (host_is_extern(h)) { /* measured: once, without a task */
		stack_call(h, HOOK_TASK_POST_FORK, NO_RANK, out);
		return;
	}
	for (uint32_t rank = 0; rank < h->cfg.ntasks; rank++) {
		if (h->tasks[rank].pid != 0 && !stack_call(h, HOOK_TASK_POST_FORK, rank, out))
			return;
	}
}

static bool has_exit(const struct host *h)
{
	return h->cfg.context == S_CTX_REMOTE || h->cfg.context == S_CTX_ALLOCATOR ||
	       h->cfg.context == S_CTX_LOCAL;
}

/* Measured: a stack that failed in init or init_post_opt has no exit and no fini(), but for
 * init_post_opt in salloc and sbatch. */
static bool ends_in_order(const struct host *h)
{
	uint32_t needs = h->cfg.context == S_CTX_LOCAL ? CMD_POST_OPT : CMD_INIT;

	return (h->done & 1u << needs) != 0;
}

static void command_exit(struct host *h, struct outcome *out)
{
	/* Measured: in a batch job it is the job's file still. */
	if (h->cfg.context == S_CTX_REMOTE && !h->early)
		dup2(h->null, 2);
	if (ends_in_order(h) && has_exit(h))
		stack_call(h, HOOK_EXIT, NO_RANK, out);
	/* Measured: those that came before one that does not load have fini(), too. */
	stack_end(h, ends_in_order(h) || !h->ready);
}

/* A command: what it needs to be done before, and what comes with it. */
struct rule {
	uint32_t needs; /* a command, 0 */
	uint32_t contexts;
	bool again; /* more than once */
	bool fds, args;
};

#define IN(context) (1u << (context))
#define ALL_CONTEXTS                                                                               \
	(IN(S_CTX_LOCAL) | IN(S_CTX_REMOTE) | IN(S_CTX_ALLOCATOR) | IN(S_CTX_SLURMD) |             \
	 IN(S_CTX_JOB_SCRIPT))

static const struct rule *rule_of(uint32_t cmd)
{
	static const struct rule rules[] = {
		[CMD_SETUP] = {0, ~0u, .fds = true, .args = true},
		[CMD_LOAD] = {CMD_SETUP, ALL_CONTEXTS},
		[CMD_INIT] = {CMD_LOAD, ALL_CONTEXTS, .args = true},
		[CMD_FDS] = {CMD_SETUP, IN(S_CTX_REMOTE), .again = true, .fds = true},
		[CMD_STEP] = {CMD_SETUP, IN(S_CTX_REMOTE), .fds = true},
		[CMD_USER_INIT] = {CMD_INIT, IN(S_CTX_REMOTE), .fds = true},
		[CMD_FORK] = {CMD_USER_INIT, IN(S_CTX_REMOTE)},
		[CMD_POST_FORK] = {CMD_FORK, IN(S_CTX_REMOTE)},
		[CMD_WAIT] = {CMD_USER_INIT, IN(S_CTX_REMOTE), .again = true},
		[CMD_EXIT] = {CMD_SETUP, ALL_CONTEXTS, .fds = true},
		[CMD_OPTION] = {CMD_INIT, IN(S_CTX_LOCAL) | IN(S_CTX_ALLOCATOR), .again = true,
				.fds = true, .args = true},
		[CMD_POST_OPT] = {CMD_INIT, IN(S_CTX_LOCAL) | IN(S_CTX_ALLOCATOR), .fds = true},
		[CMD_LOCAL_USER_INIT] = {CMD_POST_OPT, IN(S_CTX_LOCAL), .fds = true},
		[CMD_STATE] = {CMD_INIT, ALL_CONTEXTS, .again = true},
		[CMD_HOOK] = {CMD_INIT, IN(S_CTX_SLURMD) | IN(S_CTX_JOB_SCRIPT), .again = true,
			      .args = true},
	};

	return cmd < ARRAY_SIZE(rules) && rules[cmd].contexts != 0 ? &rules[cmd] : NULL;
}

static bool in_order(const struct host *h, const struct rule *rule, uint32_t cmd)
{
	if ((h->done & 1u << cmd) != 0 && !rule->again)
		return false;
	if (rule->needs != 0 && (h->done & 1u << rule->needs) == 0)
		return false;
	/* Before SETUP there is no context. */
	if (cmd != CMD_SETUP && (rule->contexts & IN(h->cfg.context)) == 0)
		return false;
	return cmd != CMD_USER_INIT || (h->done & 1u << CMD_STEP) != 0;
}

static bool command_remote(struct host *h, uint32_t cmd, int *fds, size_t nfds, struct outcome *out)
{
	switch (cmd) {
	case CMD_FDS:
		command_fds(h, fds, nfds, out);
		break;
	case CMD_STEP:
		command_step(h, fds, nfds, out);
		break;
	case CMD_USER_INIT:
		command_user_init(h, fds, nfds, out);
		break;
	case CMD_FORK:
		command_fork(h, out);
		break;
	case CMD_POST_FORK:
		command_post_fork(h, out);
		break;
	default:
		return command_wait(h, out);
	}
	return true;
}

/* False where WAIT has ended without an answer. */
static bool carry_out(struct host *h, uint32_t cmd, struct reader *args, int *fds, size_t nfds,
		      struct outcome *out)
{
	switch (cmd) {
	case CMD_SETUP:
		command_setup(h, args, fds, nfds, out);
		break;
	case CMD_LOAD:
		stack_load(h);
		break;
	case CMD_INIT:
		command_init(h, args, out);
		break;
	case CMD_OPTION:
		command_option(h, args, fds, nfds, out);
		break;
	case CMD_POST_OPT:
		if (nfds == 0 || update_environ(h, fds, nfds, out))
			command_post_opt(h, out);
		break;
	case CMD_LOCAL_USER_INIT:
		command_local_user_init(h, fds, nfds, out);
		break;
	case CMD_STATE:
		command_state(h, out);
		break;
	case CMD_HOOK:
		command_hook(h, args, out);
		break;
	case CMD_EXIT:
		if (nfds == 0 || update_environ(h, fds, nfds, out))
			command_exit(h, out);
		break;
	default:
		return command_remote(h, cmd, fds, nfds, out);
	}
	return true;
}

bool command_run(struct host *h, uint32_t cmd, struct reader *args, int *fds, size_t nfds,
		 struct outcome *out)
{
	const struct rule *rule = rule_of(cmd);

	if (rule == NULL || !in_order(h, rule, cmd) || (nfds > 0 && !rule->fds) ||
	    (args->left > 0 && !rule->args)) {
		close_all(fds, nfds);
		fail(out, EPROTO, "cannot carry out command %u: unknown or out of order", cmd);
		return true;
	}
	if (!carry_out(h, cmd, args, fds, nfds, out))
		return false;
	if (out->rc == 0)
		h->done |= 1u << cmd;
	return true;
}

void reply_done(struct host *h, uint32_t cmd, const struct outcome *out)
{
	uint8_t buf[512];
	struct writer w = wr_init(buf, sizeof(buf));

	wr_u32(&w, REP_DONE);
	wr_u32(&w, cmd);
	wr_i32(&w, out->rc);
	wr_i32(&w, out->error);
	wr_u32(&w, out->plugin);
	wr_u32(&w, out->hook);
	wr_u32(&w, out->rank);
	wr_str(&w, out->what, sizeof(out->what));
	struct iovec iov = {buf, w.len};
	(void)packet_send(h->control, &iov, 1, NULL, 0); /* end of file tells us next */
}
