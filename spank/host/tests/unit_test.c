// SPDX-License-Identifier: Apache-2.0
/* The parts that need no process of their own. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "blob.h"
#include "host.h"
#include "script.h"
#include "test.h"

static void test_reader_stays_inside(void)
{
	uint8_t buf[] = {1, 0, 0, 0, 3, 0, 0, 0, 'a', 'b', 'c', 9};
	struct reader r = rd_init(buf, sizeof(buf));

	CHECK_INT(rd_u32(&r), 1);
	CHECK_STR(rd_str(&r), "abc");
	CHECK(!rd_done(&r));
	CHECK_INT(rd_u16(&r), 0);
	CHECK(r.bad);
	CHECK_INT(rd_u64(&r), 0);
	CHECK_STR(rd_str(&r), "");
	CHECK(rd_sub(&r, 0).bad);
}

static void test_strings(void)
{
	static const struct {
		const char *bytes;
		size_t len;
		bool bad;
		const char *want;
	} cases[] = {
		{"\0\0\0\0", 4, false, ""},    {"\1\0\0\0x", 5, false, "x"},
		{"\2\0\0\0x", 5, true, ""},    {"\377\377\377\377x", 5, true, ""},
		{"\3\0\0\0a\0b", 7, true, ""}, {"\0\0\0", 3, true, ""},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		/* Allocated to the byte, so that the sanitizer sees a step beyond. */
		uint8_t *buf = malloc(cases[i].len);
		memcpy(buf, cases[i].bytes, cases[i].len);
		struct reader r = rd_init(buf, cases[i].len);

		CHECK_STR(rd_str(&r), cases[i].want);
		CHECK_INT(r.bad, cases[i].bad);
		free(buf);
	}
}

static void test_writer_stays_inside(void)
{
	uint8_t *buf = malloc(12);
	struct writer w = wr_init(buf, 12);

	wr_str(&w, "abcdef", 4);
	CHECK_INT(w.len, 8);
	wr_u64(&w, 1);
	CHECK(w.bad);
	CHECK(w.len <= 12);
	free(buf);
}

static void test_packets(void)
{
	int pair[2], fds[2], got[1];
	size_t n;
	char buf[4];

	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
	CHECK(pipe(fds) == 0);
	struct iovec iov[] = {{(void *)"ab", 2}, {(void *)"c", 1}};
	CHECK(packet_send(pair[0], iov, 2, fds, 2) == 0);
	/* Room for one: the other is closed, not leaked. */
	CHECK_INT(packet_recv(pair[1], buf, sizeof(buf), got, 1, &n), 3);
	CHECK_INT(n, 1);
	CHECK(fcntl(got[0], F_GETFD) == FD_CLOEXEC);
	int next = dup(0);
	CHECK_INT(next, got[0] + 1);
	close(next);
	close(got[0]);
	/* Cut: an error, and no descriptor is left. */
	struct iovec big = {(void *)"abcdef", 6};
	CHECK(packet_send(pair[0], &big, 1, fds, 1) == 0);
	CHECK_INT(packet_recv(pair[1], buf, sizeof(buf), got, 1, &n), -1);
	CHECK_INT(errno, EMSGSIZE);
	CHECK_INT(n, 0);
	close(pair[0]);
	CHECK_INT(packet_recv(pair[1], buf, sizeof(buf), got, 1, &n), 0);
	close(pair[1]);
	close(fds[0]);
	close(fds[1]);
}

static void test_env(void)
{
	static char first[] = "A=1", second[] = "AB=2", third[] = "A=3";
	struct env e;

	env_init(&e);
	CHECK(e.v[0] == NULL);
	env_put(&e, first);
	env_put(&e, second);
	CHECK_STR(env_get(&e, "A"), "1");
	char **held = e.v;
	env_put(&e, third);
	CHECK_STR(env_get(&e, "A"), "3");
	CHECK_INT(e.n, 2);
	env_unset(&e, "A");
	CHECK(env_get(&e, "A") == NULL);
	CHECK_STR(e.v[0], "AB=2");
	CHECK(e.v[1] == NULL);
	for (int i = 0; i < 1000; i++) {
		char name[16];

		snprintf(name, sizeof(name), "N%d", i);
		env_set(&e, name, "v");
	}
	CHECK_INT(e.n, 1001);
	CHECK(e.v[1001] == NULL);
	CHECK_STR(held[0], "AB=2"); /* an array that a plugin holds stays readable */
	env_unset_prefix(&e, "N");
	CHECK_INT(e.n, 1);
	CHECK(!env_name_ok("") && !env_name_ok("A=") && env_name_ok("A"));
	env_free(&e);
}

static void minimal(struct blob *b)
{
	blob_tlv_u32(b, TAG_CONTEXT, S_CTX_REMOTE);
	blob_tlv_u32(b, TAG_UID, 1);
	blob_tlv_u32(b, TAG_GID, 2);
	blob_tlv_str(b, TAG_CWD, "/");
	blob_tlv_str(b, TAG_ARG, "true");
}

static bool decodes(struct blob *b, struct config *c, const char **why)
{
	bool ok = config_decode(c, b->p, b->len, why);

	CHECK(ok == (*why == NULL));
	return ok;
}

static void test_config(void)
{
	struct blob b = {0};
	struct config c;
	const char *why;

	minimal(&b);
	blob_tlv_str(&b, TAG_ARG, "-x");
	blob_tlv_str(&b, TAG_ENV, "A=b");
	blob_tlv_u64(&b, TAG_JOB_MEM, 1ull << 40);
	size_t at = blob_open(&b, TAG_PLUGIN);
	blob_u32(&b, 1);
	blob_str(&b, "/p.so");
	blob_close(&b, at);
	blob_tlv_str(&b, TAG_PLUGIN_ARG, "arg");
	at = blob_open(&b, 999 | TLV_OPTIONAL << 16);
	blob_close(&b, at);
	CHECK(decodes(&b, &c, &why));
	CHECK_INT(c.argc, 2);
	CHECK_STR(c.argv[1], "-x");
	CHECK(c.argv[2] == NULL);
	CHECK_STR(env_get(&c.env, "A"), "b");
	CHECK(c.job_mem == 1ull << 40);
	CHECK_INT(c.nplugins, 1);
	CHECK(c.plugins[0].required && c.plugins[0].argc == 1);
	CHECK_STR(c.plugins[0].argv[0], "arg");
	CHECK(c.plugins[0].argv[1] == NULL);
	config_free(&c);
	blob_free(&b);
}

static void check_refused(void (*spoil)(struct blob *), const char *want)
{
	struct blob b = {0};
	struct config c;
	const char *why;

	spoil(&b);
	CHECK(!decodes(&b, &c, &why));
	CHECK_STR(why, want);
	config_free(&c);
	blob_free(&b);
}

static void no_uid(struct blob *b)
{
	blob_tlv_str(b, TAG_CWD, "/");
	blob_tlv_str(b, TAG_ARG, "true");
}

static void no_command(struct blob *b)
{
	minimal(b);
	b->len -= 4 + 4 + 4 + 4; /* the last item */
}

static void unknown_tag(struct blob *b)
{
	minimal(b);
	blob_close(b, blob_open(b, 999));
}

static void cut(struct blob *b)
{
	minimal(b);
	b->len--;
}

static void too_long(struct blob *b)
{
	minimal(b);
	size_t at = blob_open(b, TAG_UMASK);
	blob_u32(b, 022);
	blob_u32(b, 0);
	blob_close(b, at);
}

static void orphan_arg(struct blob *b)
{
	minimal(b);
	blob_tlv_str(b, TAG_PLUGIN_ARG, "of none");
}

static void no_context(struct blob *b)
{
	minimal(b);
	blob_tlv_u32(b, TAG_CONTEXT, 6);
}

static void local_tasks(struct blob *b)
{
	minimal(b);
	blob_tlv_u32(b, TAG_CONTEXT, S_CTX_LOCAL);
	blob_tlv_u32(b, TAG_GLOBAL_IDS, 0);
}

/* Outside of remote context neither a command nor a directory is needed, and
 * what comes later is added. */
static void test_config_local(void)
{
	struct blob b = {0}, more = {0};
	struct config c;
	const char *why;

	blob_tlv_u32(&b, TAG_CONTEXT, S_CTX_LOCAL);
	blob_tlv_u32(&b, TAG_UID, 1);
	blob_tlv_u32(&b, TAG_GID, 2);
	blob_tlv_str(&b, TAG_JOB_CONTROL, "A=b");
	CHECK(decodes(&b, &c, &why));
	CHECK_STR(env_get(&c.job_control, "A"), "b");
	blob_tlv_u32(&more, TAG_JOB_ID, 12);
	blob_tlv_str(&more, TAG_ARG, "true");
	CHECK(config_update(&c, more.p, more.len, &why));
	CHECK_INT(c.job_id, 12);
	CHECK_INT(c.argc, 1);
	CHECK_INT(c.uid, 1);
	config_free(&c);
	blob_free(&b);
	blob_free(&more);
}

static void test_config_refused(void)
{
	check_refused(no_context, "its context is unknown");
	check_refused(local_tasks, "it has tasks");
	check_refused(no_uid, "it has no uid or gid");
	check_refused(no_command, "it has no command");
	check_refused(unknown_tag, "an item is malformed");
	check_refused(cut, "an item is malformed");
	check_refused(too_long, "an item is malformed");
	check_refused(orphan_arg, "an item is malformed");
}

static void put_stream(struct blob *b, uint32_t rank, uint32_t fd, uint32_t kind, uint32_t index)
{
	size_t at = blob_open(b, TAG_STREAM);

	blob_u32(b, rank);
	blob_u32(b, fd);
	blob_u32(b, kind);
	blob_u32(b, index);
	blob_str(b, "p");
	blob_close(b, at);
}

static void test_step(void)
{
	static const uint32_t bad[][4] = {
		{2, 0, STREAM_NULL, 0},	       {0, 3, STREAM_NULL, 0},
		{0, 0, STREAM_FD, 3},	       {0, 1, STREAM_SAME, 0},
		{0, 1, STREAM_TERMINAL, 7},    {NO_RANK, 0, STREAM_TERMINAL, 0},
		{0, 0, STREAM_TERMINAL + 1, 0}};
	struct blob b = {0};
	struct step_conf s;
	const char *why;

	put_stream(&b, NO_RANK, 1, STREAM_FD, 2);
	put_stream(&b, 1, 1, STREAM_FILE, 7);
	CHECK(step_decode(&s, b.p, b.len, 2, 3, &why));
	CHECK_INT(step_stream(&s, 0, 1).index, 2);
	CHECK_INT(step_stream(&s, 1, 1).kind, STREAM_FILE);
	CHECK_INT(step_stream(&s, 1, 0).kind, STREAM_NULL);
	CHECK_INT(step_stream(&s, 2, 1).kind, STREAM_NULL);
	step_free(&s);
	blob_free(&b);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		put_stream(&b, bad[i][0], bad[i][1], bad[i][2], bad[i][3]);
		CHECK(!step_decode(&s, b.p, b.len, 2, 3, &why));
		step_free(&s);
		blob_free(&b);
	}
}

static void test_verbs(void)
{
	static const struct {
		const char *line;
		enum verb verb;
		const char *name, *value;
	} cases[] = {
		{"export A=b", VERB_EXPORT, "A", "b"},
		{"export  A =b c ", VERB_EXPORT, "A", "b c "},
		{"export A=", VERB_EXPORT, "A", ""},
		{"export A=b=c", VERB_EXPORT, "A", "b=c"},
		{"export A", VERB_NONE, NULL, NULL},
		{"export =b", VERB_NONE, NULL, NULL},
		{"exportA=b", VERB_NONE, NULL, NULL},
		{" export A=b", VERB_NONE, NULL, NULL},
		{"unset A", VERB_UNSET, "A", NULL},
		{"unset  A \r", VERB_UNSET, "A", NULL},
		{"unset ", VERB_NONE, NULL, NULL},
		{"unset A=b", VERB_NONE, NULL, NULL},
		{"print a b", VERB_PRINT, NULL, "a b"},
		{"print ", VERB_PRINT, NULL, ""},
		{"print", VERB_NONE, NULL, NULL},
		{"", VERB_NONE, NULL, NULL},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char line[32];
		char *name = NULL, *value = NULL;

		snprintf(line, sizeof(line), "%s", cases[i].line);
		CHECK_INT(verb_parse(line, &name, &value), cases[i].verb);
		if (cases[i].name != NULL)
			CHECK_STR(name, cases[i].name);
		if (cases[i].value != NULL)
			CHECK_STR(value, cases[i].value);
	}
}

static void test_scripts(void)
{
	static const struct {
		uint32_t kind;
		const char *path;
		bool good;
	} cases[] = {{SCRIPT_PROLOG, "/a", true},
		     {SCRIPT_EPILOG, "/a", true},
		     {0, "/a", false},
		     {3, "/a", false},
		     {SCRIPT_PROLOG, "a", false},
		     {SCRIPT_PROLOG, "", false}};
	const char *why;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct blob b = {0};
		struct step_conf s;
		size_t at = blob_open(&b, TAG_TASK_SCRIPT);

		blob_u32(&b, cases[i].kind);
		blob_u32(&b, 7);
		blob_str(&b, "label");
		blob_str(&b, cases[i].path);
		blob_close(&b, at);
		CHECK(step_decode(&s, b.p, b.len, 1, 0, &why) == cases[i].good);
		if (cases[i].good) {
			CHECK_INT(s.nscripts, 1);
			CHECK_INT(s.scripts[0].timeout_s, 7);
			CHECK_STR(s.scripts[0].label, "label");
		}
		step_free(&s);
		blob_free(&b);
	}
}

static void put_mem_policy(struct blob *b, uint32_t rank, uint32_t mode, uint32_t halves)
{
	size_t at = blob_open(b, TAG_MEM_POLICY);

	blob_u32(b, rank);
	blob_u32(b, mode);
	for (uint32_t i = 0; i < halves; i++)
		blob_u32(b, i + 1);
	blob_close(b, at);
}

static void test_own_command(void)
{
	static const struct {
		unsigned int tag;
		uint32_t rank;
		const char *text;
	} bad[] = {{TAG_TASK_ARG, NO_RANK, "x"},
		   {TAG_TASK_ARG, 2, "x"},
		   {TAG_TASK_CWD, NO_RANK, "x"},
		   {TAG_TASK_CWD, 0, ""}};
	struct blob b = {0};
	struct step_conf s;
	const char *why;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		size_t at = blob_open(&b, bad[i].tag);

		blob_u32(&b, bad[i].rank);
		blob_str(&b, bad[i].text);
		blob_close(&b, at);
		CHECK(!step_decode(&s, b.p, b.len, 2, 0, &why));
		step_free(&s);
		blob_free(&b);
	}
}

static void test_mem_policy(void)
{
	/* Rank, mode, and how many halves of a word. */
	static const uint32_t bad[][3] = {{2, 2, 2}, {0, 2, 1}, {0, 2, 2 * MEM_WORDS_MAX + 2}};
	struct blob b = {0};
	struct step_conf s;
	const char *why;

	put_mem_policy(&b, NO_RANK, 4, 0);
	put_mem_policy(&b, 1, 2, 4);
	CHECK(step_decode(&s, b.p, b.len, 2, 0, &why));
	CHECK_INT(step_mem_policy(&s, 0)->mode, 4);
	CHECK_INT(step_mem_policy(&s, 0)->words, 0);
	CHECK_INT(step_mem_policy(&s, 1)->words, 2);
	CHECK_INT(step_mem_policy(&s, 1)->nodes[1], 0x400000003);
	CHECK(step_mem_policy(&s, 2) == NULL);
	step_free(&s);
	blob_free(&b);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		put_mem_policy(&b, bad[i][0], bad[i][1], bad[i][2]);
		CHECK(!step_decode(&s, b.p, b.len, 2, 0, &why));
		step_free(&s);
		blob_free(&b);
	}
	put_stream(&b, 0, 0, STREAM_NULL, 0);
	CHECK(step_decode(&s, b.p, b.len, 2, 0, &why));
	CHECK(step_mem_policy(&s, 0) == NULL);
	step_free(&s);
	blob_free(&b);
}

static void test_strerror(void)
{
	static const struct {
		int err;
		const char *want;
	} cases[] = {{-1, "Unspecified error"},
		     {0, "No error"},
		     {2, "No such file or directory"},
		     {2999, "Unknown error 2999"},
		     {3000, "Generic error"},
		     {3005, "Buffer too small"},
		     {3010, "Valid only in local or allocator context"},
		     {3013, "Unknown error 3013"}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		CHECK_STR(spank_strerror((spank_err_t)cases[i].err), cases[i].want);
	CHECK_INT(spank_symbol_supported("slurm_spank_task_exit"), 1);
	CHECK_INT(spank_symbol_supported("slurm_spank_slurmd_init"), 0);
	CHECK_INT(spank_symbol_supported(""), 0);
	CHECK_INT(spank_symbol_supported(NULL), -1);
	CHECK_INT(spank_remote(NULL), -1);
}

static void test_slurm_errno(void)
{
	CHECK_STR(slurm_strerror(2017), "No such job");
	CHECK_STR(slurm_strerror(3005), "Buffer too small");
	CHECK_STR(slurm_strerror(2), "No such file or directory");
	CHECK_STR(slurm_strerror(1999), "Unknown error 1999");
	slurm_seterrno(2036);
	CHECK_INT(errno, 2036);
	CHECK_INT(slurm_get_errno(), 2036);
}

int main(void)
{
	RUN(test_reader_stays_inside);
	RUN(test_strings);
	RUN(test_writer_stays_inside);
	RUN(test_packets);
	RUN(test_env);
	RUN(test_config);
	RUN(test_config_local);
	RUN(test_config_refused);
	RUN(test_step);
	RUN(test_mem_policy);
	RUN(test_own_command);
	RUN(test_verbs);
	RUN(test_scripts);
	RUN(test_strerror);
	RUN(test_slurm_errno);
	return 0;
}
