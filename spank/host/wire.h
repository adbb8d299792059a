/* SPDX-License-Identifier: Apache-2.0
 *
 * Records of protocol.h: strings of a reader, a writer that cannot leave its buffer, and
 * packets with descriptors.
 */
#ifndef STEPD_WIRE_H
#define STEPD_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "reader.h"

/* A string, terminated in place: it is moved over its own length field, so the
 * buffer must be writable and outlive it. One with a NUL inside is bad. Never NULL. */
char *rd_str(struct reader *r);

/* Appends fields to a buffer; what does not fit sets bad. */
struct writer {
	uint8_t *p;
	size_t len;
	size_t cap;
	bool bad;
};

struct writer wr_init(void *buf, size_t cap);
void wr_u32(struct writer *w, uint32_t v);
void wr_i32(struct writer *w, int32_t v);
void wr_u64(struct writer *w, uint64_t v);
/* At most max bytes of s; NULL is empty. */
void wr_str(struct writer *w, const char *s, size_t max);

/* Sends one packet: 0, or -1 and errno. Never raises SIGPIPE. */
int packet_send(int sock, const struct iovec *iov, size_t niov, const int *fds, size_t nfds);

/* Receives one packet: its length, 0 at end of file, -1 and errno. The
 * descriptors, *nfds of them, are the caller's and close on exec. A packet that
 * was cut (EMSGSIZE) leaves none. */
ssize_t packet_recv(int sock, void *buf, size_t cap, int *fds, size_t max, size_t *nfds);

#endif
