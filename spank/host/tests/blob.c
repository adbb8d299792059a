// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "blob.h"

#include <sys/mman.h>
#include <unistd.h>

#include "test.h"

void blob_free(struct blob *b)
{
	free(b->p);
	*b = (struct blob){0};
}

void blob_bytes(struct blob *b, const void *p, size_t n)
{
	if (b->len + n > b->cap) {
		b->cap = 2 * (b->len + n) + 256;
		b->p = realloc(b->p, b->cap);
		CHECK(b->p != NULL);
	}
	if (n > 0)
		memcpy(b->p + b->len, p, n);
	b->len += n;
}

void blob_u32(struct blob *b, uint32_t v)
{
	uint8_t le[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};

	blob_bytes(b, le, sizeof(le));
}

void blob_str(struct blob *b, const char *s)
{
	blob_u32(b, (uint32_t)strlen(s));
	blob_bytes(b, s, strlen(s));
}

size_t blob_open(struct blob *b, unsigned int tag)
{
	blob_u32(b, tag); /* u16 tag, u16 flags 0 */
	blob_u32(b, 0);
	return b->len;
}

void blob_close(struct blob *b, size_t at)
{
	size_t end = b->len;

	b->len = at - 4;
	blob_u32(b, (uint32_t)(end - at));
	b->len = end;
}

void blob_tlv_u32(struct blob *b, unsigned int tag, uint32_t v)
{
	size_t at = blob_open(b, tag);

	blob_u32(b, v);
	blob_close(b, at);
}

void blob_tlv_u64(struct blob *b, unsigned int tag, uint64_t v)
{
	size_t at = blob_open(b, tag);

	blob_u32(b, (uint32_t)v);
	blob_u32(b, (uint32_t)(v >> 32));
	blob_close(b, at);
}

void blob_tlv_str(struct blob *b, unsigned int tag, const char *s)
{
	size_t at = blob_open(b, tag);

	blob_str(b, s);
	blob_close(b, at);
}

int blob_memfd(const struct blob *b)
{
	int fd = memfd_create("blob", MFD_CLOEXEC);

	CHECK(fd >= 0);
	CHECK(write(fd, b->p, b->len) == (ssize_t)b->len);
	return fd;
}
