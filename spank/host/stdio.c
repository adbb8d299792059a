// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "host.h"
#include "util.h"

/* Opens a file of the user's, as the user. Without blocking: a FIFO would keep
 * the step waiting for its other side. -1 with errno. */
static int open_path(const struct stream *s)
{
	int fd = user_open(s->path, (int)s->index | O_NOCTTY | O_NONBLOCK, 0666);
	int now = fd < 0 ? -1 : fcntl(fd, F_GETFL);

	if (fd >= 0 && (now < 0 || fcntl(fd, F_SETFL, now & ~O_NONBLOCK) < 0)) {
		close(fd);
		return -1;
	}
	return fd;
}

/* Opens one stream and makes it one of the table, so that the tasks share it. */
static bool open_early(struct host *h, struct stream *s, uint32_t fd, struct outcome *out)
{
	uint8_t buf[8];
	struct writer w = wr_init(buf, sizeof(buf));
	int opened = open_path(s);

	if (opened < 0)
		return fail(out, errno, "Could not open %s file \"%s\"",
			    fd == 1 ? "stdout" : "stderr", s->path);
	wr_u32(&w, REP_STREAM);
	wr_u32(&w, fd);
	struct iovec iov = {buf, w.len};
	if (packet_send(h->control, &iov, 1, &opened, 1) < 0) {
		int error = errno;

		close(opened);
		return fail(out, error, "cannot hand stepd the file \"%s\"", s->path);
	}
	h->fds = must_grow(h->fds, h->nfds + 1, sizeof(*h->fds));
	h->fds[h->nfds] = opened;
	s->kind = STREAM_FD;
	s->index = (uint32_t)h->nfds++;
	h->early = true;
	return true;
}

bool stdio_open_early(struct host *h, struct outcome *out)
{
	for (size_t i = 0; i <= h->step.ntasks; i++) {
		for (uint32_t fd = 1; fd <= 2; fd++) {
			struct stream *s = &h->step.ranks[i].stream[fd];

			if (s->kind == STREAM_EARLY && !open_early(h, s, fd, out))
				return false;
		}
	}
	return true;
}

static void put(struct host *h, int from, int fd, const char *object)
{
	if (dup2(from, fd) < 0)
		task_fail(h, STAGE_STDIO, errno, object, 1);
}

/* Reports why a file of the user's cannot be opened, and ends. */
static _Noreturn void open_failed(struct host *h, const char *path, int error)
{
	char why[WHY_MAX] = "";

	(void)why_open(path, error, why, sizeof(why));
	task_fail_why(h, STAGE_STDIO, error, path, why, 1);
}

/* Whether the first task has emptied the file that all write to. Where it could
 * not, each does what it can. */
static bool is_emptied(const struct host *h)
{
	struct pollfd pipe = {.fd = h->emptied[0], .events = POLLIN};

	return pipe.fd >= 0 && RETRY(poll(&pipe, 1, -1)) == 1 && (pipe.revents & POLLIN) != 0;
}

/* Puts the task's descriptors 0, 1 and 2 in their places. Nothing we hold is below 3,
 * and nothing that we open is, even after a hook that closed them. */
void task_stdio(struct host *h)
{
	for (int fd = 0; fd <= 2; fd++) {
		if (fcntl(fd, F_GETFD) < 0)
			put(h, h->null, fd, "/dev/null");
	}
	for (int fd = 0; fd <= 2; fd++) {
		struct stream s = step_stream(&h->step, h->rank, fd);
		int opened;

		switch (s.kind) {
		case STREAM_TERMINAL:
			/* Before anything else has it: what the task starts shares it. */
			if (fd == 0 && ioctl(h->fds[s.index], TIOCSCTTY, 0) < 0)
				task_fail(h, STAGE_STDIO, errno, "the step's terminal", 1);
			put(h, h->fds[s.index], fd, "the step's terminal");
			break;
		case STREAM_FD:
			put(h, h->fds[s.index], fd, "stream");
			break;
		case STREAM_FILE:
			if (h->rank > 0 && (s.index & O_TRUNC) != 0 &&
			    !h->step.ranks[h->rank].own_stream[fd] && is_emptied(h))
				s.index &= ~(uint32_t)O_TRUNC;
			opened = open_path(&s);
			if (opened < 0)
				open_failed(h, s.path, errno);
			put(h, opened, fd, s.path);
			close(opened);
			break;
		case STREAM_SAME:
			put(h, 1, fd, "stream");
			break;
		default:
			put(h, h->null, fd, "/dev/null");
			break;
		}
	}
	if (h->rank == 0 && h->emptied[1] >= 0)
		(void)!write(h->emptied[1], "", 1);
}
