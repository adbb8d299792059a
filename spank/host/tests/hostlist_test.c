// SPDX-License-Identifier: Apache-2.0
/* Lists of hosts: what is known of them, then random ones. Where a libslurm is
 * installed it must say the same of each. $FUZZ_SECONDS and $FUZZ_SEED as in
 * fuzz_test.c. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <slurm/slurm.h>
#include <time.h>

#include "hostlist.h"
#include "test.h"

char *slurm_hostlist_nth(hostlist_t *hl, int n);
char *slurm_hostlist_pop(hostlist_t *hl);
hostlist_t *slurm_hostlist_copy(hostlist_t *hl);
hostlist_t *slurm_hostlist_create_dims(const char *hosts, int dims);
char *slurm_hostlist_deranged_string_malloc(hostlist_t *hl);
ssize_t slurm_hostlist_deranged_string(hostlist_t *hl, size_t n, char *buf);
void slurm_xfree(void **item);

static void check_text(char *have, const char *want)
{
	CHECK_STR(have, want);
	free(have);
}

static void test_lists(void)
{
	static const struct {
		const char *text;
		int count;
		const char *ranged, *plain, *uniq;
	} cases[] = {
		{"", 0, "", "", ""},
		{"a", 1, "a", "a", "a"},
		{" a\t,, b\n", 2, "a,b", "a,b", "a,b"},
		{"n[1-3]", 3, "n[1-3]", "n1,n2,n3", "n[1-3]"},
		{"n[1-3,07-09],m4", 7, "n[1-3,07-09],m4", "n1,n2,n3,n07,n08,n09,m4",
		 "m4,n[1-3,07-09]"},
		{"n[098-101]", 4, "n[098-101]", "n098,n099,n100,n101", "n[098-101]"},
		{"n[9-011]", 3, "n[9-11]", "n9,n10,n11", "n[9-11]"},
		{"n[1-2]x[3-4]", 4, "n1x[3-4],n2x[3-4]", "n1x3,n1x4,n2x3,n2x4",
		 "n1x[3-4],n2x[3-4]"},
		{"r[1-2][3-4]", 4, "r[13-14,23-24]", "r13,r14,r23,r24", "r[13-14,23-24]"},
		{"[8-10]", 3, "[8-10]", "8,9,10", "[8-10]"},
		{"n[1,1,1]", 3, "n[1,1,1]", "n1,n1,n1", "n1"},
		{"n10,n9,n1,n2", 4, "n[10,9,1-2]", "n10,n9,n1,n2", "n[1-2,9-10]"},
		{"n01,n2,n03", 3, "n[01,2,03]", "n01,n2,n03", "n[2,01,03]"},
		{"b,a,b", 3, "b,a,b", "b,a,b", "a,b"},
		{"a10b1,a9b1", 2, "a10b1,a9b1", "a10b1,a9b1", "a9b1,a10b1"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		hostlist_t *hl = slurm_hostlist_create(cases[i].text);

		CHECK(hl != NULL);
		CHECK_INT(slurm_hostlist_count(hl), cases[i].count);
		check_text(slurm_hostlist_ranged_string_malloc(hl), cases[i].ranged);
		check_text(slurm_hostlist_deranged_string_malloc(hl), cases[i].plain);
		slurm_hostlist_uniq(hl);
		check_text(slurm_hostlist_ranged_string_malloc(hl), cases[i].uniq);
		slurm_hostlist_destroy(hl);
	}
}

static void test_malformed(void)
{
	static const char *const texts[] = {"n[",
					    "n]",
					    "n[]",
					    "n[1-",
					    "n[1",
					    "n[3-1]",
					    "n[a]",
					    "n[-3]",
					    "n[1--3]",
					    "n[1-2-3]",
					    "n[1-3,]",
					    "n[,1]",
					    "n[[1]]",
					    "n[1]]",
					    "n[1 - 3]",
					    "n[1;2]",
					    "n[1-3]m",
					    "n[1-65537]",
					    "n[0-999999999999999999]",
					    "n[1-9999999999999999999]",
					    "n[1-1000][1-1000]",
					    "a[1][1][1][1][1][1][1][1][1]"};
	hostlist_t *hl = slurm_hostlist_create("keep[1-2]");

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		errno = 0;
		CHECK(slurm_hostlist_create(texts[i]) == NULL);
		CHECK_INT(errno, EINVAL);
		char both[128];
		snprintf(both, sizeof(both), "first,%s", texts[i]);
		CHECK_INT(slurm_hostlist_push(hl, both), 0);
		check_text(slurm_hostlist_ranged_string_malloc(hl), "keep[1-2]");
	}
	slurm_hostlist_destroy(hl);
}

static void test_limits(void)
{
	char name[HOST_NAME_BYTES + 1];
	hostlist_t *hl = slurm_hostlist_create("n[1-65536]");

	CHECK_INT(slurm_hostlist_count(hl), 65536);
	CHECK_INT(slurm_hostlist_push_host(hl, "one-more"), 0);
	CHECK_INT(slurm_hostlist_push(hl, "one-more"), 0);
	slurm_hostlist_uniq(hl);
	check_text(slurm_hostlist_ranged_string_malloc(hl), "n[1-65536]");
	/* Room is made again at the front: such a list must not grow for ever. */
	for (int i = 0; i < 200000; i++) {
		char *host = slurm_hostlist_shift(hl);

		CHECK_INT(slurm_hostlist_push_host(hl, host), 1);
		free(host);
	}
	CHECK(hl->cap <= 4 * HOSTLIST_MAX);
	slurm_hostlist_destroy(hl);
	memset(name, 'x', sizeof(name));
	name[HOST_NAME_BYTES] = 0;
	CHECK(slurm_hostlist_create(name) == NULL);
	hl = slurm_hostlist_create(name + 1);
	CHECK_INT(slurm_hostlist_count(hl), 1);
	slurm_hostlist_destroy(hl);
}

static void test_calls(void)
{
	hostlist_t *hl = slurm_hostlist_create(NULL), *copy;
	char buf[8];

	CHECK(slurm_hostlist_shift(hl) == NULL && slurm_hostlist_pop(hl) == NULL);
	CHECK_INT(slurm_hostlist_push(hl, "n[1-3]"), 3);
	CHECK_INT(slurm_hostlist_push_host(hl, "q[1-3]"), 1); /* as it is */
	CHECK_INT(slurm_hostlist_push_host(hl, ""), 0);
	CHECK_INT(slurm_hostlist_find(hl, "n2"), 1);
	CHECK_INT(slurm_hostlist_find(hl, "n02"), -1);
	check_text(slurm_hostlist_nth(hl, 3), "q[1-3]");
	CHECK(slurm_hostlist_nth(hl, 4) == NULL && slurm_hostlist_nth(hl, -1) == NULL);
	check_text(slurm_hostlist_pop(hl), "q[1-3]");
	copy = slurm_hostlist_copy(hl);
	check_text(slurm_hostlist_shift(hl), "n1");
	CHECK_INT(slurm_hostlist_find(hl, "n2"), 0);
	CHECK_INT(slurm_hostlist_count(copy), 3);
	CHECK_INT(slurm_hostlist_ranged_string(copy, 7, buf), 6);
	CHECK_STR(buf, "n[1-3]");
	CHECK_INT(slurm_hostlist_ranged_string(copy, 6, buf), -1);
	CHECK_STR(buf, "n[1-3");
	CHECK_INT(slurm_hostlist_ranged_string(copy, 0, buf), -1);
	CHECK_INT(slurm_hostlist_deranged_string(copy, 8, buf), -1);
	void *text = slurm_hostlist_ranged_string_xmalloc(copy);
	CHECK_STR((char *)text, "n[1-3]");
	slurm_xfree(&text);
	CHECK(text == NULL);
	slurm_xfree(&text);
	CHECK(slurm_hostlist_create_dims("a", 3) == NULL);
	slurm_hostlist_destroy(copy);
	slurm_hostlist_destroy(hl);
	/* A list of another maker, or none. */
	uint64_t foreign[16] = {57005};
	hl = (hostlist_t *)foreign;
	CHECK(slurm_hostlist_shift(hl) == NULL && slurm_hostlist_count(hl) == 0);
	slurm_hostlist_destroy(hl);
	slurm_hostlist_destroy(NULL);
	CHECK_INT(slurm_hostlist_push(NULL, "a"), 0);
}

/* The functions of an installed libslurm, beside ours; NULL without one. */
static struct {
	void *(*create)(const char *);
	void (*destroy)(void *), (*uniq)(void *);
	int (*count)(void *);
	char *(*ranged)(void *), *(*plain)(void *);
} theirs;

static void find_theirs(void)
{
	static const struct {
		const char *name;
		void *to;
	} names[] = {{"slurm_hostlist_create", &theirs.create},
		     {"slurm_hostlist_destroy", &theirs.destroy},
		     {"slurm_hostlist_uniq", &theirs.uniq},
		     {"slurm_hostlist_count", &theirs.count},
		     {"slurm_hostlist_ranged_string_malloc", &theirs.ranged},
		     {"slurm_hostlist_deranged_string_malloc", &theirs.plain}};
	void *lib = dlopen("libslurm.so.38", RTLD_NOW | RTLD_LOCAL);

	if (lib == NULL) {
		CHECK(getenv("STRICT") == NULL);
		printf("skipped: no libslurm.so.38 to compare with\n");
		return;
	}
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		*(void **)names[i].to = dlsym(lib, names[i].name);
		CHECK(*(void **)names[i].to != NULL);
	}
}

static uint64_t state;

static size_t below(size_t n)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (size_t)(state % n);
}

/* A list that is well-formed, with at most one group in a name's middle. True if
 * all numbers in it have the same width, or none is filled up with zeros. */
static bool random_list(char *text, size_t size)
{
	size_t common = below(2) * (1 + below(4)); /* 0: each its own */

	static const char *const prefixes[] = {"n", "node-", "", "a1b", "A", "rack"};
	size_t len = 0;

	text[0] = 0;
	for (size_t k = 1 + below(5); k > 0; k--) {
		size_t lo = below(120), width = common ? common : 1 + below(4);
		bool group = below(3) == 0;

		len += (size_t)snprintf(text + len, size - len, "%s%s", len ? "," : "",
					prefixes[below(6)]);
		if (group)
			len += (size_t)snprintf(text + len, size - len, "[%zu-%zu]-", lo % 9,
						lo % 9 + below(3));
		if (!group && below(2))
			len += (size_t)snprintf(text + len, size - len, "%0*zu", (int)width, lo);
		else
			len += (size_t)snprintf(text + len, size - len, "[%0*zu-%0*zu,%0*zu]",
						(int)width, lo, (int)width, lo + below(12),
						(int)width, lo + 3);
	}
	return common == 1 || common == 4;
}

/* Sorted only where the numbers are of one kind: of others libslurm 22.05 sorts
 * ranges as they were written, and keeps some duplicates. */
static void compare_with_theirs(const char *text, hostlist_t *hl, bool sorted)
{
	void *other = theirs.create(text);

	CHECK(other != NULL);
	for (int round = 0; round < 1 + sorted; round++) {
		char *ours = slurm_hostlist_ranged_string_malloc(hl), *want = theirs.ranged(other);
		char *plain = slurm_hostlist_deranged_string_malloc(hl);
		char *want_plain = theirs.plain(other);

		if (strcmp(ours, want) != 0 || strcmp(plain, want_plain) != 0) {
			fprintf(stderr, "of \"%s\" (round %d): %s is not %s\n%s is not %s\n", text,
				round, ours, want, plain, want_plain);
			exit(1);
		}
		CHECK_INT(slurm_hostlist_count(hl), theirs.count(other));
		free(ours);
		free(want);
		free(plain);
		free(want_plain);
		slurm_hostlist_uniq(hl);
		theirs.uniq(other);
	}
	theirs.destroy(other);
}

/* What is written is read again as the same. */
static void check_round_trip(hostlist_t *hl)
{
	char *ranged = slurm_hostlist_ranged_string_malloc(hl);
	char *plain = slurm_hostlist_deranged_string_malloc(hl);
	hostlist_t *again = slurm_hostlist_create(ranged);

	CHECK(again != NULL);
	check_text(slurm_hostlist_deranged_string_malloc(again), plain);
	slurm_hostlist_destroy(again);
	free(ranged);
	free(plain);
}

static void fuzz(void)
{
	char text[512];
	hostlist_t *hl;

	bool sorted = random_list(text, sizeof(text));
	hl = slurm_hostlist_create(text);
	CHECK(hl != NULL);
	check_round_trip(hl);
	if (theirs.create != NULL)
		compare_with_theirs(text, hl, sorted);
	slurm_hostlist_destroy(hl);
	/* Spoiled: an answer, and within bounds. */
	static const char odd[] = "[]-,09n \t\xff";
	for (size_t times = 1 + below(6), len = strlen(text); times > 0; times--)
		text[below(len)] = odd[below(sizeof(odd) - 1)];
	char *exact = strdup(text);
	hl = slurm_hostlist_create(exact);
	if (hl != NULL) {
		CHECK(slurm_hostlist_count(hl) <= HOSTLIST_MAX);
		check_round_trip(hl);
		slurm_hostlist_uniq(hl);
		slurm_hostlist_destroy(hl);
	}
	free(exact);
}

static void test_random_lists(void)
{
	const char *seconds = getenv("FUZZ_SECONDS"), *seed = getenv("FUZZ_SEED");
	struct timespec now, end;

	find_theirs();
	clock_gettime(CLOCK_MONOTONIC, &end);
	state = seed ? strtoull(seed, NULL, 10) : (uint64_t)end.tv_nsec + 1;
	printf("FUZZ_SEED=%llu\n", (unsigned long long)state);
	fflush(stdout);
	end.tv_sec += seconds ? atoi(seconds) : 2;
	do {
		for (int i = 0; i < 100; i++)
			fuzz();
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec < end.tv_sec);
}

int main(void)
{
	RUN(test_lists);
	RUN(test_malformed);
	RUN(test_limits);
	RUN(test_calls);
	RUN(test_random_lists);
	return 0;
}
