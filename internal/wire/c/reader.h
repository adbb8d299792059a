/* SPDX-License-Identifier: Apache-2.0
 *
 * The fields of a record of spankhost or pmixhost, little endian, and a reader of
 * them that cannot leave its buffer. Package internal/wire is the Go half.
 */
#ifndef STEPD_READER_H
#define STEPD_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Takes fields from a record. The first field that is missing sets bad, and all
 * later ones are zero or empty: check once, at the end. */
struct reader {
	const uint8_t *p;
	size_t left;
	bool bad;
};

struct reader rd_init(const void *buf, size_t len);
uint16_t rd_u16(struct reader *r);
uint32_t rd_u32(struct reader *r);
uint64_t rd_u64(struct reader *r);

/* The next n bytes, which stay where they are; NULL if they are missing. */
const uint8_t *rd_take(struct reader *r, size_t n);

/* The next len bytes as a reader of their own. */
struct reader rd_sub(struct reader *r, size_t len);

/* True if every byte was taken and none was missing. */
bool rd_done(const struct reader *r);

#endif
