/* SPDX-License-Identifier: Apache-2.0
 *
 * The job's environment: an array of NAME=VALUE of its own, distinct from
 * `environ'.
 */
#ifndef STEPD_ENV_H
#define STEPD_ENV_H

#include <stdbool.h>
#include <stddef.h>

/* A plugin may hold v (S_JOB_ENV) or a string of it across a change, so nothing
 * that was once in here is freed before env_free. */
struct env {
	char **v; /* ends with NULL; valid when n is 0, too, once env_init was called */
	size_t n;
	size_t cap;
	void **old; /* what this file allocated and no longer uses, or still does */
	size_t nold;
};

void env_init(struct env *e);
void env_free(struct env *e);

/* The value of name, NULL if it is not set. */
const char *env_get(const struct env *e, const char *name);

/* Sets NAME=VALUE; the string stays the caller's and must outlive e. Later ones win. */
void env_put(struct env *e, char *entry);

/* As env_put, of a name that is not set yet: it is not looked for, since a user
 * may have tens of thousands of variables. */
void env_append(struct env *e, char *entry);

/* Sets a copy. */
void env_set(struct env *e, const char *name, const char *value);

/* Removes every entry of that name. */
void env_unset(struct env *e, const char *name);

/* Removes every entry whose name begins with prefix. */
void env_unset_prefix(struct env *e, const char *prefix);

/* A name that can be in an environment: not empty, and without '='. */
bool env_name_ok(const char *name);

#endif
