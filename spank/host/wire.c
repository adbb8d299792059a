// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "protocol.h"
#include "util.h"

char *rd_str(struct reader *r)
{
	static char empty[1];
	size_t len = rd_u32(r);
	char *s = (char *)rd_take(r, len); /* the buffer is writable */

	if (s == NULL)
		return empty;
	if (memchr(s, 0, len) != NULL) {
		r->bad = true;
		return empty;
	}
	memmove(s - 1, s, len); /* the byte before is the length's last */
	s[(ptrdiff_t)len - 1] = 0;
	return s - 1;
}

struct writer wr_init(void *buf, size_t cap)
{
	return (struct writer){.p = buf, .cap = cap};
}

static void put(struct writer *w, const void *src, size_t n)
{
	if (w->bad || n > w->cap - w->len) {
		w->bad = true;
		return;
	}
	memcpy(w->p + w->len, src, n);
	w->len += n;
}

void wr_u32(struct writer *w, uint32_t v)
{
	uint8_t b[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};

	put(w, b, sizeof(b));
}

void wr_i32(struct writer *w, int32_t v)
{
	wr_u32(w, (uint32_t)v);
}

void wr_u64(struct writer *w, uint64_t v)
{
	wr_u32(w, (uint32_t)v);
	wr_u32(w, (uint32_t)(v >> 32));
}

void wr_str(struct writer *w, const char *s, size_t max)
{
	size_t len = s == NULL ? 0 : strnlen(s, max);

	wr_u32(w, (uint32_t)len);
	put(w, s == NULL ? "" : s, len);
}

/* Room for the descriptors of one packet, aligned as the kernel wants it. */
union control {
	char buf[CMSG_SPACE(HOST_FDS_MAX * sizeof(int))];
	struct cmsghdr align;
};

int packet_send(int sock, const struct iovec *iov, size_t niov, const int *fds, size_t nfds)
{
	union control control;
	struct msghdr msg = {.msg_iov = (struct iovec *)iov, .msg_iovlen = niov};

	if (nfds > HOST_FDS_MAX) {
		errno = EINVAL;
		return -1;
	}
	if (nfds > 0) {
		memset(&control, 0, CMSG_SPACE(nfds * sizeof(int)));
		msg.msg_control = control.buf;
		msg.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
		struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(nfds * sizeof(int));
		memcpy(CMSG_DATA(cmsg), fds, nfds * sizeof(int));
	}
	return RETRY(sendmsg(sock, &msg, MSG_NOSIGNAL)) < 0 ? -1 : 0;
}

/* A plugin may have closed 0, 1 or 2, which are put in place by number later:
 * nothing else may be there. */
static int above_stdio(int fd)
{
	if (fd > 2)
		return fd;
	int moved = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	close(fd);
	return moved;
}

/* Copies the descriptors of msg to fds and closes those beyond max. */
static size_t take_fds(struct msghdr *msg, int *fds, size_t max)
{
	size_t n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c != NULL; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < count; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			fd = above_stdio(fd);
			if (n < max && fd >= 0)
				fds[n++] = fd;
			else if (fd >= 0)
				close(fd);
		}
	}
	return n;
}

ssize_t packet_recv(int sock, void *buf, size_t cap, int *fds, size_t max, size_t *nfds)
{
	union control control;
	struct iovec iov = {.iov_base = buf, .iov_len = cap};
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.buf,
		.msg_controllen = sizeof(control.buf),
	};
	ssize_t n = RETRY(recvmsg(sock, &msg, MSG_CMSG_CLOEXEC));

	*nfds = 0;
	if (n < 0)
		return -1;
	*nfds = take_fds(&msg, fds, max);
	if (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
		while (*nfds > 0)
			close(fds[--*nfds]);
		errno = EMSGSIZE;
		return -1;
	}
	return n;
}
