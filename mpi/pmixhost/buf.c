// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "buf.h"

#include <stdlib.h>
#include <string.h>

#include "host.h"
#include "protocol.h"

struct reader rd_bytes(struct reader *r)
{
	size_t len = rd_u32(r);

	return rd_sub(r, len);
}

char *rd_copy(struct reader *r)
{
	struct reader b = rd_bytes(r);
	char *s;

	if (b.bad || memchr(b.p, 0, b.left) != NULL) {
		r->bad = true;
		return must(strdup(""));
	}
	s = must(malloc(b.left + 1));
	memcpy(s, b.p, b.left);
	s[b.left] = 0;
	return s;
}

uint32_t rd_count(struct reader *r, size_t size)
{
	uint32_t n = rd_u32(r);

	if (!r->bad && n > r->left / size)
		r->bad = true;
	return r->bad ? 0 : n;
}

static uint8_t *grow(struct out *w, size_t n)
{
	uint8_t *p;

	if (w->bad || n > PMIXHOST_FRAME_MAX - w->len) {
		w->bad = true;
		return NULL;
	}
	if (n > w->cap - w->len) {
		w->cap = w->cap * 2 > w->len + n ? w->cap * 2 : w->len + n + 256;
		w->p = must(realloc(w->p, w->cap));
	}
	p = w->p + w->len;
	w->len += n;
	return p;
}

static void put_int(struct out *w, uint64_t v, size_t n)
{
	uint8_t *p = grow(w, n);

	for (size_t i = 0; p != NULL && i < n; i++)
		p[i] = (uint8_t)(v >> (8 * i));
}

void out_u16(struct out *w, uint16_t v)
{
	put_int(w, v, 2);
}

void out_u32(struct out *w, uint32_t v)
{
	put_int(w, v, 4);
}

void out_i32(struct out *w, int32_t v)
{
	put_int(w, (uint32_t)v, 4);
}

void out_u64(struct out *w, uint64_t v)
{
	put_int(w, v, 8);
}

void out_bytes(struct out *w, const void *src, size_t len)
{
	uint8_t *p;

	if (len > PMIXHOST_FRAME_MAX) {
		w->bad = true;
		return;
	}
	out_u32(w, (uint32_t)len);
	p = grow(w, len);
	if (p != NULL && len > 0)
		memcpy(p, src, len);
}

void out_str(struct out *w, const char *s)
{
	out_bytes(w, s, s != NULL ? strlen(s) : 0);
}

size_t out_mark(struct out *w)
{
	out_u32(w, 0);
	return w->len;
}

void out_fill(struct out *w, size_t mark)
{
	uint32_t n = (uint32_t)(w->len - mark);

	for (size_t i = 0; !w->bad && i < 4; i++)
		w->p[mark - 4 + i] = (uint8_t)(n >> (8 * i));
}

void out_free(struct out *w)
{
	free(w->p);
	*w = (struct out){0};
}
