// SPDX-License-Identifier: Apache-2.0
/* The life of a plugin around its hooks, as Slurm's plugin interface has it: init()
 * behind dlopen, fini() before dlclose. Both are the plugin's own: dlsym would find
 * a needed library's as well. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/stat.h>

#include "host.h"
#include "util.h"

spank_f *own_function(const struct plugin *p, const char *name)
{
	void *at = dlsym(p->dl, name), *own = NULL, *of = NULL, *extra = NULL;
	Dl_info info;
	spank_f *f;

	if (at == NULL || dlinfo(p->dl, RTLD_DI_LINKMAP, &own) != 0 ||
	    dladdr1(at, &info, &of, RTLD_DL_LINKMAP) == 0 || of != own)
		return NULL;
	/* A variable of that name is none. */
	if (dladdr1(at, &info, &extra, RTLD_DL_SYMENT) == 0 || extra == NULL)
		return NULL;
	unsigned int type = ((const ElfW(Sym) *)extra)->st_info & 0xf; /* as ELF64_ST_TYPE */
	if (type != STT_FUNC && type != STT_GNU_IFUNC)
		return NULL;
	*(void **)&f = at;
	return f;
}

/* Whether a thread of the plugin may be left, which would go on in code that is
 * unmapped. */
static bool has_threads(const struct host *h, const struct plugin *p)
{
	struct stat st;

	if (!p->threads && !h->strays)
		return false;
	return fstat(h->threads, &st) < 0 || st.st_nlink > ONE_THREAD;
}

/* With its destructors and atexit handlers. Where it is not safe they run when the
 * process ends. */
static void close_plugin(struct host *h, struct plugin *p)
{
	if (p->dl == NULL || has_threads(h, p))
		return;
	board_at(h, p->index, HOOK_CLOSE);
	h->closing = p;
	(void)dlclose(p->dl);
	h->closing = NULL;
	board_at(h, NO_PLUGIN, NO_HOOK);
	p->dl = NULL;
	p->name = p->base;
	memset(p->hooks, 0, sizeof(p->hooks));
}

static int call_own(struct host *h, struct plugin *p, enum hook hook)
{
	struct board_entry *entry = plugin_enter(h, p, hook, NO_RANK);
	int rc = 0;

	/* As they are declared: int init(void), void fini(void); some say int fini(void). */
	if (hook == HOOK_BEGIN)
		rc = ((int (*)(void))(void (*)(void))p->hooks[hook])();
	else
		((void (*)(void))p->hooks[hook])();
	if (rc != 0 && p->conf->required)
		log_text(LEVEL_ERROR, "spank: %s: Plugin init() callback failed with rc=%d",
			 p->conf->path, rc);
	plugin_leave(h, p, entry, rc);
	return rc;
}

static void reply_refused(struct host *h, const struct plugin *p, int rc)
{
	uint8_t buf[16];
	struct writer w = wr_init(buf, sizeof(buf));

	wr_u32(&w, REP_REFUSED);
	wr_u32(&w, p->index);
	wr_i32(&w, rc);
	struct iovec iov = {buf, w.len};
	(void)packet_send(h->control, &iov, 1, NULL, 0); /* end of file tells us next */
}

bool stack_begin(struct host *h, struct outcome *out)
{
	for (size_t i = 0; i < h->cfg.nplugins; i++) {
		struct plugin *p = &h->plugins[i];
		int rc = 0;

		if (p->kept && p->hooks[HOOK_BEGIN] != NULL)
			rc = call_own(h, p, HOOK_BEGIN);
		p->begun = p->kept && rc == 0;
		if (p->begun)
			continue;
		close_plugin(h, p);
		if (rc == 0)
			continue; /* INIT has left it out */
		p->kept = false;
		reply_refused(h, p, rc);
		if (p->conf->required) {
			*out = (struct outcome){
				.rc = rc, .plugin = p->index, .hook = HOOK_BEGIN, .rank = NO_RANK};
			return false;
		}
	}
	h->ready = true;
	return true;
}

void stack_end(struct host *h, bool fini)
{
	for (size_t i = 0; h->plugins != NULL && i < h->cfg.nplugins; i++) {
		struct plugin *p = &h->plugins[i];

		if (fini && p->begun && p->hooks[HOOK_FINI] != NULL)
			call_own(h, p, HOOK_FINI);
		close_plugin(h, p);
	}
}
