/* SPDX-License-Identifier: Apache-2.0
 *
 * A known load, and its own word on it: what accounting is compared with.
 *
 *	load cpu_ms=5 mem=67108864 write=1048576 read=1048576 file=PATH report=PATH keep hold
 *
 * touches mem bytes, writes and reads as many bytes of the file, burns CPU until
 * it has used cpu_ms in all, and reports what getrusage(2) says then: into a file,
 * which is mapped, or to stdout. Its end is as short as it can be: what comes
 * after the report is in the kernel's figures, and not in its own. hold waits for
 * the end of stdin before that.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define CHUNK (1 << 16)
#define WORD  4096

static char buffer[CHUNK];

static void die(const char *what)
{
	fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* The value of an argument "name=value". */
static const char *option(char **argv, const char *name, const char *fallback)
{
	size_t len = strlen(name);

	for (char **a = argv + 1; *a != NULL; a++) {
		if (strncmp(*a, name, len) == 0 && (*a)[len] == '=')
			return *a + len + 1;
		if (strcmp(*a, name) == 0)
			return "";
	}
	return fallback;
}

static size_t size(char **argv, const char *name)
{
	return strtoull(option(argv, name, "0"), NULL, 10);
}

static int64_t cpu_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

/* Touches every page, and gives them back unless they are to be kept: their end
 * belongs to the load. */
static void touch(size_t bytes, bool keep)
{
	if (bytes == 0)
		return;
	char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("mmap");
	for (size_t i = 0; i < bytes; i += 4096)
		((volatile char *)p)[i] = 1;
	if (!keep && munmap(p, bytes) < 0)
		die("munmap");
}

static size_t write_file(const char *path, size_t bytes)
{
	size_t done = 0;
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	if (fd < 0)
		die(path);
	while (done < bytes) {
		size_t left = bytes - done;
		ssize_t n = write(fd, buffer, left < CHUNK ? left : CHUNK);
		if (n <= 0)
			die("write");
		done += (size_t)n;
	}
	close(fd);
	return done;
}

/* Reads so many bytes of the file, from its beginning again at its end. */
static size_t read_file(const char *path, size_t bytes)
{
	size_t done = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		die(path);
	while (done < bytes) {
		size_t left = bytes - done;
		ssize_t n = read(fd, buffer, left < CHUNK ? left : CHUNK);
		if (n < 0 || (n == 0 && lseek(fd, 0, SEEK_CUR) == 0))
			die("read");
		if (n == 0)
			lseek(fd, 0, SEEK_SET);
		done += (size_t)n;
	}
	close(fd);
	return done;
}

/* The program's own word, as JSON; its length. */
static int word(char *text, size_t room, size_t touched, size_t written, size_t read_back)
{
	struct rusage ru;

	getrusage(RUSAGE_SELF, &ru);
	return snprintf(text, room,
			"{\"cpu_seconds\":%.6f,\"maxrss_kb\":%ld,\"minor_faults\":%ld,"
			"\"touched\":%zu,\"written\":%zu,\"read\":%zu}\n",
			(double)(ru.ru_utime.tv_sec + ru.ru_stime.tv_sec) +
				(double)(ru.ru_utime.tv_usec + ru.ru_stime.tv_usec) / 1e6,
			ru.ru_maxrss, ru.ru_minflt, touched, written, read_back);
}

/* Memory that is the file; NULL without one. */
static char *map_report(const char *path)
{
	if (path == NULL)
		return NULL;
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	if (fd < 0 || ftruncate(fd, WORD) < 0)
		die(path);
	char *p = mmap(NULL, WORD, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (p == MAP_FAILED)
		die("mmap");
	close(fd);
	return p;
}

int main(int argc, char **argv)
{
	(void)argc;
	size_t mem = size(argv, "mem"), want_write = size(argv, "write"),
	       want_read = size(argv, "read");
	const char *file = option(argv, "file", NULL);
	size_t written = 0, read_back = 0;
	char text[WORD], *mapped = map_report(option(argv, "report", NULL));
	char *report = mapped != NULL ? mapped : text;

	touch(mem, option(argv, "keep", NULL) != NULL);
	if (want_write > 0)
		written = write_file(file, want_write);
	if (want_read > 0)
		read_back = read_file(file, want_read);
	if (file != NULL && want_write > 0)
		unlink(file);
	word(report, WORD, mem, written, read_back); /* so that it costs nothing later */
	int64_t until = (int64_t)size(argv, "cpu_ms") * 1000;
	while (cpu_us() < until)
		for (volatile int i = 0; i < 1000; i++)
			;
	if (option(argv, "hold", NULL) != NULL) {
		while (read(STDIN_FILENO, buffer, sizeof(buffer)) > 0)
			;
	}
	int len = word(report, WORD, mem, written, read_back);
	_exit(mapped != NULL || write(STDOUT_FILENO, text, (size_t)len) == len ? 0 : 1);
}
