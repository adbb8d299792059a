// SPDX-License-Identifier: Apache-2.0
/* Time from the start of spankhost ($SPANKHOST), with the plugins that are named, to
 * the exec of the last of N tasks, and of a bare fork+exec loop beside it. A task
 * counts as exec'd at its exec pipe's end of file. bench [N [RUNS [PLUGIN...]]] */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"
#include "test.h"

/* CPU time of ours and of all that we waited for. */
static double cpu_us(void)
{
	static const int who[] = {RUSAGE_SELF, RUSAGE_CHILDREN};
	double sum = 0;

	for (int i = 0; i < 2; i++) {
		struct rusage ru;

		getrusage(who[i], &ru);
		sum += (double)(ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) * 1e6;
		sum += (double)(ru.ru_utime.tv_usec + ru.ru_stime.tv_usec);
	}
	return sum;
}

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void wait_eof(int fd)
{
	char c;

	while (read(fd, &c, 1) > 0)
		;
}

static char **plugins; /* their paths; ends with NULL */

static double step(uint32_t n)
{
	struct scene s = {.ntasks = n, .argv = {"/bin/true"}, .env = {"PATH=/bin"}};
	struct driver d;

	for (int i = 0; plugins[i] != NULL && i < SCENE_PLUGINS; i++)
		s.plugins[i] = (struct plugin_line){.path = plugins[i], .required = true};
	double start = now_us();

	drv_start(&d);
	drv_setup(&d, &s);
	CHECK_INT(drv_init(&d, &s).rc, 0);
	drv_fork(&d);
	CHECK_INT(drv_do(&d, CMD_POST_FORK, NULL, NULL, 0).rc, 0);
	drv_open_gate(&d);
	for (uint32_t i = 0; i < n; i++)
		wait_eof(d.exec_pipes[i]);
	double took = now_us() - start;
	CHECK_STR(drv_do(&d, CMD_WAIT, NULL, NULL, 0).what, "");
	for (uint32_t i = 0; i < n; i++)
		CHECK_INT(d.status[i], 0);
	CHECK_INT(drv_do(&d, CMD_EXIT, NULL, NULL, 0).rc, 0);
	drv_end(&d);
	return took;
}

static double bare(uint32_t n)
{
	int *pipes = calloc(n, sizeof(*pipes));
	double start = now_us();

	for (uint32_t i = 0; i < n; i++) {
		int p[2];

		CHECK(pipe2(p, O_CLOEXEC) == 0);
		if (fork() == 0) {
			execl("/bin/true", "true", (char *)NULL);
			_exit(1);
		}
		close(p[1]);
		pipes[i] = p[0];
	}
	for (uint32_t i = 0; i < n; i++)
		wait_eof(pipes[i]);
	double took = now_us() - start;
	for (uint32_t i = 0; i < n; i++) {
		close(pipes[i]);
		wait(NULL);
	}
	free(pipes);
	return took;
}

static void report(const char *what, uint32_t n, int runs, double (*one)(uint32_t))
{
	double *took = calloc((size_t)runs, sizeof(*took));
	double cpu = cpu_us();

	for (int i = 0; i < runs; i++)
		took[i] = one(n);
	qsort(took, (size_t)runs, sizeof(*took), by_value);
	printf("%-10s %5u tasks  median %8.0f us  p90 %8.0f us  cpu %8.0f us  (%d runs)\n", what, n,
	       took[runs / 2], took[runs * 9 / 10], (cpu_us() - cpu) / runs, runs);
	free(took);
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 1, runs = argc > 2 ? atoi(argv[2]) : 50;

	plugins = argv + (argc > 3 ? 3 : argc);
	CHECK(n > 0 && runs > 0 && geteuid() == 0);
	report("spankhost", (uint32_t)n, runs, step);
	report("bare loop", (uint32_t)n, runs, bare);
	return 0;
}
