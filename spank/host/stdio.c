// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>

#include "host.h"
#include "util.h"

/* Opens a file of the user's, as the user. Without blocking: a FIFO would keep
 * the step waiting for its other side. */
static int open_path(struct host *h, const struct stream *s)
{
	int flags = (int)s->index | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
	int fd = (int)RETRY(open(s->path, flags, 0666));

	if (fd < 0)
		task_fail(h, STAGE_STDIO, errno, s->path, 1);
	int now = fcntl(fd, F_GETFL);
	if (now < 0 || fcntl(fd, F_SETFL, now & ~O_NONBLOCK) < 0)
		task_fail(h, STAGE_STDIO, errno, s->path, 1);
	return fd;
}

static void put(struct host *h, int from, int fd, const char *object)
{
	if (dup2(from, fd) < 0)
		task_fail(h, STAGE_STDIO, errno, object, 1);
}

/* Puts the task's descriptors 0, 1 and 2 in their places. Nothing we hold is below 3. */
void task_stdio(struct host *h)
{
	for (int fd = 0; fd <= 2; fd++) {
		struct stream s = step_stream(&h->step, h->rank, fd);
		int opened;

		switch (s.kind) {
		case STREAM_FD:
			put(h, h->fds[s.index], fd, "stream");
			break;
		case STREAM_FILE:
			opened = open_path(h, &s);
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
}
