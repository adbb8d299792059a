// SPDX-License-Identifier: Apache-2.0
/* Why a program cannot be exec'd, in words. */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host.h"
#include "test.h"

static void write_bytes(const char *path, const void *p, size_t n)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0755);

	CHECK(fd >= 0 && write(fd, p, n) == (ssize_t)n);
	close(fd);
}

/* A 64-bit binary with one PT_INTERP, as far as anything reads it. */
struct tiny_elf {
	Elf64_Ehdr eh;
	Elf64_Phdr ph;
	char interp[16];
};

static struct tiny_elf make_elf(void)
{
	struct tiny_elf e = {
		.eh.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB, 1},
		.eh.e_phoff = offsetof(struct tiny_elf, ph),
		.eh.e_phentsize = sizeof(Elf64_Phdr),
		.eh.e_phnum = 1,
		.ph.p_type = PT_INTERP,
		.ph.p_offset = offsetof(struct tiny_elf, interp),
		.ph.p_filesz = sizeof("/no/ld.so"),
		.interp = "/no/ld.so",
	};

	return e;
}

static void test_explain_scripts(void)
{
	bool script;
	static const struct {
		const char *text, *want; /* NULL: nothing to explain */
	} cases[] = {
		{"#!/no/such\n", "/no/such"},
		{"#! \t /no/such -x y\n", "/no/such"},
		{"#!/no/such", "/no/such"},
		{"#!/bin/sh/x\n", "/bin/sh/x"},
		{"#!/bin/sh\n", NULL},
		{"#!\n", NULL},
		{"#!", NULL},
		{"", NULL},
		{"#", NULL},
		{"echo hello\n", NULL},
	};
	char path[] = "/tmp/explainXXXXXX", interp[256];

	close(mkstemp(path));
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		write_bytes(path, cases[i].text, strlen(cases[i].text));
		CHECK_INT(explain_interpreter(path, interp, sizeof(interp), &script),
			  cases[i].want != NULL);
		if (cases[i].want)
			CHECK_STR(interp, cases[i].want);
	}
	char small[4];
	write_bytes(path, "#!/no/such\n", 11);
	CHECK(!explain_interpreter(path, small, sizeof(small), &script));
	unlink(path);
	CHECK(!explain_interpreter(path, interp, sizeof(interp), &script));
	CHECK(!explain_interpreter("/dev/zero", interp, sizeof(interp), &script));
}

static void test_explain_binaries(void)
{
	bool script;
	char path[] = "/tmp/explainXXXXXX", interp[256];
	struct tiny_elf good = make_elf(), e;

	close(mkstemp(path));
	write_bytes(path, &good, sizeof(good));
	CHECK(explain_interpreter(path, interp, sizeof(interp), &script));
	CHECK_STR(interp, "/no/ld.so");
#define SPOILED(field, value)                                                                      \
	(e = good, e.field = (value), write_bytes(path, &e, sizeof(e)),                            \
	 !explain_interpreter(path, interp, sizeof(interp), &script))
	CHECK(SPOILED(eh.e_phoff, UINT64_MAX));
	CHECK(SPOILED(eh.e_phoff, sizeof(good) - 3));
	CHECK(SPOILED(eh.e_phnum, 0));
	CHECK(SPOILED(eh.e_phnum, 0xffff));
	CHECK(SPOILED(eh.e_phentsize, 1));
	CHECK(SPOILED(eh.e_ident[EI_DATA], ELFDATA2MSB));
	CHECK(SPOILED(eh.e_ident[EI_CLASS], 9));
	CHECK(SPOILED(ph.p_type, PT_LOAD));
	CHECK(SPOILED(ph.p_filesz, 0));
	CHECK(SPOILED(ph.p_filesz, 9)); /* not terminated */
	CHECK(SPOILED(ph.p_filesz, UINT64_MAX));
	CHECK(SPOILED(ph.p_offset, UINT64_MAX));
	CHECK(SPOILED(ph.p_offset, 1 << 20));
	CHECK(SPOILED(interp[0], 0));
	for (size_t len = 0; len < sizeof(Elf64_Ehdr) + sizeof(Elf64_Phdr); len++) {
		write_bytes(path, &good, len);
		CHECK(!explain_interpreter(path, interp, sizeof(interp), &script));
	}
	unlink(path);
	CHECK(!explain_interpreter("/proc/self/exe", interp, sizeof(interp),
				   &script)); /* its loader exists */
}

int main(void)
{
	RUN(test_explain_scripts);
	RUN(test_explain_binaries);
	return 0;
}
