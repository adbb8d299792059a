/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames of protocol.h: lists and strings of a reader, and a frame that grows.
 */
#ifndef PMIXHOST_BUF_H
#define PMIXHOST_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "reader.h"

/* A length and so many bytes, which stay where they are in the frame. */
struct reader rd_bytes(struct reader *r);
/* A copy with a terminator, for free(); "" where it is bad. A string with a 0 in
 * it is bad. */
char *rd_copy(struct reader *r);
/* A count of elements of at least size bytes each: bad where the frame cannot
 * hold them, so that no caller makes room for elements that are missing. */
uint32_t rd_count(struct reader *r, size_t size);

/* A frame that grows. Beyond PMIXHOST_FRAME_MAX it is bad, and stays as it was. */
struct out {
	uint8_t *p;
	size_t len, cap;
	bool bad;
};

void out_u16(struct out *w, uint16_t v);
void out_u32(struct out *w, uint32_t v);
void out_i32(struct out *w, int32_t v);
void out_u64(struct out *w, uint64_t v);
void out_bytes(struct out *w, const void *p, size_t len);
void out_str(struct out *w, const char *s); /* NULL is "" */
/* Leaves room for a u32 and says where; out_fill writes there how many bytes
 * have come since. */
size_t out_mark(struct out *w);
void out_fill(struct out *w, size_t mark);
void out_free(struct out *w);

#endif
