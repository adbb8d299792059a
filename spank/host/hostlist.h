/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of hosts: their text, read and written. api_hostlist.c gives them to
 * plugins.
 */
#ifndef STEPD_HOSTLIST_H
#define STEPD_HOSTLIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Users write these lists: "n[0-999999999]" must not cost more than a message. */
#define HOSTLIST_MAX	65536
#define HOST_NAME_BYTES 256 /* with its NUL */

struct hostlist {
	uint64_t magic;
	char **host; /* host[first] to host[end - 1] */
	size_t first, end, cap;
};

/* Appends one name as it is. False if it is empty, too long, or one too many. */
bool hostlist_add(struct hostlist *hl, const char *name, size_t len);

/* Appends what a text names. False if it is malformed or names too many: the
 * list is then as it was. */
bool hostlist_parse(struct hostlist *hl, const char *text);

/* The list as text, with ranges or without. Free it. */
char *hostlist_ranged(const struct hostlist *hl);
char *hostlist_plain(const struct hostlist *hl);

/* By prefix, then by the width of the number behind it, then by the number: n2, n01, n10. */
void hostlist_order(struct hostlist *hl);

#endif
