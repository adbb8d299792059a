/* SPDX-License-Identifier: Apache-2.0
 *
 * The numbers that SPANK functions return, as since Slurm 21.08 (before that
 * they were 0 to 11). spank_strerror puts them into words.
 */
#ifndef _SLURM_ERRNO_H
#define _SLURM_ERRNO_H

#include <errno.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SLURM_SUCCESS 0
#define SLURM_ERROR   (-1)

typedef enum spank_err {
	ESPANK_SUCCESS = 0,
	ESPANK_ERROR = 3000,	    /* failed for a reason without a number */
	ESPANK_BAD_ARG = 3001,	    /* a handle, pointer, name or item that is not valid */
	ESPANK_NOT_TASK = 3002,	    /* the item belongs to a task, and no task is at hand */
	ESPANK_ENV_EXISTS = 3003,   /* set, and overwrite was 0 */
	ESPANK_ENV_NOEXIST = 3004,  /* not set */
	ESPANK_NOSPACE = 3005,	    /* the value was cut to fit the buffer */
	ESPANK_NOT_REMOTE = 3006,   /* only in remote context */
	ESPANK_NOEXIST = 3007,	    /* no such id or pid on this node */
	ESPANK_NOT_EXECD = 3008,    /* asked by pid before any task has one */
	ESPANK_NOT_AVAIL = 3009,    /* not in this callback */
	ESPANK_NOT_LOCAL = 3010,    /* only in local or allocator context */
	ESPANK_NODE_FAILURE = 3011, /* since 25.05: init failed, blame the node */
	ESPANK_JOB_FAILURE = 3012,  /* since 25.05: init failed, blame the job */
} spank_err_t;

/* Of Slurm's own numbers those that functions of this host set. */
enum {
	ESLURM_INVALID_JOB_ID = 2017,
	ESLURM_NOT_SUPPORTED = 2036,
};

/* Says an error number in words. The text is not to be freed. */
char *slurm_strerror(int errnum);

/* errno, by the names that Slurm gives it. */
int slurm_get_errno(void);
void slurm_seterrno(int errnum);

/* Prints msg and the words for errno to standard error. */
void slurm_perror(const char *msg);

#ifdef __cplusplus
}
#endif

#endif
