// SPDX-License-Identifier: Apache-2.0
// pump w BYTES WIDTH writes lines of WIDTH bytes to stdout; pump r reads stdin to its
// end and writes the number of bytes to stderr, and the nanoseconds from the first
// to the end.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char buf[256 << 10];

static long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int read_all(void)
{
	long long sum = 0, begin = 0;
	ssize_t n;

	while ((n = read(0, buf, sizeof(buf))) > 0) {
		if (sum == 0)
			begin = now();
		sum += n;
	}
	fprintf(stderr, "pumped %lld %lld\n", sum, now() - begin);
	return n < 0;
}

static int write_all(long long bytes, size_t width)
{
	size_t size = sizeof(buf) / 4 / width * width; // 64 KiB, as stdio's own are smaller

	memset(buf, 'x', size);
	for (size_t i = width; i <= size; i += width)
		buf[i - 1] = '\n';
	while (bytes > 0) {
		ssize_t n = write(1, buf, bytes < (long long)size ? (size_t)bytes : size);

		if (n < 0)
			return 1;
		bytes -= n;
	}
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 2 && argv[1][0] == 'r')
		return read_all();
	if (argc != 4 || atoi(argv[3]) < 1)
		return 2;
	return write_all(atoll(argv[2]), (size_t)atoi(argv[3]));
}
