// SPDX-License-Identifier: Apache-2.0
/* Compiled with a Slurm's headers, and that is the test: every field is where
 * job_layout.h says. With all releases' headers in DIR/RELEASE/slurm:
 *	for d in DIR/x; do cc -std=gnu11 -fsyntax-only -I$d job_layout.c; done */
#include <slurm/slurm.h>
#include <stddef.h>

#include "../job_layout.h"

/* The column that is for these headers. */
#define SERIES (SLURM_VERSION_NUMBER >> 8)
#if SERIES == 0x1508
#define COLUMN(a, b, c, d, e, f, g) a
#elif SERIES == 0x1605
#define COLUMN(a, b, c, d, e, f, g) b
#elif SERIES == 0x1702 || SERIES == 0x170b
#define COLUMN(a, b, c, d, e, f, g) c
#elif SERIES == 0x1805
#define COLUMN(a, b, c, d, e, f, g) d
#elif SERIES == 0x180b
#define COLUMN(a, b, c, d, e, f, g) e
#elif SERIES == 0x1905
#define COLUMN(a, b, c, d, e, f, g) f
#elif SERIES == 0x190b
#define COLUMN(a, b, c, d, e, f, g) g
#else
#error "job_layout.h has no column for these headers"
#endif

#define IS(a, b) _Static_assert((a) == (b), #a " is not " #b)

#define CHECK_FIELD(field, size, source, ...)                                                      \
	IS(offsetof(slurm_job_info_t, field), COLUMN(__VA_ARGS__));                                \
	IS(sizeof(((slurm_job_info_t *)NULL)->field), size);

JOB_FIELDS(CHECK_FIELD)
#if SERIES <= 0x1805
JOB_FIELDS_TO_2405(CHECK_FIELD)
#elif SERIES == 0x190b
JOB_FIELDS_2511(CHECK_FIELD)
#endif

#define CHECK_RELEASE(series, size)                                                                \
	_Static_assert((series) != (SERIES == 0x170b ? 0x1702 : SERIES) ||                         \
			       (size) == sizeof(slurm_job_info_t),                                 \
		       "size of a record");
JOB_RELEASES(CHECK_RELEASE)

#define CHECK_MESSAGE(whole, update, count, array)                                                 \
	IS(sizeof(job_info_msg_t), whole);                                                         \
	IS(offsetof(job_info_msg_t, last_update), update);                                         \
	IS(offsetof(job_info_msg_t, record_count), count);                                         \
	IS(offsetof(job_info_msg_t, job_array), array)
#define CHECK_ALL(numbers) CHECK_MESSAGE(numbers)

CHECK_ALL(JOB_MESSAGE);

/* It is called with the job's number. */
_Static_assert(__builtin_types_compatible_p(__typeof__(&slurm_load_job),
					    int (*)(job_info_msg_t **, uint32_t, uint16_t)),
	       "slurm_load_job is called otherwise");

/* And the numbers that api_job.c and setup.go fill in. */
IS(JOB_RUNNING, 1);
IS(JOB_COMPLETE, 3);
IS(JOB_CANCELLED, 4);
IS(JOB_FAILED, 5);
IS(JOB_TIMEOUT, 6);
IS(JOB_NODE_FAIL, 7);
IS(JOB_OOM, 11);
IS(JOB_COMPLETING, 0x8000);
IS(NICE_OFFSET, 0x80000000);
IS(INFINITE, 0xffffffff);
IS(NO_VAL, 0xfffffffe);
IS(NO_VAL16, 0xfffe);
IS(NO_VAL64, 0xfffffffffffffffe);
IS(ESLURM_INVALID_JOB_ID, 2017);
IS(ESLURM_NOT_SUPPORTED, 2036);
