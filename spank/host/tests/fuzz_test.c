// SPDX-License-Identifier: Apache-2.0
/* Throws spoiled input at every decoder for some seconds, under the sanitizers:
 * the blobs of SETUP and STEP, and programs that cannot be exec'd. Nothing is
 * expected of the answers but that there is one. $FUZZ_SECONDS sets the time,
 * $FUZZ_SEED repeats a run. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "blob.h"
#include "host.h"
#include "script.h"
#include "test.h"

static uint64_t state;

/* xorshift64: the same everywhere for a seed. */
static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static size_t below(size_t n)
{
	return (size_t)(next() % n);
}

/* Flips, overwrites, cuts and repeats at random places. */
static void spoil(struct blob *b)
{
	static const uint32_t odd[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 0xffff, 0x10000};

	for (size_t times = 1 + below(8); times > 0 && b->len > 8; times--) {
		size_t at = below(b->len - 4);

		switch (below(4)) {
		case 0:
			b->p[at] ^= (uint8_t)(1u << below(8));
			break;
		case 1:
			memcpy(b->p + at, &odd[below(7)], 4);
			break;
		case 2:
			b->len = at + 4;
			break;
		default:
			memmove(b->p + at, b->p + below(b->len - 4), 4);
			break;
		}
	}
}

/* A copy that ends where its memory ends, so that a step beyond is seen. */
static uint8_t *exact(const struct blob *b)
{
	uint8_t *p = malloc(b->len ? b->len : 1);

	CHECK(p != NULL);
	if (b->len > 0)
		memcpy(p, b->p, b->len);
	return p;
}

static void seed_config(struct blob *b)
{
	for (unsigned int tag = TAG_CONTEXT; tag <= TAG_JOB_ARRAY; tag++) {
		if (tag > TAG_JOB_CONTROL && tag < TAG_JOB_NAME)
			continue; /* of STEP */
		size_t at = blob_open(b, tag);

		switch (tag) {
		case TAG_OPTION:
		case TAG_PLUGIN:
			blob_u32(b, 1);
			blob_str(b, "/plugin.so");
			if (tag == TAG_OPTION) {
				blob_str(b, "name");
				blob_str(b, "value");
			}
			break;
		case TAG_JOB_MEM:
		case TAG_STEP_MEM:
		case TAG_GROUPS:
		case TAG_GLOBAL_IDS:
			blob_u32(b, 1);
			blob_u32(b, 2);
			break;
		case TAG_TITLE:
		case TAG_USER:
		case TAG_NODE_NAME:
		case TAG_JOB_CORES:
		case TAG_STEP_CORES:
		case TAG_ARG:
		case TAG_ENV:
		case TAG_CWD:
		case TAG_PLUGIN_ARG:
		case TAG_HOST_ENV:
		case TAG_JOB_CONTROL:
		case TAG_JOB_NAME:
		case TAG_PARTITION:
		case TAG_NODE_LIST:
		case TAG_CLUSTER:
		case TAG_SUBMIT_HOST:
			blob_str(b, "NAME=value");
			break;
		case TAG_CONTEXT:
			blob_u32(b, S_CTX_LOCAL + (uint32_t)below(5));
			break;
		default:
			blob_u32(b, 1);
			break;
		}
		blob_close(b, at);
	}
}

static void fuzz_config(void)
{
	struct blob b = {0};
	struct config c;
	const char *why;

	seed_config(&b);
	if (below(100) > 0) /* now and then what is right */
		spoil(&b);
	uint8_t *p = exact(&b);
	if (config_decode(&c, p, b.len, &why)) {
		CHECK(c.argv == NULL || c.argv[c.argc] == NULL);
		CHECK(c.env.v[c.env.n] == NULL);
		for (size_t i = 0; i < c.nplugins; i++)
			CHECK(c.plugins[i].argv[c.plugins[i].argc] == NULL);
	}
	config_free(&c);
	free(p);
	blob_free(&b);
}

/* Commands with spoiled arguments, to a host without plugins. */
static void fuzz_commands(void)
{
	static const uint32_t cmds[] = {CMD_INIT, CMD_OPTION, CMD_HOOK, CMD_STATE, 0, 99};
	struct host h = {.control = -1, .log = -1, .hook = NO_HOOK, .rank = NO_RANK};
	struct outcome out = {.plugin = NO_PLUGIN, .hook = NO_HOOK, .rank = NO_RANK};
	struct blob b = {0};

	env_init(&h.env);
	h.cfg.context = S_CTX_LOCAL + (uint32_t)below(5);
	h.done = 1u << CMD_SETUP | 1u << CMD_LOAD | (below(2) ? 1u << CMD_INIT : 0);
	for (size_t n = below(5); n > 0; n--)
		blob_u32(&b, (uint32_t)below(2) ? (uint32_t)next() : (uint32_t)below(14));
	uint8_t *p = exact(&b);
	struct reader args = rd_init(p, b.len);
	command_run(&h, cmds[below(6)], &args, NULL, 0, &out);
	env_free(&h.env);
	free(p);
	blob_free(&b);
}

static void seed_step(struct blob *b)
{
	for (unsigned int i = 0; i < 12; i++) {
		unsigned int tag = TAG_STREAM + i % 6;
		size_t at = blob_open(b, tag);

		if (tag <= TAG_TASK_FD)
			blob_u32(b, i % 4 == 3 && tag != TAG_TASK_FD ? NO_RANK : i % 2);
		if (tag == TAG_STREAM) {
			blob_u32(b, i % 3);
			blob_u32(b, i % 3);
		}
		if (tag == TAG_STREAM || tag == TAG_TASK_FD)
			blob_u32(b, i % 5);
		blob_str(b, "NAME=value");
		blob_close(b, at);
	}
}

static void fuzz_step(void)
{
	struct blob b = {0};
	struct step_conf s;
	const char *why;

	seed_step(&b);
	if (below(100) > 0)
		spoil(&b);
	uint8_t *p = exact(&b);
	if (step_decode(&s, p, b.len, 2, 5, &why)) {
		for (size_t i = 0; i <= s.ntasks; i++) {
			for (uint32_t at = s.ranks[i].env.first; at != NO_ITEM;
			     at = s.items[at].next)
				CHECK(strchr(s.items[at].text, '=') != NULL);
		}
		for (int fd = 0; fd <= 2; fd++)
			CHECK(step_stream(&s, below(3), fd).kind <= STREAM_TERMINAL);
	}
	step_free(&s);
	free(p);
	blob_free(&b);
}

static void fuzz_explain(const char *path, const struct blob *binary)
{
	bool script;
	struct blob b = {0};
	char interp[128];

	if (below(2))
		blob_bytes(&b, binary->p, binary->len);
	else
		blob_bytes(&b, "#! /no/such/interpreter with arguments\n", 39);
	spoil(&b);
	int fd = open(path, O_WRONLY | O_TRUNC);
	CHECK(fd >= 0 && write(fd, b.p, b.len) == (ssize_t)b.len);
	close(fd);
	if (explain_interpreter(path, interp, sizeof(interp), &script))
		CHECK(strnlen(interp, sizeof(interp)) < sizeof(interp));
	static struct host none = {.root = -1};
	char why[64];
	for (size_t i = 0; i < 2; i++) {
		if (why_exec(&none, path, i == 0 ? ENOENT : ENOEXEC, why, sizeof(why)))
			CHECK(strnlen(why, sizeof(why)) < sizeof(why));
	}
	blob_free(&b);
}

/* Lines of a task prolog. */
static void fuzz_verbs(void)
{
	static const char *const lines[] = {"export NAME = va", "unset  NAME     ",
					    "print some text ",
					    "export =         ", "unset =          "};
	struct blob b = {0};
	char *name = NULL, *value = NULL;

	blob_bytes(&b, lines[below(5)], 16);
	spoil(&b);
	char *line = calloc(b.len + 1, 1);
	memcpy(line, b.p, b.len);
	enum verb verb = verb_parse(line, &name, &value);
	if (verb == VERB_EXPORT || verb == VERB_UNSET)
		CHECK(env_name_ok(name));
	if (verb == VERB_EXPORT || verb == VERB_PRINT)
		CHECK(value >= line && value <= line + b.len);
	free(line);
	blob_free(&b);
}

/* The head of this very program: headers and the loader's name. */
static void read_binary(struct blob *b)
{
	char head[1024];
	int fd = open("/proc/self/exe", O_RDONLY);
	ssize_t n = read(fd, head, sizeof(head));

	CHECK(n > 0);
	close(fd);
	blob_bytes(b, head, (size_t)n);
}

int main(void)
{
	const char *seconds = getenv("FUZZ_SECONDS"), *seed = getenv("FUZZ_SEED");
	char path[] = "/tmp/fuzzXXXXXX";
	struct timespec now, end;
	struct blob binary = {0};
	unsigned long rounds = 0;

	clock_gettime(CLOCK_MONOTONIC, &end);
	state = seed ? strtoull(seed, NULL, 10) : (uint64_t)end.tv_nsec + 1;
	printf("FUZZ_SEED=%llu\n", (unsigned long long)state);
	fflush(stdout);
	end.tv_sec += seconds ? atoi(seconds) : 5;
	close(mkstemp(path));
	read_binary(&binary);
	do {
		for (int i = 0; i < 200; i++) {
			fuzz_config();
			fuzz_step();
			fuzz_commands();
			fuzz_explain(path, &binary);
			fuzz_verbs();
			rounds++;
		}
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec < end.tv_sec);
	unlink(path);
	blob_free(&binary);
	printf("ok %lu rounds\n", rounds);
	return 0;
}
