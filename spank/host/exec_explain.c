// SPDX-License-Identifier: Apache-2.0
/* execve says ENOENT for a program that exists when what should run it is
 * missing: the interpreter of a script, or the loader of a binary. This finds out
 * which. The file is the user's, and may be anything: every read is bounded. */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host.h"
#include "util.h"

/* The kernel looks at as many bytes of a script (BINPRM_BUF_SIZE). */
#define HEAD_SIZE 256
/* Interpreters that are scripts themselves (exec_binprm allows 5). */
#define DEPTH_MAX 5
#define PHDRS_MAX 512

/* The word after "#!", which is cut where the kernel cuts it. */
static bool script_interpreter(const char *head, size_t len, char *interp, size_t size)
{
	size_t at = 2;

	while (at < len && (head[at] == ' ' || head[at] == '\t'))
		at++;
	size_t n = 0;
	while (at + n < len && strchr(" \t\n", head[at + n]) == NULL) /* a NUL ends it, too */
		n++;
	if (n == 0 || n >= size)
		return false;
	memcpy(interp, head + at, n);
	interp[n] = 0;
	return true;
}

/* Reads the name that a PT_INTERP segment holds. */
static bool read_interp(int fd, uint64_t offset, uint64_t len, char *interp, size_t size)
{
	if (len < 2 || len > size || len > PATH_MAX || offset > INT64_MAX - len)
		return false;
	if (pread(fd, interp, (size_t)len, (off_t)offset) != (ssize_t)len)
		return false;
	return interp[len - 1] == 0 && interp[0] != 0;
}

/* The two classes differ in the widths of the fields alone. */
#define ELF_INTERPRETER(class)                                                                     \
	static bool elf##class(int fd, const char *head, size_t len, char *interp, size_t size)    \
	{                                                                                          \
		Elf##class##_Ehdr eh;                                                              \
		Elf##class##_Phdr ph;                                                              \
                                                                                                   \
		if (len < sizeof(eh))                                                              \
			return false;                                                              \
		memcpy(&eh, head, sizeof(eh));                                                     \
		if (eh.e_phentsize != sizeof(ph) || eh.e_phnum > PHDRS_MAX ||                      \
		    eh.e_phoff > INT32_MAX)                                                        \
			return false;                                                              \
		for (uint32_t i = 0; i < eh.e_phnum; i++) {                                        \
			off_t at = (off_t)eh.e_phoff + (off_t)(i * sizeof(ph));                    \
                                                                                                   \
			if (pread(fd, &ph, sizeof(ph), at) != (ssize_t)sizeof(ph))                 \
				return false;                                                      \
			if (ph.p_type == PT_INTERP)                                                \
				return read_interp(fd, ph.p_offset, ph.p_filesz, interp, size);    \
		}                                                                                  \
		return false;                                                                      \
	}

ELF_INTERPRETER(32)
ELF_INTERPRETER(64)

static bool elf_interpreter(int fd, const char *head, size_t len, char *interp, size_t size)
{
	const int native = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB;

	if (len < EI_NIDENT || memcmp(head, ELFMAG, SELFMAG) != 0 || head[EI_DATA] != native)
		return false;
	if (head[EI_CLASS] == ELFCLASS64)
		return elf64(fd, head, len, interp, size);
	return head[EI_CLASS] == ELFCLASS32 && elf32(fd, head, len, interp, size);
}

bool interpreter_of(const char *path, char *interp, size_t size, bool *script)
{
	/* O_NONBLOCK: it may be a FIFO by now. */
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	char head[HEAD_SIZE];
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return false;
	ssize_t len = pread(fd, head, sizeof(head), 0);
	*script = len > 2 && head[0] == '#' && head[1] == '!';
	if (*script)
		return script_interpreter(head, (size_t)len, interp, size);
	return len > 0 && elf_interpreter(fd, head, (size_t)len, interp, size);
}

bool explain_interpreter(const char *path, char *interp, size_t size, bool *script)
{
	char current[PATH_MAX];

	if (strlen(path) >= sizeof(current))
		return false;
	strcpy(current, path);
	for (int depth = 0; depth < DEPTH_MAX; depth++) {
		if (!interpreter_of(current, interp, size, script) ||
		    strlen(interp) >= sizeof(current))
			return false;
		if (access(interp, F_OK) < 0)
			return errno == ENOENT || errno == ENOTDIR;
		strcpy(current, interp);
	}
	return false;
}
