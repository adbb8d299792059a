/* SPDX-License-Identifier: Apache-2.0
 *
 * Blobs of SETUP and STEP, for tests.
 */
#ifndef STEPD_BLOB_H
#define STEPD_BLOB_H

#include <stddef.h>
#include <stdint.h>

struct blob {
	uint8_t *p;
	size_t len, cap;
};

void blob_free(struct blob *b);
void blob_bytes(struct blob *b, const void *p, size_t n);
void blob_u32(struct blob *b, uint32_t v);
void blob_str(struct blob *b, const char *s);

/* An item: open it, append its fields, close it. */
size_t blob_open(struct blob *b, unsigned int tag);
void blob_close(struct blob *b, size_t at);

void blob_tlv_u32(struct blob *b, unsigned int tag, uint32_t v);
void blob_tlv_u64(struct blob *b, unsigned int tag, uint64_t v);
void blob_tlv_str(struct blob *b, unsigned int tag, const char *s);

/* A memfd that holds it. */
int blob_memfd(const struct blob *b);

#endif
