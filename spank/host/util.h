/* SPDX-License-Identifier: Apache-2.0
 *
 * Cleanup attributes and the retry of interrupted calls.
 */
#ifndef STEPD_UTIL_H
#define STEPD_UTIL_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static inline void cleanup_free(void *p)
{
	free(*(void **)p);
}

/* errno survives, so that it can be returned after the descriptor went. */
static inline void cleanup_close(const int *fd)
{
	int saved = errno;

	if (*fd >= 0)
		close(*fd);
	errno = saved;
}

#define _cleanup_free_	__attribute__((cleanup(cleanup_free)))
#define _cleanup_close_ __attribute__((cleanup(cleanup_close)))

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/* The value of a call that a signal may have interrupted: -1 and errno, never EINTR. */
#define RETRY(call)                                                                                \
	__extension__({                                                                            \
		long retry_rc_;                                                                    \
		do                                                                                 \
			retry_rc_ = (long)(call);                                                  \
		while (retry_rc_ == -1 && errno == EINTR);                                         \
		retry_rc_;                                                                         \
	})

/* Ends the process: a host without memory can do nothing, and stepd sees that it is gone. */
static inline void *must(void *p)
{
	if (p == NULL) {
		dprintf(2, "spankhost: error: out of memory\n");
		_exit(1);
	}
	return p;
}

static inline void *must_grow(void *old, size_t count, size_t size)
{
	return must(reallocarray(old, count ? count : 1, size));
}

static inline void *must_zero(size_t count, size_t size)
{
	return must(calloc(count ? count : 1, size));
}

#endif
