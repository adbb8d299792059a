// SPDX-License-Identifier: Apache-2.0
/* Resource limits: those that the user's session had travel as SLURM_RLIMIT_*. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "host.h"
#include "util.h"

static const struct limit {
	const char *name; /* after SLURM_RLIMIT_ */
	__rlimit_resource_t resource;
} limits[] = {
	{"CPU", RLIMIT_CPU},	 {"FSIZE", RLIMIT_FSIZE},   {"DATA", RLIMIT_DATA},
	{"STACK", RLIMIT_STACK}, {"CORE", RLIMIT_CORE},	    {"RSS", RLIMIT_RSS},
	{"NPROC", RLIMIT_NPROC}, {"NOFILE", RLIMIT_NOFILE}, {"MEMLOCK", RLIMIT_MEMLOCK},
	{"AS", RLIMIT_AS},
};

/* "SLURM_RLIMIT_" and the longest name. */
#define NAME_MAX_LEN 32

static void variable(char *buf, const struct limit *l)
{
	snprintf(buf, NAME_MAX_LEN, "SLURM_RLIMIT_%s", l->name);
}

/* A number, or -1 for no limit. */
/* SOFT, or SOFT:HARD of a daemon that lowers the hard limit; -1 is no limit. */
static bool parse(const char *text, rlim_t *value, rlim_t *hard)
{
	char *end;

	errno = 0;
	*value = strtoull(text, &end, 10);
	if (strcmp(text, "-1") == 0)
		*value = RLIM_INFINITY;
	if (errno == 0 && end != text && *end == ':' && end[1] >= '0' && end[1] <= '9')
		*hard = strtoull(end + 1, &end, 10);
	return errno == 0 && end != text && *end == 0 && (text[0] != '-' || text[1] == '1');
}

/* What limits_raise_nofile has raised: 0, nothing. */
static rlim_t nofile_before;

/* A task without a limit of its own has the host's. */
static bool own_limit(const struct limit *l, rlim_t *want)
{
	*want = nofile_before;
	return l->resource == RLIMIT_NOFILE && nofile_before != 0;
}

/* Sets the soft limits; the hard ones stay, or are lowered. What cannot be set is reported to the
 * log only: the user may not even know of it. */
void limits_apply(struct host *h)
{
	const struct env *env = &h->env;

	for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
		char name[NAME_MAX_LEN];
		struct rlimit have;
		rlim_t want;

		variable(name, &limits[i]);
		const char *text = env_get(env, name);
		if (text == NULL && !own_limit(&limits[i], &want))
			continue;
		rlim_t hard = RLIM_INFINITY;

		if (text != NULL && !parse(text, &want, &hard)) {
			log_text(LEVEL_VERBOSE, "cannot read limit %s=\"%s\": not a number", name,
				 text);
			continue;
		}
		if (getrlimit(limits[i].resource, &have) < 0)
			continue;
		bool lower = hard < have.rlim_max;

		if (lower)
			have.rlim_max = hard;
		if (want > have.rlim_max) {
			if (h->rank == 0 && text != NULL) /* all tasks have the same */
				log_limit(h, limits[i].name, want, have.rlim_max);
			want = have.rlim_max;
		}
		if (want == have.rlim_cur && !lower)
			continue;
		have.rlim_cur = want;
		if (setrlimit(limits[i].resource, &have) < 0)
			log_text(LEVEL_VERBOSE, "cannot set limit %s to %llu: %s", name,
				 (unsigned long long)want, strerror(errno));
	}
}

/* The task does not see them. */
void limits_unset(struct env *env)
{
	env_unset_prefix(env, "SLURM_RLIMIT_");
}

void limits_raise_nofile(void)
{
	struct rlimit r;

	if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
		nofile_before = r.rlim_cur;
		r.rlim_cur = r.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &r);
	}
}
