// SPDX-License-Identifier: Apache-2.0
#include "reader.h"

struct reader rd_init(const void *buf, size_t len)
{
	return (struct reader){.p = buf, .left = len};
}

const uint8_t *rd_take(struct reader *r, size_t n)
{
	const uint8_t *p = r->p;

	if (r->bad || n > r->left) {
		r->bad = true;
		return NULL;
	}
	r->p += n;
	r->left -= n;
	return p;
}

static uint64_t take_int(struct reader *r, size_t n)
{
	const uint8_t *p = rd_take(r, n);
	uint64_t v = 0;

	for (size_t i = 0; p != NULL && i < n; i++)
		v |= (uint64_t)p[i] << (8 * i);
	return v;
}

uint16_t rd_u16(struct reader *r)
{
	return (uint16_t)take_int(r, 2);
}

uint32_t rd_u32(struct reader *r)
{
	return (uint32_t)take_int(r, 4);
}

uint64_t rd_u64(struct reader *r)
{
	return take_int(r, 8);
}

struct reader rd_sub(struct reader *r, size_t len)
{
	const uint8_t *p = rd_take(r, len);

	if (p == NULL)
		return (struct reader){.bad = true};
	return rd_init(p, len);
}

bool rd_done(const struct reader *r)
{
	return !r->bad && r->left == 0;
}
