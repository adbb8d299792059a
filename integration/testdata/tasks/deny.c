// SPDX-License-Identifier: Apache-2.0
/* deny CALL HOW FIRST COMMAND...: runs COMMAND where the system call CALL fails with
 * EPERM (HOW is errno), or says that it has succeeded and does nothing (HOW is lie);
 * where FIRST is not -, only with that first argument. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int number(const char *name)
{
	static const struct {
		const char *name;
		int nr;
	} calls[] = {
		{"setgroups", SYS_setgroups}, {"setresgid", SYS_setresgid},
		{"setresuid", SYS_setresuid}, {"setuid", SYS_setuid},
		{"prctl", SYS_prctl},	      {"capget", SYS_capget},
	};

	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		if (strcmp(calls[i].name, name) == 0)
			return calls[i].nr;
	fprintf(stderr, "deny: no call \"%s\"\n", name);
	exit(99);
}

int main(int argc, char **argv)
{
	if (argc < 5)
		return 99;
	unsigned int nr = number(argv[1]);
	unsigned int verdict = SECCOMP_RET_ERRNO | (strcmp(argv[2], "lie") == 0 ? 0 : EPERM);
	int any = strcmp(argv[3], "-") == 0;
	unsigned int first = any ? 0 : strtoul(argv[3], NULL, 0);
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, first, 0, any ? 0 : 1),
		BPF_STMT(BPF_RET | BPF_K, verdict),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};

	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0) {
		perror("deny: seccomp");
		return 99;
	}
	execv(argv[4], argv + 4);
	perror(argv[4]);
	return 99;
}
