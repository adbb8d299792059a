// SPDX-License-Identifier: Apache-2.0
/* The contexts in which nothing is forked: local and allocator (stepctl), slurmd
 * (noded), job_script (prolog and epilog). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "host.h"
#include "util.h"

/* The memfd that came with a command, as a string that is kept: a plugin may. */
static char *read_text(int fd)
{
	size_t len;
	char *text = read_blob(fd, &len);

	if (text != NULL)
		text[len] = 0; /* read_blob has left room for it */
	return text;
}

void command_option(struct host *h, struct reader *args, const int *fds, size_t nfds,
		    struct outcome *out)
{
	uint32_t plugin = rd_u32(args), option = rd_u32(args);
	bool has_value = rd_u32(args) != 0;
	char *value = NULL;

	if (!rd_done(args) || nfds != (size_t)has_value || plugin >= h->cfg.nplugins ||
	    !h->plugins[plugin].kept || option >= h->plugins[plugin].noptions) {
		fail(out, EPROTO, "cannot take an option: the command is malformed");
	} else if (has_value && (value = read_text(fds[0])) == NULL) {
		fail(out, errno, "cannot read the value of option --%s",
		     h->plugins[plugin].options[option].opt.name);
	} else {
		struct plugin *p = &h->plugins[plugin];
		option_setenv(p, &p->options[option],
			      p->options[option].opt.has_arg ? value : NULL);
		int rc = option_give(h, p, &p->options[option], value);

		if (rc != 0)
			*out = (struct outcome){
				.rc = rc, .plugin = p->index, .hook = HOOK_OPTION, .rank = NO_RANK};
	}
	for (size_t i = 0; i < nfds; i++)
		close(fds[i]);
}

void command_post_opt(struct host *h, struct outcome *out)
{
	stack_call(h, HOOK_INIT_POST_OPT, NO_RANK, out);
}

bool set_environ(const struct env *env, struct outcome *out)
{
	for (size_t i = 0; i < env->n; i++) {
		if (putenv(env->v[i]) != 0)
			return fail(out, errno, "cannot set the environment");
	}
	return true;
}

bool update_environ(struct host *h, const int *fds, size_t nfds, struct outcome *out)
{
	const char *why = "it comes without its blob";
	size_t len;
	void *blob = nfds == 1 ? read_blob(fds[0], &len) : NULL;

	for (size_t i = 0; i < nfds; i++)
		close(fds[i]);
	env_init(&h->cfg.host_env); /* for what is new in it: environ holds the old strings */
	if (blob == NULL || !config_update(&h->cfg, blob, len, &why))
		return fail(out, EPROTO, "cannot use the environment: %s", why);
	h->argv = h->cfg.argv;
	h->argc = h->cfg.argc;
	return set_environ(&h->cfg.host_env, out);
}

void command_local_user_init(struct host *h, const int *fds, size_t nfds, struct outcome *out)
{
	if (update_environ(h, fds, nfds, out))
		stack_call(h, HOOK_LOCAL_USER_INIT, NO_RANK, out);
}

static void put_int(FILE *to, uint32_t v, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		fputc((int)(v >> (8 * i) & 0xff), to);
}

static void put_strings(FILE *to, uint16_t tag, char *const *strings)
{
	for (size_t i = 0; strings != NULL && strings[i] != NULL; i++) {
		size_t len = strlen(strings[i]);

		put_int(to, tag, 2);
		put_int(to, 0, 2);
		put_int(to, (uint32_t)len + 4, 4);
		put_int(to, (uint32_t)len, 4);
		fwrite(strings[i], 1, len, to);
	}
}

void command_state(struct host *h, struct outcome *out)
{
	_cleanup_close_ int fd = memfd_create("spank-state", MFD_CLOEXEC);
	int copy = fd < 0 ? -1 : dup(fd);
	FILE *to = copy < 0 ? NULL : fdopen(copy, "w");
	uint8_t buf[4];
	struct writer w = wr_init(buf, sizeof(buf));

	if (to == NULL) {
		fail(out, errno, "cannot make a memfd for the environment");
		return;
	}
	/* Named directly it would be copied into this program, and be among the
	 * symbols that plugins find here. */
	char ***environment = dlsym(RTLD_DEFAULT, "environ");
	put_strings(to, TAG_HOST_ENV, environment ? *environment : NULL);
	put_strings(to, TAG_JOB_CONTROL, h->job_control.v);
	put_strings(to, TAG_ENV_UNSET, h->job_control_gone.v);
	if (fclose(to) != 0) {
		fail(out, errno, "cannot write the environment to a memfd");
		return;
	}
	wr_u32(&w, REP_STATE);
	struct iovec iov = {buf, w.len};
	if (packet_send(h->control, &iov, 1, &fd, 1) < 0)
		fail(out, errno, "cannot send the environment");
}

void command_hook(struct host *h, struct reader *args, struct outcome *out)
{
	uint32_t hook = rd_u32(args);
	bool script = hook == HOOK_JOB_PROLOG || hook == HOOK_JOB_EPILOG;

	if (!rd_done(args) || (script ? h->cfg.context != S_CTX_JOB_SCRIPT
				      : hook != HOOK_SLURMD_EXIT || h->cfg.context != S_CTX_SLURMD))
		fail(out, EPROTO, "cannot call hook %u in context %u", hook, h->cfg.context);
	else
		stack_call(h, (enum hook)hook, NO_RANK, out);
}
