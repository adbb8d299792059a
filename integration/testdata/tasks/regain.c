/* SPDX-License-Identifier: Apache-2.0
 *
 * Tries every way back to root that the kernel has for a process without
 * capabilities, and what a leaked descriptor would give. Prints what worked,
 * or "all refused".
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int worked;

static void attempt(const char *what, long rc)
{
	if (rc >= 0) {
		printf("%s worked\n", what);
		worked = 1;
	}
}

int main(void)
{
	gid_t none[] = {0};
	struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct data[2] = {{~0U, ~0U, 0}, {~0U, ~0U, 0}};

	attempt("setuid", setuid(0));
	attempt("seteuid", seteuid(0));
	attempt("setresuid", setresuid(-1, 0, -1));
	attempt("saved uid", setresuid(0, 0, 0));
	attempt("setgid", setgid(0));
	attempt("setresgid", setresgid(-1, 0, -1));
	attempt("setgroups", setgroups(1, none));
	attempt("capset", syscall(SYS_capset, &head, data));
	attempt("ambient", prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_SYS_ADMIN, 0, 0));
	attempt("mount", mount("none", "/mnt", "tmpfs", 0, NULL));
	attempt("chroot", chroot("/"));
	attempt("shadow", open("/etc/shadow", O_RDONLY));
	for (int fd = 3; fd < 1024; fd++) {
		struct stat st;
		if (fstat(fd, &st) == 0) {
			printf("descriptor %d is open\n", fd);
			worked = 1;
		}
	}
	if (!worked)
		printf("all refused\n");
	return worked;
}
