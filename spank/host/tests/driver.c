// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

static void install_lie(const struct lie *lie)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)lie->nr, 0, 3),
		/* the low half, on a little-endian machine */
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 offsetof(struct seccomp_data, args) + 8 * lie->arg),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, lie->value, 0, lie->any ? 0 : 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)lie->error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = {.len = sizeof(code) / sizeof(code[0]), .filter = code};

	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) < 0)
		_exit(126);
}

void drv_start(struct driver *d)
{
	drv_start_lying(d, NULL);
}

void drv_start_lying(struct driver *d, const struct lie *lie)
{
	const char *program = getenv("SPANKHOST");
	int control[2], log[2];

	CHECK(program != NULL);
	*d = (struct driver){0};
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, log) == 0);
	d->pid = fork();
	CHECK(d->pid >= 0);
	if (d->pid == 0) {
		/* The pairs may lie where the channels go. */
		int c = fcntl(control[1], F_DUPFD, 10), l = fcntl(log[1], F_DUPFD, 10);

		dup2(c, HOST_FD_CONTROL);
		dup2(l, HOST_FD_LOG);
		setpgid(0, 0); /* so that drv_end finds what plugins left */
		close_range(5, ~0u, 0);
		if (lie != NULL)
			install_lie(lie);
		execl(program, "spankhost: [1.0]", (char *)NULL);
		_exit(127);
	}
	close(control[1]);
	close(log[1]);
	d->control = control[0];
	d->log = log[0];
}

void drv_end(struct driver *d)
{
	for (uint32_t i = 0; i < d->nforked; i++) {
		close(d->pidfds[i]);
		if (d->exec_pipes[i] >= 0)
			close(d->exec_pipes[i]);
	}
	if (d->gate > 0)
		close(d->gate);
	close(d->control);
	kill(-d->pid, SIGKILL);
	kill(d->pid, SIGKILL);
	waitpid(d->pid, NULL, 0);
	close(d->log);
	if (d->board != NULL)
		munmap(d->board, d->board_size);
	blob_free(&d->step);
	free(d->pids);
	free(d->pidfds);
	free(d->exec_pipes);
	free(d->status);
}

void drv_send(struct driver *d, uint32_t cmd, const struct blob *body, const int *fds, size_t nfds)
{
	uint8_t head[4] = {(uint8_t)cmd, (uint8_t)(cmd >> 8)};
	struct iovec iov[] = {{head, 4}, {body ? body->p : NULL, body ? body->len : 0}};

	CHECK(packet_send(d->control, iov, 2, fds, nfds) == 0);
}

static void on_plugins(struct driver *d, struct reader *r)
{
	while (r->left > 0) {
		uint32_t i = rd_u32(r);

		CHECK(i < SCENE_PLUGINS);
		d->version[i] = rd_u32(r);
		d->flags[i] = rd_u32(r);
		d->hooks[i] = rd_u32(r);
		snprintf(d->dlerror, sizeof(d->dlerror), "%s", rd_str(r));
		snprintf(d->name, sizeof(d->name), "%s", rd_str(r));
		rd_str(r);
		CHECK(!r->bad);
	}
}

static void on_missing(struct driver *d, struct reader *r)
{
	size_t len = strlen(d->missing);
	uint32_t plugin = rd_u32(r), more = rd_u32(r);

	snprintf(d->missing + len, sizeof(d->missing) - len, "%u:%s+%u ", plugin, rd_str(r), more);
	CHECK(rd_done(r));
}

static void on_tasks(struct driver *d, struct reader *r, const int *fds, size_t nfds)
{
	uint32_t n = rd_u32(r);

	CHECK_INT(nfds, 2 * n);
	for (uint32_t i = 0; i < n; i++) {
		CHECK_INT(rd_u32(r), d->nforked);
		d->pids[d->nforked] = (pid_t)rd_u32(r);
		d->pidfds[d->nforked] = fds[2 * i];
		d->exec_pipes[d->nforked] = fds[2 * i + 1];
		d->nforked++;
	}
}

static struct done on_done(struct reader *r)
{
	struct done done;

	done.cmd = rd_u32(r);
	done.rc = (int)rd_u32(r);
	done.error = (int)rd_u32(r);
	done.plugin = rd_u32(r);
	done.hook = rd_u32(r);
	done.rank = rd_u32(r);
	snprintf(done.what, sizeof(done.what), "%s", rd_str(r));
	CHECK(rd_done(r));
	return done;
}

struct done drv_replies(struct driver *d)
{
	static uint8_t buf[HOST_PACKET_MAX];
	int fds[HOST_FDS_MAX];
	size_t nfds;

	for (;;) {
		ssize_t n = packet_recv(d->control, buf, sizeof(buf), fds, HOST_FDS_MAX, &nfds);

		if (n <= 0)
			return (struct done){.rc = -1, .what = "gone"};
		struct reader r = rd_init(buf, (size_t)n);
		uint32_t rank, kind = rd_u32(&r);
		switch (kind) {
		case REP_DONE:
			return on_done(&r);
		case REP_PLUGIN:
			on_plugins(d, &r);
			break;
		case REP_MISSING:
			on_missing(d, &r);
			break;
		case REP_REFUSED:
			d->refused = (int)rd_u32(&r);
			d->refused_rc = (int)rd_u32(&r);
			CHECK(rd_done(&r));
			break;
		case REP_TASKS:
			on_tasks(d, &r, fds, nfds);
			break;
		case REP_EXIT:
			rank = rd_u32(&r);
			CHECK(rank < d->ntasks);
			d->status[rank] = (int)rd_u32(&r);
			d->nexited++;
			CHECK_INT(rd_u32(&r), 1);
			(void)rd_sub(&r, 7 * sizeof(uint64_t));
			CHECK(strstr(rd_str(&r), "rchar: ") != NULL);
			CHECK(rd_done(&r));
			break;
		default:
			CHECK(kind == 0);
		}
	}
}

struct done drv_do(struct driver *d, uint32_t cmd, const struct blob *body, const int *fds,
		   size_t nfds)
{
	drv_send(d, cmd, body, fds, nfds);
	return drv_replies(d);
}

static int make_board(struct driver *d, uint32_t ntasks)
{
	int fd = memfd_create("board", MFD_CLOEXEC);

	d->board_size = sizeof(struct board) + (ntasks + 1) * sizeof(struct board_slot) +
			1000 * sizeof(struct board_entry);
	CHECK(fd >= 0 && ftruncate(fd, (off_t)d->board_size) == 0);
	d->board = mmap(NULL, d->board_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(d->board != MAP_FAILED);
	d->board->magic = BOARD_MAGIC;
	d->board->version = HOST_PROTOCOL_VERSION;
	d->board->nslots = ntasks + 1;
	d->board->nentries = 1000;
	return fd;
}

static void put_config(struct blob *b, const struct scene *s)
{
	static const uint32_t groups[] = {TEST_UID, 7101, 7102};

	blob_tlv_u32(b, TAG_CONTEXT, 2);
	blob_tlv_u32(b, TAG_UID, TEST_UID);
	blob_tlv_u32(b, TAG_GID, TEST_UID);
	size_t at = blob_open(b, TAG_GROUPS);
	for (int i = 0; i < 3; i++)
		blob_u32(b, groups[i]);
	blob_close(b, at);
	blob_tlv_u32(b, TAG_JOB_ID, 12);
	blob_tlv_u32(b, TAG_TOTAL_TASKS, s->ntasks);
	at = blob_open(b, TAG_GLOBAL_IDS);
	for (uint32_t i = 0; i < s->ntasks; i++)
		blob_u32(b, i);
	blob_close(b, at);
	blob_tlv_str(b, TAG_NODE_NAME, "node1");
	blob_tlv_str(b, TAG_CWD, s->cwd ? s->cwd : "/");
	blob_tlv_u32(b, TAG_UMASK, 027);
	blob_tlv_u32(b, TAG_JOIN_NS, s->join);
	blob_tlv_str(b, TAG_HOST_ENV, "HOSTVAR=1");
	for (int i = 0; i < 8 && s->argv[i]; i++)
		blob_tlv_str(b, TAG_ARG, s->argv[i]);
	for (int i = 0; i < 16 && s->env[i]; i++)
		blob_tlv_str(b, TAG_ENV, s->env[i]);
	for (int i = 0; i < SCENE_PLUGINS && s->plugins[i].path; i++) {
		at = blob_open(b, TAG_PLUGIN);
		blob_u32(b, s->plugins[i].required);
		blob_str(b, s->plugins[i].path);
		blob_close(b, at);
		for (int k = 0; k < 8 && s->plugins[i].args[k]; k++)
			blob_tlv_str(b, TAG_PLUGIN_ARG, s->plugins[i].args[k]);
	}
	if (s->config != NULL)
		s->config(b);
}

void drv_setup(struct driver *d, const struct scene *s)
{
	struct blob config = {0}, body = {0};
	int gate[2];

	d->ntasks = s->ntasks;
	d->pids = calloc(s->ntasks, sizeof(*d->pids));
	d->pidfds = calloc(s->ntasks, sizeof(*d->pidfds));
	d->exec_pipes = calloc(s->ntasks, sizeof(*d->exec_pipes));
	d->status = calloc(s->ntasks, sizeof(*d->status));
	put_config(&config, s);
	blob_u32(&body, HOST_PROTOCOL_VERSION);
	CHECK(pipe2(gate, O_CLOEXEC) == 0);
	int fds[] = {blob_memfd(&config),
		     make_board(d, s->ntasks),
		     gate[0],
		     open("/dev/null", O_RDWR | O_CLOEXEC),
		     open("/dev/null", O_WRONLY | O_CLOEXEC),
		     s->job_ns};
	struct done done = drv_do(d, CMD_SETUP, &body, fds, s->job_ns > 0 ? 6 : 5);
	CHECK_STR(done.what, "");
	for (int i = 0; i < 5; i++)
		close(fds[i]);
	d->gate = gate[1];
	blob_free(&config);
	blob_free(&body);
	CHECK_INT(drv_do(d, CMD_LOAD, NULL, NULL, 0).rc, 0);
}

struct done drv_init(struct driver *d, const struct scene *s)
{
	struct blob keep = {0};
	uint32_t n = 0;

	while (n < SCENE_PLUGINS && s->plugins[n].path)
		n++;
	blob_u32(&keep, n);
	blob_bytes(&keep, "\1\1\1\1", n);
	struct done done = drv_do(d, CMD_INIT, &keep, NULL, 0);
	blob_free(&keep);
	return done;
}

uint32_t drv_fd(struct driver *d, int fd)
{
	CHECK_INT(drv_do(d, CMD_FDS, NULL, &fd, 1).rc, 0);
	return d->nfds++;
}

void drv_stream(struct driver *d, uint32_t rank, uint32_t fd, uint32_t kind, uint32_t index,
		const char *path)
{
	size_t at = blob_open(&d->step, TAG_STREAM);

	blob_u32(&d->step, rank);
	blob_u32(&d->step, fd);
	blob_u32(&d->step, kind);
	blob_u32(&d->step, index);
	blob_str(&d->step, path);
	blob_close(&d->step, at);
}

int drv_output(struct driver *d, uint32_t fd)
{
	int pipe[2];

	CHECK(pipe2(pipe, O_CLOEXEC) == 0);
	drv_stream(d, NO_RANK, fd, STREAM_FD, drv_fd(d, pipe[1]), "");
	close(pipe[1]);
	return pipe[0];
}

void drv_fork(struct driver *d)
{
	int fd = blob_memfd(&d->step);

	CHECK_STR(drv_do(d, CMD_STEP, NULL, &fd, 1).what, "");
	close(fd);
	CHECK_STR(drv_do(d, CMD_USER_INIT, NULL, NULL, 0).what, "");
	CHECK_STR(drv_do(d, CMD_FORK, NULL, NULL, 0).what, "");
	CHECK_INT(d->nforked, d->ntasks);
}

void drv_open_gate(struct driver *d)
{
	CHECK(write(d->gate, "g", 1) == 1);
}

void drv_run(struct driver *d)
{
	drv_fork(d);
	CHECK_INT(drv_do(d, CMD_POST_FORK, NULL, NULL, 0).rc, 0);
	drv_open_gate(d);
	CHECK_STR(drv_do(d, CMD_WAIT, NULL, NULL, 0).what, "");
	CHECK_INT(d->nexited, d->ntasks);
}

static void print_record(FILE *to, struct reader *r)
{
	uint32_t kind = rd_u32(r), a = rd_u32(r), b = rd_u32(r), c;

	switch (kind) {
	case REC_LOG:
		c = rd_u32(r);
		rd_u32(r);
		fprintf(to, "log %u rank=%d plugin=%d: %s\n", a, (int)b, (int)c, rd_str(r));
		break;
	case REC_FAIL:
		c = rd_u32(r);
		fprintf(to, "fail rank=%u stage=%u errno=%u %s", a, b, c, rd_str(r));
		fprintf(to, " (%s)\n", rd_str(r));
		break;
	case REC_LIMIT: /* b and c are the halves of the first number */
		rd_u32(r);
		rd_u64(r);
		fprintf(to, "limit rank=%u %s\n", a, rd_str(r));
		break;
	case REC_CRASH:
		fprintf(to, "crash rank=%d signal=%u: %s\n", (int)a, b, rd_str(r));
		break;
	case REC_THREADS:
		fprintf(to, "threads plugin=%u hook=%u %u\n", a, b, rd_u32(r));
		break;
	default:
		fprintf(to, "warn plugin=%u hook=%u %s\n", a, b, rd_str(r));
		break;
	}
	CHECK(rd_done(r));
}

char *drv_log(struct driver *d)
{
	static uint8_t buf[HOST_PACKET_MAX];
	char *text = NULL;
	size_t len;
	ssize_t n;
	FILE *to = open_memstream(&text, &len);

	while ((n = recv(d->log, buf, sizeof(buf), MSG_DONTWAIT)) > 0) {
		struct reader r = rd_init(buf, (size_t)n);

		print_record(to, &r);
	}
	fclose(to);
	return text;
}

char *drv_read_all(int fd)
{
	char *text = calloc(1, 65536);
	size_t len = 0;
	ssize_t n;

	while (len < 65535 && (n = read(fd, text + len, 65535 - len)) > 0)
		len += (size_t)n;
	close(fd);
	return text;
}

void has(const char *text, const char *part)
{
	if (strstr(text, part) == NULL) {
		fprintf(stderr, "\"%s\" is not in:\n%s", part, text);
		exit(1);
	}
}

void has_not(const char *text, const char *part)
{
	if (strstr(text, part) != NULL) {
		fprintf(stderr, "\"%s\" is in:\n%s", part, text);
		exit(1);
	}
}

char *drv_step(const struct scene *s, char **log, int *status)
{
	struct driver d;

	drv_start(&d);
	drv_setup(&d, s);
	CHECK_INT(drv_init(&d, s).rc, 0);
	int out = drv_output(&d, 1);
	drv_stream(&d, NO_RANK, 2, STREAM_SAME, 0, "");
	drv_run(&d);
	CHECK_INT(drv_do(&d, CMD_EXIT, NULL, NULL, 0).rc, 0);
	CHECK_STR(drv_replies(&d).what, "gone");
	*log = drv_log(&d);
	*status = d.status[0];
	drv_end(&d);
	return drv_read_all(out);
}

void drv_needs_root(const char *program)
{
	if (geteuid() != 0) {
		CHECK(getenv("STRICT") == NULL);
		printf("skipped: %s needs root\n", program);
		exit(0);
	}
	signal(SIGPIPE, SIG_IGN);
}
