// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "stack.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "host.h"
#include "imports.h"
#include "util.h"

const char *const hook_symbols[HOOK_COUNT] = {
	[HOOK_INIT] = "slurm_spank_init",
	[HOOK_JOB_PROLOG] = "slurm_spank_job_prolog",
	[HOOK_INIT_POST_OPT] = "slurm_spank_init_post_opt",
	[HOOK_LOCAL_USER_INIT] = "slurm_spank_local_user_init",
	[HOOK_USER_INIT] = "slurm_spank_user_init",
	[HOOK_TASK_INIT_PRIVILEGED] = "slurm_spank_task_init_privileged",
	[HOOK_TASK_INIT] = "slurm_spank_task_init",
	[HOOK_TASK_POST_FORK] = "slurm_spank_task_post_fork",
	[HOOK_TASK_EXIT] = "slurm_spank_task_exit",
	[HOOK_JOB_EPILOG] = "slurm_spank_job_epilog",
	[HOOK_SLURMD_EXIT] = "slurm_spank_slurmd_exit",
	[HOOK_EXIT] = "slurm_spank_exit",
};

const char *hook_name(uint32_t hook)
{
	if (hook >= HOOK_COUNT || hook_symbols[hook] == NULL)
		return "";
	return hook_symbols[hook] + strlen("slurm_spank_");
}

/* The slot of this process. */
static uint32_t own_slot(const struct host *h)
{
	return h->in_task ? h->rank + 1 : 0;
}

struct board_entry *plugin_enter(struct host *h, struct plugin *p, uint32_t hook, uint32_t rank)
{
	h->plugin = p;
	h->hook = hook;
	h->rank = rank;
	return board_hook_enter(h, own_slot(h), p->index, hook, rank);
}

/* Whether glibc knows that it has made no thread: then there is none but one that
 * was made past it. */
static bool made_no_thread(const struct host *h)
{
	return h->one_thread != NULL && *h->one_thread != 0;
}

/* A thread would be lost by every fork after it, and could hold a lock there; and
 * it could crash the host when no hook runs that could be named. */
static void check_threads(struct host *h, struct plugin *p)
{
	char names[256], text[320];
	struct stat st;

	/* The directory of threads has a link for each and two of its own (proc(5)). */
	if (h->threads < 0 || fstat(h->threads, &st) < 0 || st.st_nlink == h->nthreads)
		return;
	if (p == NULL)
		p = guard_names(h, names, sizeof(names));
	if (st.st_nlink > h->nthreads)
		*(p ? &p->threads : &h->strays) = true;
	if (st.st_nlink > h->nthreads && p != NULL) {
		log_threads(h, p, (uint32_t)(st.st_nlink - h->nthreads));
	} else if (st.st_nlink > h->nthreads) {
		snprintf(text, sizeof(text), "one of %s left threads running", names);
		log_warn(h, NULL, h->hook, text);
	}
	h->nthreads = st.st_nlink;
}

/* What was mounted there is lost to tasks that join the job's container. */
static void check_mounts(struct host *h, const struct plugin *p)
{
	struct stat st;

	if (h->cfg.join_ns != JOIN_TASKS || h->namespaces < 0 ||
	    fstatat(h->namespaces, "mnt", &st, 0) < 0 || st.st_ino == h->mount_ns)
		return;
	log_warn(h, p, h->hook,
		 "changed the mount namespace, which the tasks leave for the job's container");
	h->mount_ns = st.st_ino;
}

/* Hooks that are called for each task and each plugin, where every system call
 * counts. */
static bool per_task(uint32_t hook)
{
	return hook == HOOK_TASK_INIT_PRIVILEGED || hook == HOOK_TASK_INIT ||
	       hook == HOOK_TASK_POST_FORK || hook == HOOK_TASK_EXIT;
}

static bool looks_at_threads(const struct host *h)
{
	return !per_task(h->hook) || (h->rank == 0 && !h->in_task);
}

void plugin_leave(struct host *h, struct plugin *p, struct board_entry *entry, int rc)
{
	bool often = per_task(h->hook);

	/* A plugin that does it for the first task does it for each: then it is named. */
	if (often && h->rank != 0)
		guard_channel(h);
	else
		guard_check(h, p);
	board_hook_leave(h, own_slot(h), entry, rc);
	if (looks_at_threads(h) && !made_no_thread(h))
		check_threads(h, p);
	if (!often)
		check_mounts(h, p); /* before the forks */
	if (!h->in_task)
		h->rank = NO_RANK;
	h->hook = NO_HOOK;
	h->plugin = NULL;
}

static int call(struct host *h, struct plugin *p, enum hook hook, uint32_t rank)
{
	struct board_entry *entry = plugin_enter(h, p, hook, rank);
	int rc = p->hooks[hook](&p->handle, p->conf->argc, p->conf->argv);

	if (rc != 0)
		log_text(p->conf->required ? LEVEL_ERROR : LEVEL_WARNING,
			 "spank: %s plugin %s: %s() failed with rc=%d",
			 p->conf->required ? "required" : "optional", p->base, hook_name(hook), rc);
	plugin_leave(h, p, entry, rc);
	return rc;
}

/* Since 25.05 a plugin may say whom its failing init is to blame on. */
static int init_failure(const struct plugin *p, int rc)
{
	const int *mode = dlsym(p->dl, "slurm_spank_init_failure_mode");

	if (mode != NULL && (*mode == ESPANK_NODE_FAILURE || *mode == ESPANK_JOB_FAILURE))
		return *mode;
	return rc;
}

/* spank(8): a required plugin has failed by any code but 0, and the plugins behind it are not called. */
static bool call_all(struct host *h, enum hook hook, uint32_t rank, struct outcome *out, bool *any)
{
	for (size_t i = 0; i < h->cfg.nplugins; i++) {
		struct plugin *p = &h->plugins[i];

		if (!p->kept || p->hooks[hook] == NULL)
			continue;
		*any = true;
		int rc = call(h, p, hook, rank);
		if (rc == 0 || !p->conf->required)
			continue;
		if (out->rc == 0)
			*out = (struct outcome){.rc = hook == HOOK_INIT ? init_failure(p, rc) : rc,
						.plugin = p->index,
						.hook = hook,
						.rank = rank};
		return false;
	}
	return true;
}

/* What plugins have left behind, after the last of them. */
static void check_after(struct host *h, uint32_t hook, uint32_t rank)
{
	h->hook = hook;
	h->rank = rank;
	guard_check_all(h);
	if (looks_at_threads(h))
		check_threads(h, NULL);
	/* Here standard output is the caller's: the host leaves by _exit, and what
	 * others write there comes later. */
	if (h->cfg.context != S_CTX_REMOTE)
		fflush(NULL);
	h->hook = NO_HOOK;
	h->rank = h->in_task ? rank : NO_RANK;
}

bool stack_call(struct host *h, enum hook hook, uint32_t rank, struct outcome *out)
{
	bool any = false;
	bool ok = call_all(h, hook, rank, out, &any);

	if (any)
		check_after(h, hook, rank);
	return ok;
}

/* A string that a plugin exports, NULL if it does not. */
static const char *exported(const struct plugin *p, const char *symbol)
{
	return dlsym(p->dl, symbol);
}

/* S_SLURM_VERSION*: the release of the headers that the plugin was built with.
 * Through 20.11 plugin_version was the author's own number. */
static void read_version(struct plugin *p, const unsigned int *number)
{
	unsigned int v = number ? *number : 0;
	unsigned int major = v >> 16 & 0xff, minor = v >> 8 & 0xff;

	if (v >> 24 != 0 || major < 21 || minor < 1 || minor > 12)
		v = SLURM_VERSION_NUMBER;
	snprintf(p->major, sizeof(p->major), "%02u", v >> 16 & 0xff);
	snprintf(p->minor, sizeof(p->minor), "%02u", v >> 8 & 0xff);
	snprintf(p->micro, sizeof(p->micro), "%u", v & 0xff);
	snprintf(p->version, sizeof(p->version), "%u.%02u.%u", v >> 16 & 0xff, v >> 8 & 0xff,
		 v & 0xff);
}

/* What one plugin takes in REP_PLUGIN at most. */
#define PLUGIN_REPLY_MAX 8192

static void put_plugin(struct writer *w, const struct plugin *p)
{
	const unsigned int *version = NULL;
	uint32_t flags = 0, hooks = 0;

	for (uint32_t i = 0; i < HOOK_COUNT; i++)
		hooks |= (uint32_t)(p->hooks[i] != NULL) << i;
	if (p->dl != NULL) {
		version = dlsym(p->dl, "plugin_version");
		flags |= PLUGIN_LOADED;
		flags |= version ? PLUGIN_HAS_VERSION : 0;
		flags |= dlsym(p->dl, "spank_plugin_version") ? PLUGIN_HAS_SPANK_VERSION : 0;
		flags |= dlsym(p->dl, "spank_options") ? PLUGIN_HAS_OPTIONS : 0;
	}
	wr_u32(w, p->index);
	wr_u32(w, version ? *version : 0);
	wr_u32(w, flags);
	wr_u32(w, hooks);
	wr_str(w, p->error, 4096);
	wr_str(w, p->dl ? exported(p, "plugin_name") : NULL, 1024);
	wr_str(w, p->dl ? exported(p, "plugin_type") : NULL, 1024);
}

/* Many in one record: each would wake stepd. */
static void reply_plugins(struct host *h)
{
	uint8_t buf[4 * PLUGIN_REPLY_MAX];

	for (size_t i = 0; i < h->cfg.nplugins;) {
		struct writer w = wr_init(buf, sizeof(buf));

		wr_u32(&w, REP_PLUGIN);
		while (i < h->cfg.nplugins && w.cap - w.len >= PLUGIN_REPLY_MAX)
			put_plugin(&w, &h->plugins[i++]);
		struct iovec iov = {buf, w.len};
		(void)packet_send(h->control, &iov, 1, NULL, 0); /* end of file tells us next */
	}
}

/* Slurm's library loads plugins of its own, which take its functions from the whole program,
 * as Slurm's daemons have them: from a plugin's own libraries they would not get them. What
 * this program exports comes before it in any case. */
static void share_slurm(const struct plugin *p)
{
	struct link_map *map = NULL;

	if (dlinfo(p->dl, RTLD_DI_LINKMAP, &map) != 0)
		return;
	for (; map != NULL; map = map->l_next) { /* a plugin's libraries come behind it */
		const char *slash = strrchr(map->l_name, '/');
		const char *base = slash ? slash + 1 : map->l_name;

		if (strncmp(base, "libslurm.so", 11) == 0 || strncmp(base, "libslurmfull", 12) == 0)
			(void)dlopen(map->l_name, RTLD_LAZY | RTLD_GLOBAL | RTLD_NOLOAD);
	}
}

static void load(struct host *h, struct plugin *p)
{
	struct stat st;
	struct board_entry *entry = plugin_enter(h, p, HOOK_LOAD, NO_RANK);

	/* A FIFO would hold dlopen until a process writes to it. */
	if (stat(p->conf->path, &st) == 0 && !S_ISREG(st.st_mode)) {
		p->error = must(strdup("it is not a regular file"));
		plugin_leave(h, p, entry, -1);
		return;
	}
	/* Lazily, as Slurm: plugins refer to functions that their host lacks. */
	p->dl = dlopen(p->conf->path, RTLD_LAZY | RTLD_LOCAL);
	if (p->dl == NULL) {
		p->error = must(strdup(dlerror()));
	} else {
		share_slurm(p);
		for (uint32_t i = 0; i < HOOK_COUNT; i++) {
			if (hook_symbols[i] != NULL)
				*(void **)&p->hooks[i] = dlsym(p->dl, hook_symbols[i]);
		}
		p->hooks[HOOK_BEGIN] = own_function(p, "init");
		p->hooks[HOOK_FINI] = own_function(p, "fini");
		if (exported(p, "plugin_name") != NULL)
			p->name = exported(p, "plugin_name");
		read_version(p, dlsym(p->dl, "plugin_version"));
		/* Ours comes before its own, for which its code would take it. */
		if (dlsym(p->dl, "debug") != NULL)
			log_warn(h, p, HOOK_LOAD,
				 "exports \"debug\", which is the host's here; make it static");
	}
	plugin_leave(h, p, entry, p->dl == NULL ? -1 : 0);
}

void stack_load(struct host *h)
{
	h->plugins = must_zero(h->cfg.nplugins, sizeof(*h->plugins));
	/* As with environ: named, it would be copied into this program. */
	h->one_thread = dlsym(RTLD_DEFAULT, "__libc_single_threaded");
	for (size_t i = 0; i < h->cfg.nplugins; i++) {
		struct plugin *p = &h->plugins[i];
		const char *slash = strrchr(h->cfg.plugins[i].path, '/');

		p->index = (uint32_t)i;
		p->conf = &h->cfg.plugins[i];
		p->base = slash ? slash + 1 : p->conf->path;
		p->name = p->base;
		p->handle = (struct spank_handle){.magic = HANDLE_MAGIC, .plugin = p};
		load(h, p);
	}
	if (h->cfg.nplugins > 0)
		check_after(h, HOOK_LOAD, NO_RANK);
	/* All at once: stepd would be woken for each between two loads. */
	for (size_t i = 0; i < h->cfg.nplugins; i++) {
		if (h->plugins[i].dl != NULL)
			imports_check(h, &h->plugins[i]);
	}
	reply_plugins(h);
}
