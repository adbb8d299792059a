// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <string.h>

#include "config.h"
#include "protocol.h"
#include "util.h"
#include "wire.h"

/* The place of a rank's own settings; NULL for a rank that is not ours. */
static struct rank_conf *rank_of(struct step_conf *s, uint32_t rank)
{
	if (rank == NO_RANK)
		return &s->ranks[s->ntasks];
	return rank < s->ntasks ? &s->ranks[rank] : NULL;
}

static void append(struct step_conf *s, struct list *list, char *text, uint32_t index)
{
	if (s->nitems == s->items_cap) {
		s->items_cap = s->items_cap ? 2 * s->items_cap : 64;
		s->items = must_grow(s->items, s->items_cap, sizeof(*s->items));
	}
	uint32_t at = (uint32_t)s->nitems++;
	s->items[at] = (struct item){.text = text, .index = index, .next = NO_ITEM};
	if (list->first == NO_ITEM)
		list->first = at;
	else
		s->items[list->last].next = at;
	list->last = at;
}

static void append_string(char ***array, size_t *n, char *s)
{
	if ((*n & (*n - 1)) == 0)
		*array = must_grow(*array, *n ? 2 * *n : 1, sizeof(**array));
	(*array)[(*n)++] = s;
}

static bool read_stream(struct step_conf *s, struct reader *r, size_t nfds)
{
	struct rank_conf *rank = rank_of(s, rd_u32(r));
	uint32_t fd = rd_u32(r);
	struct stream stream;

	stream.kind = rd_u32(r);
	stream.index = rd_u32(r);
	stream.path = rd_str(r);

	if (rank == NULL || fd > 2 || stream.kind > STREAM_TERMINAL)
		return false;
	if ((stream.kind == STREAM_FD || stream.kind == STREAM_TERMINAL) && stream.index >= nfds)
		return false;
	/* A terminal is of one session, which one task leads. */
	if (stream.kind == STREAM_TERMINAL && rank == &s->ranks[s->ntasks])
		return false;
	if (stream.kind == STREAM_SAME && fd != 2)
		return false;
	rank->stream[fd] = stream;
	rank->own_stream[fd] = true;
	return true;
}

static bool read_task_env(struct step_conf *s, struct reader *r)
{
	struct rank_conf *rank = rank_of(s, rd_u32(r));
	char *entry = rd_str(r);

	if (rank == NULL || r->bad || strchr(entry, '=') == NULL)
		return false;
	append(s, &rank->env, entry, 0);
	return true;
}

static bool read_task_fd(struct step_conf *s, struct reader *r, size_t nfds)
{
	struct rank_conf *rank = rank_of(s, rd_u32(r));
	uint32_t index = rd_u32(r);
	char *name = rd_str(r);

	/* One descriptor cannot be every task's own. */
	if (rank == NULL || rank == &s->ranks[s->ntasks] || index >= nfds)
		return false;
	append(s, &rank->fds, name, index);
	return true;
}

static bool read_task_arg(struct step_conf *s, struct reader *r)
{
	struct rank_conf *rank = rank_of(s, rd_u32(r));
	char *arg = rd_str(r);

	if (rank == NULL || r->bad || rank == &s->ranks[s->ntasks])
		return false;
	append(s, &rank->argv, arg, 0);
	return true;
}

static bool read_task_cwd(struct step_conf *s, struct reader *r)
{
	struct rank_conf *rank = rank_of(s, rd_u32(r));
	char *dir = rd_str(r);

	if (rank == NULL || r->bad || rank == &s->ranks[s->ntasks] || dir[0] == 0)
		return false;
	rank->cwd = dir;
	return true;
}

static bool read_mem_policy(struct step_conf *s, struct reader *r)
{
	struct rank_conf *rank = rank_of(s, rd_u32(r));
	struct mem_policy policy = {.mode = rd_u32(r)};

	if (rank == NULL || r->left > sizeof(policy.nodes))
		return false;
	while (r->left > 0 && !r->bad)
		policy.nodes[policy.words++] = rd_u64(r);
	if (r->bad)
		return false;
	size_t n = s->nmem_policies++;
	if ((n & (n - 1)) == 0)
		s->mem_policies =
			must_grow(s->mem_policies, n ? 2 * n : 1, sizeof(*s->mem_policies));
	s->mem_policies[n] = policy;
	rank->mem_policy = (uint32_t)n + 1;
	return true;
}

static bool read_script(struct step_conf *s, struct reader *r)
{
	struct script script = {.kind = rd_u32(r), .timeout_s = rd_u32(r)};

	script.label = rd_str(r);
	script.path = rd_str(r);
	if (r->bad || (script.kind != SCRIPT_PROLOG && script.kind != SCRIPT_EPILOG) ||
	    script.path[0] != '/')
		return false;
	size_t n = s->nscripts++;
	if ((n & (n - 1)) == 0)
		s->scripts = must_grow(s->scripts, n ? 2 * n : 1, sizeof(*s->scripts));
	s->scripts[n] = script;
	return true;
}

static bool read_item(struct step_conf *s, struct reader *blob, size_t nfds)
{
	uint16_t tag = rd_u16(blob), flags = rd_u16(blob);
	uint32_t len = rd_u32(blob);
	struct reader r = rd_sub(blob, len);
	bool ok = !r.bad;

	switch (tag) {
	case TAG_STREAM:
		ok = ok && read_stream(s, &r, nfds);
		break;
	case TAG_TASK_ENV:
		ok = ok && read_task_env(s, &r);
		break;
	case TAG_TASK_FD:
		ok = ok && read_task_fd(s, &r, nfds);
		break;
	case TAG_TASK_ARG:
		ok = ok && read_task_arg(s, &r);
		break;
	case TAG_TASK_CWD:
		ok = ok && read_task_cwd(s, &r);
		break;
	case TAG_TASK_SCRIPT:
		ok = ok && read_script(s, &r);
		break;
	case TAG_MEM_POLICY:
		ok = ok && read_mem_policy(s, &r);
		break;
	case TAG_ENV_SET:
		append_string(&s->env_set, &s->nenv_set, rd_str(&r));
		break;
	case TAG_ENV_UNSET:
		append_string(&s->env_unset, &s->nenv_unset, rd_str(&r));
		break;
	case TAG_EXIT_ENV:
		append_string(&s->exit_env, &s->nexit_env, rd_str(&r));
		break;
	default:
		return ok && (flags & TLV_OPTIONAL) != 0;
	}
	return ok && rd_done(&r);
}

bool step_decode(struct step_conf *s, void *blob, size_t len, size_t ntasks, size_t nfds,
		 const char **why)
{
	struct reader r = rd_init(blob, len);

	*s = (struct step_conf){.ntasks = ntasks};
	s->ranks = must_zero(ntasks + 1, sizeof(*s->ranks));
	for (size_t i = 0; i <= ntasks; i++) {
		s->ranks[i].env = (struct list){NO_ITEM, NO_ITEM};
		s->ranks[i].fds = (struct list){NO_ITEM, NO_ITEM};
		s->ranks[i].argv = (struct list){NO_ITEM, NO_ITEM};
	}
	while (r.left > 0 && !r.bad) {
		if (!read_item(s, &r, nfds)) {
			*why = "an item is malformed";
			return false;
		}
	}
	*why = NULL;
	return true;
}

void step_free(struct step_conf *s)
{
	free(s->ranks);
	free(s->items);
	free(s->mem_policies);
	free(s->scripts);
	free(s->env_set);
	free(s->env_unset);
	free(s->exit_env);
	*s = (struct step_conf){0};
}

const struct rank_conf *step_common(const struct step_conf *s)
{
	return &s->ranks[s->ntasks];
}

const struct mem_policy *step_mem_policy(const struct step_conf *s, size_t rank)
{
	if (s->ranks == NULL || rank >= s->ntasks)
		return NULL;
	uint32_t n = s->ranks[rank].mem_policy ? s->ranks[rank].mem_policy
					       : s->ranks[s->ntasks].mem_policy;
	return n > 0 ? &s->mem_policies[n - 1] : NULL;
}

struct stream step_stream(const struct step_conf *s, size_t rank, int fd)
{
	if (s->ranks == NULL || rank >= s->ntasks)
		return (struct stream){.kind = STREAM_NULL};
	if (s->ranks[rank].own_stream[fd])
		return s->ranks[rank].stream[fd];
	return s->ranks[s->ntasks].stream[fd];
}
