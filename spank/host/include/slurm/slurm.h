/* SPDX-License-Identifier: Apache-2.0
 *
 * Of Slurm's slurm.h the part that every plugin's host answers: lists of hosts.
 * A plugin that calls slurm_load_job is built with the headers of the release
 * that it is for, since the record differs from one to the next.
 */
#ifndef _SLURM_H
#define _SLURM_H

#include <sys/types.h>
#include <stddef.h>

#include <slurm/slurm_errno.h>
#include <slurm/slurm_version.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Both do nothing here. */
void slurm_init(const char *conf);
void slurm_fini(void);

/* Hosts in an order, duplicates and all: at most 65536 of at most 255 bytes each. */
typedef struct hostlist hostlist_t;

/* Makes a list of names and ranges, "n[1-3,07-09],m4 r[1-2]c[1-4]", parted by
 * commas or blanks; an empty one of NULL. NULL and EINVAL if the text is malformed
 * or names too many. */
hostlist_t *slurm_hostlist_create(const char *hosts);
void slurm_hostlist_destroy(hostlist_t *hl);

int slurm_hostlist_count(hostlist_t *hl);

/* The place of a name, from 0; -1 if it is not in the list. */
int slurm_hostlist_find(hostlist_t *hl, const char *host);

/* Appends what _create takes: how many were added, 0 and none if it cannot be read. */
int slurm_hostlist_push(hostlist_t *hl, const char *hosts);

/* Appends one name as it is: 1, or 0 if it is none. */
int slurm_hostlist_push_host(hostlist_t *hl, const char *host);

/* Takes the first off; NULL if there is none. Release it with free(). */
char *slurm_hostlist_shift(hostlist_t *hl);

/* Sorts, and removes duplicates. */
void slurm_hostlist_uniq(hostlist_t *hl);

/* Writes the list with its ranges, and a NUL. The length, or -1 if it was cut to fit. */
ssize_t slurm_hostlist_ranged_string(hostlist_t *hl, size_t n, char *buf);
/* The same in memory to be released with free(). */
char *slurm_hostlist_ranged_string_malloc(hostlist_t *hl);
/* The same in memory to be released with slurm_xfree(). */
char *slurm_hostlist_ranged_string_xmalloc(hostlist_t *hl);

#ifdef __cplusplus
}
#endif

#endif
