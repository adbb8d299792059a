// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "env.h"

#include <string.h>

#include "util.h"

static void *own(struct env *e, void *p)
{
	/* A power of two of them was allocated before: time for the next one. */
	if ((e->nold & (e->nold + 1)) == 0)
		e->old = must_grow(e->old, 2 * (e->nold + 1), sizeof(*e->old));
	e->old[e->nold++] = p;
	return p;
}

static void reserve(struct env *e, size_t n)
{
	if (e->v != NULL && n + 1 <= e->cap)
		return;
	size_t cap = e->cap ? 2 * e->cap : 128;
	while (cap < n + 1)
		cap *= 2;
	char **v = own(e, must_zero(cap, sizeof(*v)));
	for (size_t i = 0; i < e->n; i++)
		v[i] = e->v[i];
	e->v = v;
	e->cap = cap;
}

void env_init(struct env *e)
{
	*e = (struct env){0};
	reserve(e, 0);
}

void env_free(struct env *e)
{
	for (size_t i = 0; i < e->nold; i++)
		free(e->old[i]);
	free(e->old);
	*e = (struct env){0};
}

static size_t find(const struct env *e, const char *name, size_t len)
{
	for (size_t i = 0; i < e->n; i++) {
		if (e->v[i] != NULL && strncmp(e->v[i], name, len) == 0 && e->v[i][len] == '=')
			return i;
	}
	return e->n;
}

const char *env_get(const struct env *e, const char *name)
{
	size_t len = strlen(name);
	size_t i = find(e, name, len);

	return i < e->n ? e->v[i] + len + 1 : NULL;
}

void env_append(struct env *e, char *entry)
{
	reserve(e, e->n + 1);
	e->v[e->n++] = entry;
	e->v[e->n] = NULL;
}

void env_put(struct env *e, char *entry)
{
	size_t i = find(e, entry, strcspn(entry, "="));

	if (i == e->n)
		env_append(e, entry);
	else
		e->v[i] = entry;
}

void env_set(struct env *e, const char *name, const char *value)
{
	size_t nlen = strlen(name), vlen = strlen(value);
	char *entry = own(e, must(malloc(nlen + vlen + 2)));

	memcpy(entry, name, nlen);
	entry[nlen] = '=';
	memcpy(entry + nlen + 1, value, vlen + 1);
	env_put(e, entry);
}

void env_unset(struct env *e, const char *name)
{
	size_t len = strlen(name);

	for (size_t i; (i = find(e, name, len)) < e->n;) {
		memmove(&e->v[i], &e->v[i + 1], (e->n - i) * sizeof(*e->v));
		e->n--;
	}
}

void env_unset_prefix(struct env *e, const char *prefix)
{
	size_t len = strlen(prefix), kept = 0;

	for (size_t i = 0; i < e->n; i++) {
		if (e->v[i] != NULL && strncmp(e->v[i], prefix, len) != 0)
			e->v[kept++] = e->v[i];
	}
	e->n = kept;
	e->v[kept] = NULL;
}

bool env_name_ok(const char *name)
{
	return name[0] != 0 && strchr(name, '=') == NULL;
}
