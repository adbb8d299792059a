// SPDX-License-Identifier: Apache-2.0
/* Why a task's file could not be used: which part of its path, whose interpreter,
 * which mount. Looked for where it happened: as the user, in the job's mounts, right
 * after the call that failed. Paths and files are the user's: every read is bounded,
 * and nothing is opened that could block. */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "host.h"
#include "util.h"

/* Links that are followed on one path, as the kernel does (MAXSYMLINKS). */
#define LINKS_MAX 40

__attribute__((format(printf, 3, 4))) static bool say(char *why, size_t size, const char *format,
						      ...)
{
	va_list ap;

	va_start(ap, format);
	vsnprintf(why, size, format, ap);
	va_end(ap);
	return true;
}

/* The mount that a file is on, as the last folder above it on the same device. */
static void mount_of(const char *path, char *buf, size_t size)
{
	struct stat st, up;

	snprintf(buf, size, "%s", path);
	if (stat(buf, &st) < 0)
		return;
	for (char *slash; (slash = strrchr(buf, '/')) != NULL && slash != buf;) {
		*slash = 0;
		if (stat(buf, &up) < 0 || up.st_dev != st.st_dev) {
			*slash = '/';
			return;
		}
	}
}

static bool why_not_run(const char *path, const struct stat *st, char *why, size_t size)
{
	char mount[PATH_MAX];
	struct statvfs fs;

	if (S_ISDIR(st->st_mode))
		return say(why, size, "\"%s\" is a directory", path);
	if (!S_ISREG(st->st_mode))
		return say(why, size, "\"%s\" is no regular file", path);
	if ((st->st_mode & 0111) == 0)
		return say(why, size, "\"%s\" has mode %04o: no user may execute it", path,
			   st->st_mode & 07777);
	if (statvfs(path, &fs) == 0 && (fs.f_flag & ST_NOEXEC)) {
		mount_of(path, mount, sizeof(mount));
		return say(why, size,
			   "\"%s\" is on a file system that is mounted noexec, at \"%s\"", path,
			   mount);
	}
	if (faccessat(AT_FDCWD, path, X_OK, AT_EACCESS) < 0)
		return say(why, size,
			   "\"%s\" has mode %04o and belongs to %u:%u: user %u may not execute it",
			   path, st->st_mode & 07777, st->st_uid, st->st_gid, geteuid());
	return false;
}

/* What is wrong with one folder on the way, or with the file at its end. */
static bool why_part(const char *path, bool last, char *why, size_t size)
{
	char target[PATH_MAX];
	struct stat link, st;

	if (lstat(path, &link) < 0) {
		if (errno == ENOENT)
			return say(why, size, "%s\"%s\" does not exist",
				   last ? "" : "the directory ", path);
		return say(why, size, "\"%s\": %s", path, strerror(errno));
	}
	if (stat(path, &st) < 0) {
		int error = errno;
		ssize_t n = readlink(path, target, sizeof(target) - 1);

		if (!S_ISLNK(link.st_mode) || n < 0)
			return say(why, size, "\"%s\": %s", path, strerror(error));
		target[n] = 0;
		if (error == ENOENT)
			return say(why, size, "\"%s\" is a link to \"%s\", which does not exist",
				   path, target);
		return say(why, size, "\"%s\" is a link to \"%s\": %s", path, target,
			   strerror(error));
	}
	if (last)
		return false;
	if (!S_ISDIR(st.st_mode))
		return say(why, size, "\"%s\" is no directory", path);
	if (faccessat(AT_FDCWD, path, X_OK, AT_EACCESS) < 0)
		return say(
			why, size,
			"the directory \"%s\" has mode %04o and belongs to %u:%u: user %u may not "
			"enter it",
			path, st.st_mode & 07777, st.st_uid, st.st_gid, geteuid());
	return false;
}

bool why_path(const char *path, char *why, size_t size)
{
	char part[PATH_MAX];
	size_t len = strlen(path);

	if (len == 0 || len >= sizeof(part))
		return false;
	if (path[0] != '/' && why_part(".", false, why, size))
		return true;
	for (size_t at = 1; at <= len; at++) {
		if (path[at] != '/' && path[at] != 0)
			continue;
		if (path[at - 1] == '/')
			continue; /* two slashes, or one at the end */
		memcpy(part, path, at);
		part[at] = 0;
		if (why_part(part, path[at] == 0, why, size))
			return true;
	}
	return false;
}

bool why_open(const char *path, int error, char *why, size_t size)
{
	char dir[PATH_MAX];
	struct stat st;

	if (error != ENOENT && error != EACCES && error != ENOTDIR && error != ELOOP)
		return false;
	if (stat(path, &st) == 0 && error == ELOOP)
		return say(why, size,
			   "\"%s\" leads through a link of /proc that stands for an open file or "
			   "a process's folder, as /dev/stdout does: such links are not followed",
			   path);
	if (stat(path, &st) == 0)
		return error == EACCES &&
		       say(why, size,
			   "\"%s\" has mode %04o and belongs to %u:%u: user %u may not open it so",
			   path, st.st_mode & 07777, st.st_uid, st.st_gid, geteuid());
	if (error != EACCES || errno != ENOENT)
		return why_path(path, why, size);
	/* It is to be made, in a directory that exists. */
	snprintf(dir, sizeof(dir), "%s", path);
	char *slash = strrchr(dir, '/');
	if (slash == NULL)
		strcpy(dir, ".");
	else
		slash[slash == dir] = 0;
	return stat(dir, &st) == 0 && say(why, size,
					  "the directory \"%s\" has mode %04o and belongs to "
					  "%u:%u: user %u may make no file in "
					  "it",
					  dir, st.st_mode & 07777, st.st_uid, st.st_gid, geteuid());
}

static const char *machine_name(unsigned machine)
{
	static const struct {
		unsigned machine;
		const char *name;
	} known[] = {{EM_386, "i386"},	 {EM_X86_64, "x86_64"}, {EM_AARCH64, "aarch64"},
		     {EM_ARM, "arm"},	 {EM_PPC64, "ppc64"},	{EM_RISCV, "riscv"},
		     {EM_S390, "s390x"}, {EM_MIPS, "mips"},	{EM_SPARCV9, "sparc64"}};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		if (known[i].machine == machine)
			return known[i].name;
	}
	return NULL;
}

/* What the kernel does not know how to run (ENOEXEC). */
static bool why_format(const char *path, char *why, size_t size)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	unsigned char head[20];
	struct utsname here;
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return false;
	ssize_t len = pread(fd, head, sizeof(head), 0);
	if (len == 0)
		return say(why, size, "\"%s\" is empty", path);
	if (len < (ssize_t)sizeof(head) || memcmp(head, ELFMAG, SELFMAG) != 0) {
		if (len > 2 && head[0] == '#' && head[1] == '!')
			return say(why, size, "the first line of \"%s\" names no interpreter",
				   path);
		return say(why, size,
			   "\"%s\" is no program, and its first line does not begin with #!", path);
	}
	unsigned machine = head[EI_DATA] == ELFDATA2MSB ? (head[18] << 8 | head[19])
							: (head[19] << 8 | head[18]);
	const char *name = machine_name(machine);
	if (uname(&here) < 0 || name == NULL || strcmp(name, here.machine) == 0)
		return say(why, size, "\"%s\" is a program that this machine cannot run", path);
	return say(why, size, "\"%s\" is a program for %s, and this node is %s", path, name,
		   here.machine);
}

/* What is wrong with what runs the file: its interpreter or loader, or with theirs. */
static bool why_interpreter(const char *path, char *why, size_t size)
{
	char current[PATH_MAX], next[PATH_MAX], inner[PATH_MAX + 256];
	struct stat st;
	bool script;

	snprintf(current, sizeof(current), "%s", path);
	for (int depth = 0; depth < 5; depth++) {
		if (!interpreter_of(current, next, sizeof(next), &script))
			return false;
		size_t n = strlen(next);
		if (script && n > 0 && next[n - 1] == '\r')
			return say(why, size,
				   "the first line of \"%s\" ends with a carriage return: the file "
				   "has "
				   "the line ends of DOS",
				   current);
		if (why_path(next, inner, sizeof(inner)) ||
		    (stat(next, &st) == 0 && why_not_run(next, &st, inner, sizeof(inner))))
			return say(why, size, "%s of \"%s\": %s",
				   script ? "the interpreter (#!)" : "the loader (PT_INTERP)",
				   current, inner);
		memcpy(current, next, n + 1);
	}
	return say(why, size,
		   "the interpreter of \"%s\" is a script, whose interpreter is one, and so on",
		   path);
}

/* What does not fit: the kernel bounds one string and all together. */
static bool why_too_big(struct host *h, char *why, size_t size)
{
	size_t args = 0, env = 0, longest = 0;
	const char *name = "";

	for (int i = 0; i < h->argc; i++)
		args += strlen(h->argv[i]) + 1;
	for (size_t i = 0; i < h->env.n; i++) {
		size_t n = strlen(h->env.v[i]) + 1;

		env += n;
		if (n > longest) {
			longest = n;
			name = h->env.v[i];
		}
	}
	return say(why, size,
		   "the arguments have %zu bytes, the environment %zu; its longest variable, %.*s, "
		   "has "
		   "%zu",
		   args, env, (int)strcspn(name, "="), name, longest);
}

/* Reports whether the file exists where the job's mounts do not hide it. */
static bool is_outside(struct host *h, const char *path)
{
	struct stat st;

	return h->root >= 0 && path[0] == '/' && path[1] != 0 &&
	       fstatat(h->root, path + 1, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

bool why_exec(struct host *h, const char *path, int error, char *why, size_t size)
{
	struct stat st;

	switch (error) {
	case E2BIG:
		return why_too_big(h, why, size);
	case ENOEXEC:
		return why_format(path, why, size);
	case ETXTBSY:
		return say(why, size, "\"%s\" is open for writing", path);
	case ENOENT:
	case ENOTDIR:
	case EACCES:
	case EPERM:
	case ELOOP:
		break;
	default:
		return false;
	}
	if (why_path(path, why, size)) {
		size_t n = strlen(why);

		if (error == ENOENT && is_outside(h, path))
			snprintf(why + n, size - n,
				 " in the job's container; outside of it, it does");
		return true;
	}
	if (stat(path, &st) == 0 && why_not_run(path, &st, why, size))
		return true;
	return why_interpreter(path, why, size);
}

void why_not_found(struct host *h, const char *found, int error, char *why, size_t size)
{
	const char *path = env_get(&h->env, "PATH");

	why[0] = 0;
	if (error == EACCES && found[0] != 0) {
		(void)why_exec(h, found, error, why, size);
		return;
	}
	if (path == NULL)
		(void)say(why, size, "the environment has no PATH");
	else
		(void)say(why, size, "no directory of PATH has it: %s", path);
}
