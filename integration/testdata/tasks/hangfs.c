/* SPDX-License-Identifier: Apache-2.0
 *
 * hangfs DIR mounts a file system on DIR that never answers a read of its one
 * file, "file": as a file server does that is gone. It says "ready" when it
 * serves. When it ends, the kernel wakes all that wait.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DIR_NODE = FUSE_ROOT_ID, FILE_NODE = 2 };

static union {
	struct fuse_in_header head;
	char bytes[1 << 17];
} in;

static int reply(int fd, int error, const void *data, size_t len)
{
	struct {
		struct fuse_out_header head;
		char data[512];
	} out = {{(uint32_t)(sizeof out.head + len), -error, in.head.unique}, {0}};

	if (len)
		memcpy(out.data, data, len);
	return write(fd, &out, out.head.len) < 0 && errno != ENOENT ? -1 : 0;
}

static struct fuse_attr attr(uint64_t node)
{
	struct fuse_attr a = {.ino = node, .nlink = 1, .blksize = 4096};

	a.mode = node == DIR_NODE ? S_IFDIR | 0755 : S_IFREG | 0644;
	a.size = node == DIR_NODE ? 0 : 4096;
	return a;
}

static int serve(int fd)
{
	const char *arg = in.bytes + sizeof in.head;

	switch (in.head.opcode) {
	case FUSE_INIT: {
		struct fuse_init_out o = {
			.major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = 4096};

		return reply(fd, 0, &o, sizeof o);
	}
	case FUSE_LOOKUP: {
		struct fuse_entry_out o = {.nodeid = FILE_NODE,
					   .attr_valid = 3600,
					   .entry_valid = 3600,
					   .attr = attr(FILE_NODE)};

		if (strcmp(arg, "lost") == 0)
			return 0; /* no answer */
		return strcmp(arg, "file") == 0 ? reply(fd, 0, &o, sizeof o)
						: reply(fd, ENOENT, NULL, 0);
	}
	case FUSE_GETATTR: {
		struct fuse_attr_out o = {.attr_valid = 3600, .attr = attr(in.head.nodeid)};

		return reply(fd, 0, &o, sizeof o);
	}
	case FUSE_OPEN: {
		/* Not through the page cache: a wait for a page can be killed. */
		struct fuse_open_out o = {.fh = 1, .open_flags = FOPEN_DIRECT_IO};

		return reply(fd, 0, &o, sizeof o);
	}
	case FUSE_READ:
	case FUSE_INTERRUPT:
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
		return 0; /* no answer */
	case FUSE_FLUSH:
	case FUSE_RELEASE:
		return reply(fd, 0, NULL, 0);
	default:
		return reply(fd, ENOSYS, NULL, 0);
	}
}

int main(int argc, char **argv)
{
	char options[128];
	int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);

	if (argc != 2 || fd < 0) {
		perror("hangfs: /dev/fuse");
		return 1;
	}
	snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other",
		 fd);
	if (mount("hangfs", argv[1], "fuse.hangfs", MS_NOSUID | MS_NODEV, options) < 0) {
		perror("hangfs: mount");
		return 1;
	}
	puts("ready");
	fflush(stdout);
	for (;;) {
		ssize_t n = read(fd, &in, sizeof in);

		if (n < 0 && (errno == EINTR || errno == ENOENT))
			continue;
		if (n < (ssize_t)sizeof in.head || serve(fd) < 0)
			return errno == ENODEV ? 0 : 1;
	}
}
