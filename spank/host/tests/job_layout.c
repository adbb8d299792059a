// SPDX-License-Identifier: Apache-2.0
/* Compiled with an installed Slurm's headers, and that is the test: every field
 * is where job_layout.h says. */
#include <slurm/slurm.h>
#include <stddef.h>

#include "../job_layout.h"

#if SLURM_VERSION_NUMBER >> 8 != 0x1605
#error "these headers are not 22.05's"
#endif

#define IS(a, b) _Static_assert((a) == (b), #a " is not " #b)

#define CHECK_FIELD(field, offset, size, source)                                                   \
	IS(offsetof(slurm_job_info_t, field), offset);                                             \
	IS(sizeof(((slurm_job_info_t *)NULL)->field), size);

JOB_FIELDS_2205(CHECK_FIELD)

#define CHECK_MESSAGE(whole, update, count, array, record)                                         \
	IS(sizeof(job_info_msg_t), whole);                                                         \
	IS(offsetof(job_info_msg_t, last_update), update);                                         \
	IS(offsetof(job_info_msg_t, record_count), count);                                         \
	IS(offsetof(job_info_msg_t, job_array), array);                                            \
	IS(sizeof(slurm_job_info_t), record)
#define CHECK_ALL(numbers) CHECK_MESSAGE(numbers)

CHECK_ALL(JOB_MESSAGE_2205);

/* And the numbers that api_job.c fills in. */
IS(JOB_RUNNING, 1);
IS(NICE_OFFSET, 0x80000000);
IS(NO_VAL, 0xfffffffe);
IS(NO_VAL16, 0xfffe);
IS(NO_VAL64, 0xfffffffffffffffe);
IS(ESLURM_INVALID_JOB_ID, 2017);
IS(ESLURM_NOT_SUPPORTED, 2036);
