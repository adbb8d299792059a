// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "host.h"
#include "protocol.h"

/* Held over a whole frame: the library's threads and the main one write. */
static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;

void *must(void *p)
{
	if (p == NULL) {
		dprintf(2, "pmixhost: error: out of memory\n");
		_exit(1);
	}
	return p;
}

/* False at the end of file before the first byte; stepd's death in the middle of a
 * frame is the same. */
static bool read_all(void *buf, size_t len)
{
	uint8_t *p = buf;

	while (len > 0) {
		ssize_t n = read(PMIXHOST_FD_CONTROL, p, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		p += n;
		len -= (size_t)n;
	}
	return true;
}

bool channel_read(struct frame *f)
{
	uint8_t head[4] = {0};
	struct reader r = rd_init(head, sizeof(head));
	uint32_t len;

	*f = (struct frame){0};
	if (!read_all(head, sizeof(head)))
		return false;
	len = rd_u32(&r);
	if (len < 8 || len > PMIXHOST_FRAME_MAX) {
		dprintf(2, "pmixhost: error: a frame of %u bytes: the limit is %d\n", len,
			PMIXHOST_FRAME_MAX);
		_exit(1);
	}
	f->buf = must(malloc(len));
	if (!read_all(f->buf, len)) {
		free(f->buf);
		f->buf = NULL;
		return false;
	}
	f->body = rd_init(f->buf, len);
	f->type = rd_u32(&f->body);
	f->id = rd_u32(&f->body);
	return true;
}

void frame_begin(struct out *w, uint32_t type, uint32_t id)
{
	out_u32(w, 0);
	out_u32(w, type);
	out_u32(w, id);
}

/* When stepd is gone, the main thread sees the end of file, and nothing that is
 * said here matters any more. */
static void write_all(const uint8_t *p, size_t len)
{
	pthread_mutex_lock(&writing);
	while (len > 0) {
		ssize_t n = send(PMIXHOST_FD_CONTROL, p, len, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		p += n;
		len -= (size_t)n;
	}
	pthread_mutex_unlock(&writing);
}

bool frame_send(struct out *w)
{
	bool fits = !w->bad;

	if (fits) {
		out_fill(w, 4);
		write_all(w->p, w->len);
	}
	out_free(w);
	return fits;
}

static void tell(uint32_t id, int32_t status, const char *what)
{
	struct out w = {0};

	frame_begin(&w, REP_DONE, id);
	out_i32(&w, status);
	out_str(&w, what);
	frame_send(&w);
}

void done(uint32_t id, pmix_status_t status, const char *what)
{
	tell(id, status, status == PMIX_SUCCESS ? "" : what);
}

void done_errno(uint32_t id, const char *what)
{
	tell(id, -1000000 - errno, what);
}

void word(const char *format, ...)
{
	struct out w = {0};
	char text[512];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	frame_begin(&w, UP_WORD, 0);
	out_str(&w, text);
	frame_send(&w);
}
