/* SPDX-License-Identifier: Apache-2.0
 *
 * tracer PID stops a process as a debugger does, says "ready", and looks at it
 * no more: the end of the process stays with it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	pid_t pid = argc == 2 ? atoi(argv[1]) : 0;

	if (pid <= 0 || ptrace(PTRACE_SEIZE, pid, NULL, NULL) < 0 ||
	    ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) < 0) {
		perror("tracer");
		return 1;
	}
	puts("ready");
	fflush(stdout);
	for (;;)
		pause();
}
