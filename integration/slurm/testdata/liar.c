/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes an srun lie to its step daemon: LIE is what it does to each connection
 * that it accepts. "close" closes it at once, "silent" never reads it,
 * "garbage" answers nonsense and does not read. "token" has srun answer with
 * a token that munged has not made. (LD_PRELOAD)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int accepted;

static int lie(int fd)
{
	const char *how = getenv("LIE");
	char nonsense[4096];

	if (fd < 0 || !how)
		return fd;
	accepted = 1;
	if (strcmp(how, "token") == 0)
		return fd;
	if (strcmp(how, "garbage") == 0) {
		memset(nonsense, 0x5a, sizeof(nonsense));
		(void)!write(fd, nonsense, sizeof(nonsense));
	}
	if (strcmp(how, "close") == 0)
		close(fd);
	errno = EAGAIN; /* the others stay open, and no one has their number */
	return -1;
}

int accept4(int fd, struct sockaddr *addr, socklen_t *size, int flags)
{
	int (*real)(int, struct sockaddr *, socklen_t *, int) = dlsym(RTLD_NEXT, "accept4");

	return lie(real(fd, addr, size, flags));
}

int accept(int fd, struct sockaddr *addr, socklen_t *size)
{
	int (*real)(int, struct sockaddr *, socklen_t *) = dlsym(RTLD_NEXT, "accept");

	return lie(real(fd, addr, size));
}

/* Of libmunge. Before the first connection srun needs tokens that are good. */
int munge_encode(char **token, void *ctx, const void *data, int size)
{
	void *munge = dlopen("libmunge.so.2", RTLD_LAZY | RTLD_NOLOAD); /* Slurm's plugin has it */
	int (*real)(char **, void *, const void *, int) = dlsym(munge, "munge_encode");
	const char *how = getenv("LIE");

	if (!accepted || !how || strcmp(how, "token") != 0)
		return real(token, ctx, data, size);
	*token = strdup("MUNGE:AwQDAAAnonsense:");
	return 0;
}
