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

/* Adds an option to its plugin's; a duplicate or one that is too long is told
 * and left out, in the words that sites know. */
void option_add(struct host *h, struct plugin *p, const struct spank_option *opt)
{
	const struct plugin *other = provider(h, opt->name);

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
	p->options[p->noptions].opt.name = must(strdup(opt->name));
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

static bool is_for(const struct option_given *given, const struct plugin *p, const struct option *o)
{
	char want[1280], have[1280];

	mangle(want, sizeof(want), given->plugin, given->name);
	mangle(have, sizeof(have), p->name, o->opt.name);
	return strcmp(want, have) == 0;
}

/* How often the same option was given before: Slurm calls every option once,
 * then every option again (traces/srun_opts.jsonl). */
static size_t round_of(const struct config *c, size_t at)
{
	size_t round = 0;

	for (size_t i = 0; i < at; i++) {
		round += strcmp(c->options[i].name, c->options[at].name) == 0 &&
			 strcmp(c->options[i].plugin, c->options[at].plugin) == 0;
	}
	return round;
}

static void call_option(struct host *h, struct plugin *p, struct option *o,
			const struct option_given *given)
{
	o->given = true;
	o->value = given->has_value ? given->value : NULL;
	if (o->opt.cb == NULL)
		return;
	struct board_entry *entry = plugin_enter(h, p, HOOK_OPTION, NO_RANK);
	int rc = o->opt.cb(o->opt.val, o->value, h->cfg.context == S_CTX_REMOTE);
	/* Measured: told, and the step goes on, required or not. */
	if (rc < 0)
		log_text(LEVEL_ERROR, "spank: failed to process option %s%s%s", o->opt.name,
			 o->value ? "=" : "", o->value ? o->value : "");
	plugin_leave(h, p, entry, rc);
}

/* Calls what was given in one round: in the order of the stack and of the
 * tables. False when nothing was given that often. */
static bool call_round(struct host *h, const size_t *rounds, size_t round)
{
	bool any = false;

	for (size_t k = 0; k < h->cfg.noptions; k++)
		any = any || rounds[k] == round;
	for (size_t i = 0; any && i < h->cfg.nplugins; i++) {
		struct plugin *p = &h->plugins[i];

		for (size_t j = 0; p->kept && j < p->noptions; j++) {
			for (size_t k = 0; k < h->cfg.noptions; k++) {
				if (rounds[k] == round &&
				    is_for(&h->cfg.options[k], p, &p->options[j]))
					call_option(h, p, &p->options[j], &h->cfg.options[k]);
			}
		}
	}
	return any;
}

void options_call(struct host *h)
{
	_cleanup_free_ size_t *rounds = must_zero(h->cfg.noptions, sizeof(*rounds));

	for (size_t i = 0; i < h->cfg.noptions; i++)
		rounds[i] = round_of(&h->cfg, i);
	for (size_t round = 0; call_round(h, rounds, round);)
		round++;
	/* Measured: init sees them, init_post_opt does not. */
	env_unset_prefix(&h->env, "_SLURM_SPANK_OPTION_");
}

SPANK_API spank_err_t spank_option_register(spank_t spank, struct spank_option *opt)
{
	struct host *h = host_of(spank);

	if (h == NULL || h->hook != HOOK_INIT || opt == NULL || opt->name == NULL)
		return ESPANK_BAD_ARG;
	option_add(h, spank->plugin, opt);
	return ESPANK_SUCCESS;
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
