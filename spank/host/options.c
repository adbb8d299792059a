// SPDX-License-Identifier: Apache-2.0
/* Options that plugins offer, and those that the user gave. */
#define _GNU_SOURCE
#include <ctype.h>
#include <dlfcn.h>
#include <string.h>

#include "api.h"
#include "host.h"
#include "util.h"

/* The plugin that offers an option of that name, NULL if none does. */
static const struct plugin *provider(const struct host *h, const char *name)
{
	for (size_t i = 0; i < h->cfg.nplugins; i++) {
		const struct plugin *p = &h->plugins[i];

		for (size_t j = 0; j < p->noptions; j++) {
			if (strcmp(p->options[j].opt.name, name) == 0)
				return p;
		}
	}
	return NULL;
}

static bool can_be_typed(const char *name)
{
	if (name[0] == 0 || name[0] == '-')
		return false;
	for (; *name; name++) {
		if (*name == '=' || (unsigned char)*name <= ' ' || *name == 0x7f)
			return false;
	}
	return true;
}

/* Adds an option to its plugin's; a duplicate or one that is too long is reported
 * and left out, in the words that sites know. */
void option_add(struct host *h, struct plugin *p, const struct spank_option *opt)
{
	const struct plugin *other = provider(h, opt->name);

	if (!can_be_typed(opt->name)) {
		log_text(LEVEL_ERROR,
			 "spank: option \"%.80s\" provided by %s cannot be written on a command "
			 "line. Ignoring.",
			 opt->name, p->name);
		return;
	}
	if (strlen(opt->name) > SPANK_OPTION_MAXLEN) {
		log_text(LEVEL_ERROR, "spank: option \"%s\" provided by %s too long. Ignoring.",
			 opt->name, p->name);
		return;
	}
	if (other != NULL) {
		log_text(LEVEL_INFO, "spank: option \"%s\" provided by both %s and %s", opt->name,
			 p->base, other->base);
		return;
	}
	p->options = must_grow(p->options, p->noptions + 1, sizeof(*p->options));
	p->options[p->noptions] = (struct option){.opt = *opt};
	/* The plugin's own may be gone when they are reported. */
	p->options[p->noptions].opt.name = must(strdup(opt->name));
	if (opt->arginfo != NULL)
		p->options[p->noptions].opt.arginfo = must(strdup(opt->arginfo));
	if (opt->usage != NULL)
		p->options[p->noptions].opt.usage = must(strdup(opt->usage));
	p->noptions++;
}

void options_load_table(struct host *h, struct plugin *p)
{
	const struct spank_option *table = dlsym(p->dl, "spank_options");

	for (size_t i = 0; table != NULL && table[i].name != NULL; i++)
		option_add(h, p, &table[i]);
}

/* PLUGIN_NAME with all but letters and digits as '_': how an option is named
 * in the environment. */
static void mangle(char *buf, size_t size, const char *plugin, const char *name)
{
	snprintf(buf, size, "%s%s%s", plugin, plugin[0] ? "_" : "", name);
	for (; *buf; buf++) {
		if (!isalnum((unsigned char)*buf))
			*buf = '_';
	}
}

void options_prepare(struct host *h)
{
	for (size_t i = 0; i < h->cfg.noptions; i++) {
		struct option_given *given = &h->cfg.options[i];
		char key[1280];

		mangle(key, sizeof(key), given->plugin, given->name);
		given->key = must(strdup(key));
	}
}

static void key_of(char *buf, size_t size, const struct plugin *p, const struct option *o)
{
	mangle(buf, size, p->name, o->opt.name);
}

/* Given by name: a form of the request. The environment's has but a key. */
static bool by_name(const struct option_given *given)
{
	return given->plugin[0] != 0;
}

static bool names(const struct option_given *given, const struct plugin *p, const struct option *o)
{
	return by_name(given) && strcmp(given->plugin, p->name) == 0 &&
	       strcmp(given->name, o->opt.name) == 0;
}

/* In local and allocator context it stands in the process's environment, too
 * (traces/srun_opts.tsv): what starts there takes it along. */
void option_setenv(const struct plugin *p, const struct option *o, const char *value)
{
	char name[1310] = "_SLURM_SPANK_OPTION_";
	size_t len = strlen(name);

	key_of(name + len, sizeof(name) - len, p, o);
	(void)setenv(name, value ? value : "", 1); /* the option itself is passed on */
}

/* What is not 0 is a failure (Slurm 22.05.8, measured for -1, 5 and 3000): then the option counts
 * as not given. */
int option_give(struct host *h, struct plugin *p, struct option *o, char *value)
{
	int rc = 0;

	if (o->opt.cb != NULL) {
		struct board_entry *entry = plugin_enter(h, p, HOOK_OPTION, NO_RANK);

		rc = o->opt.cb(o->opt.val, value, h->cfg.context == S_CTX_REMOTE);
		/* Measured: it is reported, and the step goes on, required or not. The client
		 * says it itself. */
		if (rc != 0 && h->cfg.context == S_CTX_REMOTE)
			log_text(LEVEL_ERROR, "spank: failed to process option %s%s%.1024s",
				 o->opt.name, value ? "=" : "", value ? value : "");
		plugin_leave(h, p, entry, rc);
	}
	if (rc == 0) {
		o->given = true;
		o->value = value;
	}
	return rc;
}

/* What was given by name to this option, or NULL. */
static struct option_given *named(struct host *h, const struct plugin *p, const struct option *o)
{
	for (size_t k = 0; k < h->cfg.noptions; k++) {
		if (names(&h->cfg.options[k], p, o))
			return &h->cfg.options[k];
	}
	return NULL;
}

/* Whether an option of that key was given by name: then the environment's is
 * its second form, and of no other option whose names come to the same key. */
static bool named_alike(const struct host *h, const char *key)
{
	for (size_t k = 0; k < h->cfg.noptions; k++) {
		if (by_name(&h->cfg.options[k]) && strcmp(h->cfg.options[k].key, key) == 0)
			return true;
	}
	return false;
}

static void call_named(struct host *h, struct plugin *p, struct option *o, bool *taken)
{
	struct option_given *given = named(h, p, o);

	if (given == NULL)
		return;
	taken[given - h->cfg.options] = true;
	option_give(h, p, o, given->has_value ? given->value : NULL);
}

static void call_environment(struct host *h, struct plugin *p, struct option *o, bool *taken)
{
	static char none[1];
	struct option_given *again = named(h, p, o);
	char key[1280];

	key_of(key, sizeof(key), p, o);
	for (size_t k = 0; k < h->cfg.noptions; k++) {
		struct option_given *given = &h->cfg.options[k];

		if (by_name(given) || strcmp(given->key, key) != 0)
			continue;
		taken[k] = true;
		if (again != NULL)
			option_give(h, p, o, again->has_value ? again->value : none);
		else if (!named_alike(h, key))
			option_give(h, p, o, given->value);
	}
}

/* Calls every option that was given: in the order of the stack and of the tables. */
static void call_each(struct host *h, bool *taken,
		      void (*call)(struct host *, struct plugin *, struct option *, bool *))
{
	for (size_t i = 0; i < h->cfg.nplugins; i++) {
		struct plugin *p = &h->plugins[i];

		for (size_t j = 0; p->kept && j < p->noptions; j++)
			call(h, p, &p->options[j], taken);
	}
}

/* A key of the environment that two options share is neither's. */
static bool refuse_ambiguous(struct host *h, struct outcome *out)
{
	for (size_t k = 0; k < h->cfg.noptions; k++) {
		const struct option_given *given = &h->cfg.options[k];
		const struct option *first = NULL;
		char key[1280];

		if (by_name(given) || named_alike(h, given->key))
			continue;
		for (size_t i = 0; i < h->cfg.nplugins; i++) {
			const struct plugin *p = &h->plugins[i];

			for (size_t j = 0; p->kept && j < p->noptions; j++) {
				key_of(key, sizeof(key), p, &p->options[j]);
				if (strcmp(key, given->key) != 0)
					continue;
				if (first != NULL)
					return fail(out, 0,
						    "cannot take option \"%s\" of the environment: "
						    "it stands for both --%s and --%s",
						    given->name, first->opt.name,
						    p->options[j].opt.name);
				first = &p->options[j];
			}
		}
	}
	return true;
}

static bool is_loaded(const struct host *h, const char *name)
{
	for (size_t i = 0; i < h->cfg.nplugins; i++) {
		if (h->plugins[i].kept && strcmp(h->plugins[i].name, name) == 0)
			return true;
	}
	return false;
}

/* An option that is not registered here is passed over: its plugin may have done all that
 * it does on the local side. Slurm 22.05.8 does so as well, and slurmd's log has for each
 * 'error: Warning: SPANK plugin "one" option "lonly" not found', also where no plugin "one"
 * is loaded on the remote side, which is the one case that an administrator is to see. */
static void pass_over(const struct host *h, const bool *taken)
{
	for (size_t k = 0; k < h->cfg.noptions; k++) {
		const struct option_given *given = &h->cfg.options[k];

		if (taken[k])
			continue;
		if (!by_name(given))
			log_text(LEVEL_VERBOSE,
				 "spank: no plugin that is loaded on the remote side offers option "
				 "\"%s\" of the environment",
				 given->name);
		else
			log_text(
				is_loaded(h, given->plugin) ? LEVEL_VERBOSE : LEVEL_INFO,
				"spank: plugin \"%s\" option \"%s\" not found on the remote side%s",
				given->plugin, given->name,
				is_loaded(h, given->plugin) ? "" : ": the plugin is not loaded");
	}
}

/* Slurm calls every option once, then every option again: from the launch
 * message and from the environment (traces/srun_opts.tsv). */
bool options_call(struct host *h, struct outcome *out)
{
	_cleanup_free_ bool *taken = must_zero(h->cfg.noptions, sizeof(*taken));

	if (!refuse_ambiguous(h, out))
		return false;
	call_each(h, taken, call_named);
	call_each(h, taken, call_environment);
	/* Measured: init sees them, init_post_opt does not. */
	env_unset_prefix(&h->env, "_SLURM_SPANK_OPTION_");
	pass_over(h, taken);
	return true;
}

void options_tell(struct host *h)
{
	uint8_t buf[8192];

	for (size_t i = 0; i < h->cfg.nplugins; i++) {
		const struct plugin *p = &h->plugins[i];

		for (size_t j = 0; p->kept && j < p->noptions; j++) {
			struct writer w = wr_init(buf, sizeof(buf));

			wr_u32(&w, REP_OPTION);
			wr_u32(&w, p->index);
			wr_u32(&w, (uint32_t)j);
			wr_i32(&w, p->options[j].opt.has_arg);
			wr_str(&w, p->options[j].opt.name, SPANK_OPTION_MAXLEN);
			wr_str(&w, p->options[j].opt.arginfo, 1024);
			wr_str(&w, p->options[j].opt.usage, 4096);
			struct iovec iov = {buf, w.len};
			/* End of file tells us next. */
			(void)packet_send(h->control, &iov, 1, NULL, 0);
		}
	}
}

SPANK_API spank_err_t spank_option_register(spank_t spank, struct spank_option *opt)
{
	struct host *h = host_of(spank);

	if (h == NULL || h->hook != HOOK_INIT || opt == NULL || opt->name == NULL ||
	    opt->usage == NULL)
		return ESPANK_BAD_ARG;
	option_add(h, spank->plugin, opt);
	/* Measured: of what is left out this alone is an error. */
	return strlen(opt->name) > SPANK_OPTION_MAXLEN ? ESPANK_NOSPACE : ESPANK_SUCCESS;
}

/* Legal where traces/table_getopt.tsv has it. */
static bool getopt_allowed(uint32_t hook)
{
	switch (hook) {
	case HOOK_JOB_PROLOG:
	case HOOK_LOCAL_USER_INIT:
	case HOOK_USER_INIT:
	case HOOK_TASK_INIT_PRIVILEGED:
	case HOOK_TASK_INIT:
	case HOOK_TASK_EXIT:
	case HOOK_JOB_EPILOG:
		return true;
	default:
		return false;
	}
}

/* In job_script no init has registered anything: the job's environment has them. */
static spank_err_t getopt_script(const struct host *h, const struct plugin *p,
				 const struct spank_option *opt, char **optarg)
{
	static char null_text[] = "(null)";
	const struct option o = {.opt = *opt};
	char key[1280];

	key_of(key, sizeof(key), p, &o);
	for (size_t i = h->cfg.noptions; i-- > 0;) { /* the last one counts */
		const struct option_given *given = &h->cfg.options[i];

		if (strcmp(given->key, key) != 0)
			continue;
		/* Measured: what has no value is written as "(null)". An option that
		 * always has one means it so. */
		if (opt->has_arg == 1)
			*optarg = given->has_value ? given->value : null_text;
		else if (opt->has_arg)
			*optarg = given->has_value ? given->value : NULL;
		return ESPANK_SUCCESS;
	}
	return ESPANK_ERROR;
}

SPANK_API spank_err_t spank_option_getopt(spank_t spank, struct spank_option *opt, char **optarg)
{
	const struct host *h = host_of(spank);

	if (optarg != NULL)
		*optarg = NULL;
	if (h == NULL)
		return ESPANK_BAD_ARG;
	if (!getopt_allowed(h->hook))
		return ESPANK_NOT_AVAIL;
	if (opt == NULL || opt->name == NULL || (opt->has_arg && optarg == NULL))
		return ESPANK_BAD_ARG;
	if (h->cfg.context == S_CTX_JOB_SCRIPT)
		return getopt_script(h, spank->plugin, opt, optarg);
	for (size_t i = 0; i < spank->plugin->noptions; i++) {
		const struct option *o = &spank->plugin->options[i];

		if (!o->given || strcmp(o->opt.name, opt->name) != 0)
			continue;
		if (opt->has_arg)
			*optarg = o->value;
		return ESPANK_SUCCESS;
	}
	return ESPANK_ERROR;
}
