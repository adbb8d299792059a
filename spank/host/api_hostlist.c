// SPDX-License-Identifier: Apache-2.0
/* Slurm's lists of hosts, for plugins: those functions of slurm.h, and of
 * libslurm's others the ones that plugins were seen to declare themselves. */
#define _GNU_SOURCE
#include <slurm/slurm.h>
#include <string.h>

#include "api.h"
#include "hostlist.h"
#include "util.h"

#define HOSTLIST_MAGIC 0x7473696c74736f68ull

/* Not in slurm.h. */
hostlist_t *slurm_hostlist_create_dims(const char *hosts, int dims);
hostlist_t *slurm_hostlist_copy(hostlist_t *hl);
char *slurm_hostlist_nth(hostlist_t *hl, int n);
char *slurm_hostlist_pop(hostlist_t *hl);
void slurm_hostlist_sort(hostlist_t *hl);
ssize_t slurm_hostlist_deranged_string(hostlist_t *hl, size_t n, char *buf);
char *slurm_hostlist_deranged_string_malloc(hostlist_t *hl);
char *slurm_hostlist_deranged_string_xmalloc(hostlist_t *hl);

/* The list, if it is one of ours and not destroyed: a plugin with a libslurm of
 * its own may hold one of that. */
static struct hostlist *ours(hostlist_t *hl)
{
	return hl != NULL && hl->magic == HOSTLIST_MAGIC ? hl : NULL;
}

static size_t count(const struct hostlist *hl)
{
	return hl->end - hl->first;
}

SPANK_API hostlist_t *slurm_hostlist_create(const char *hosts)
{
	struct hostlist *hl = must_zero(1, sizeof(*hl));

	hl->magic = HOSTLIST_MAGIC;
	if (hosts != NULL && !hostlist_parse(hl, hosts)) {
		slurm_hostlist_destroy(hl);
		errno = EINVAL;
		return NULL;
	}
	return hl;
}

/* More dimensions than one are of machines that name nodes by coordinates; 0 is
 * the cluster's number. */
SPANK_API hostlist_t *slurm_hostlist_create_dims(const char *hosts, int dims)
{
	if (dims == 0 || dims == 1)
		return slurm_hostlist_create(hosts);
	errno = EINVAL;
	return NULL;
}

SPANK_API hostlist_t *slurm_hostlist_copy(hostlist_t *hl)
{
	if (ours(hl) == NULL)
		return NULL;
	struct hostlist *copy = slurm_hostlist_create(NULL);
	for (size_t i = hl->first; i < hl->end; i++)
		hostlist_add(copy, hl->host[i], strlen(hl->host[i]));
	return copy;
}

SPANK_API void slurm_hostlist_destroy(hostlist_t *hl)
{
	if (ours(hl) == NULL)
		return;
	while (hl->end > hl->first)
		free(hl->host[--hl->end]);
	free(hl->host);
	hl->magic = 0;
	free(hl);
}

SPANK_API int slurm_hostlist_count(hostlist_t *hl)
{
	return ours(hl) ? (int)count(hl) : 0;
}

SPANK_API int slurm_hostlist_find(hostlist_t *hl, const char *host)
{
	if (ours(hl) == NULL || host == NULL)
		return -1;
	for (size_t i = hl->first; i < hl->end; i++) {
		if (strcmp(hl->host[i], host) == 0)
			return (int)(i - hl->first);
	}
	return -1;
}

SPANK_API char *slurm_hostlist_nth(hostlist_t *hl, int n)
{
	if (ours(hl) == NULL || n < 0 || (size_t)n >= count(hl))
		return NULL;
	return must(strdup(hl->host[hl->first + (size_t)n]));
}

SPANK_API int slurm_hostlist_push(hostlist_t *hl, const char *hosts)
{
	if (ours(hl) == NULL || hosts == NULL)
		return 0;
	size_t before = count(hl);
	if (!hostlist_parse(hl, hosts)) {
		errno = EINVAL;
		return 0;
	}
	return (int)(count(hl) - before);
}

SPANK_API int slurm_hostlist_push_host(hostlist_t *hl, const char *host)
{
	return ours(hl) != NULL && host != NULL &&
	       hostlist_add(hl, host, strnlen(host, HOST_NAME_BYTES));
}

SPANK_API char *slurm_hostlist_shift(hostlist_t *hl)
{
	return ours(hl) && count(hl) > 0 ? hl->host[hl->first++] : NULL;
}

SPANK_API char *slurm_hostlist_pop(hostlist_t *hl)
{
	return ours(hl) && count(hl) > 0 ? hl->host[--hl->end] : NULL;
}

SPANK_API void slurm_hostlist_sort(hostlist_t *hl)
{
	if (ours(hl) != NULL)
		hostlist_order(hl);
}

SPANK_API void slurm_hostlist_uniq(hostlist_t *hl)
{
	if (ours(hl) == NULL || count(hl) == 0)
		return;
	hostlist_order(hl);
	size_t kept = hl->first;
	for (size_t i = hl->first + 1; i < hl->end; i++) {
		if (strcmp(hl->host[i], hl->host[kept]) == 0)
			free(hl->host[i]);
		else
			hl->host[++kept] = hl->host[i];
	}
	hl->end = kept + 1;
}

/* Moves a text that is to be freed into a caller's buffer. */
static ssize_t to_buffer(char *text, size_t n, char *buf)
{
	_cleanup_free_ char *owned = text;
	size_t len = strlen(owned);

	if (buf == NULL || n == 0)
		return -1;
	size_t fits = len < n ? len : n - 1;
	memcpy(buf, owned, fits);
	buf[fits] = 0;
	return fits == len ? (ssize_t)len : -1;
}

/* What libslurm's xmalloc puts before its memory, which its xfree takes off:
 * memory of the one may meet the other in a plugin that has its own libslurm. */
struct xmalloc_head {
	size_t magic, size;
};
#define XMALLOC_MAGIC 0x42

static char *to_xmalloc(char *text)
{
	_cleanup_free_ char *owned = text;
	size_t size = strlen(owned) + 1;
	struct xmalloc_head *head = must(malloc(sizeof(*head) + size));

	*head = (struct xmalloc_head){.magic = XMALLOC_MAGIC, .size = size};
	return memcpy(head + 1, owned, size);
}

/* Slurm's xfree: of releases before 21.08, too, whose further arguments name the caller. */
void slurm_xfree(void **item);
SPANK_API void slurm_xfree(void **item)
{
	if (item == NULL || *item == NULL)
		return;
	struct xmalloc_head *head = (struct xmalloc_head *)*item - 1;
	head->magic = 0;
	free(head);
	*item = NULL;
}

SPANK_API ssize_t slurm_hostlist_ranged_string(hostlist_t *hl, size_t n, char *buf)
{
	return ours(hl) ? to_buffer(hostlist_ranged(hl), n, buf) : -1;
}

SPANK_API char *slurm_hostlist_ranged_string_malloc(hostlist_t *hl)
{
	return ours(hl) ? hostlist_ranged(hl) : NULL;
}

SPANK_API char *slurm_hostlist_ranged_string_xmalloc(hostlist_t *hl)
{
	return ours(hl) ? to_xmalloc(hostlist_ranged(hl)) : NULL;
}

SPANK_API ssize_t slurm_hostlist_deranged_string(hostlist_t *hl, size_t n, char *buf)
{
	return ours(hl) ? to_buffer(hostlist_plain(hl), n, buf) : -1;
}

SPANK_API char *slurm_hostlist_deranged_string_malloc(hostlist_t *hl)
{
	return ours(hl) ? hostlist_plain(hl) : NULL;
}

SPANK_API char *slurm_hostlist_deranged_string_xmalloc(hostlist_t *hl)
{
	return ours(hl) ? to_xmalloc(hostlist_plain(hl)) : NULL;
}
