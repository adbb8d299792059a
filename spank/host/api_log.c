// SPDX-License-Identifier: Apache-2.0
/* The log calls of SPANK, and the records that the host itself sends. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <string.h>

#include "api.h"
#include "imports.h"
#include "util.h"

/* A packet less its fields. */
#define TEXT_MAX (HOST_PACKET_MAX - 64)

static void send_log(enum log_level level, const char *text, size_t len)
{
	struct host *h = &host;
	uint8_t head[24];
	struct writer w = wr_init(head, sizeof(head));

	if (len > TEXT_MAX)
		len = TEXT_MAX;
	wr_u32(&w, REC_LOG);
	wr_u32(&w, level);
	wr_u32(&w, h->in_task ? h->rank : NO_RANK);
	wr_u32(&w, h->plugin ? h->plugin->index : NO_PLUGIN);
	wr_u32(&w, h->hook);
	wr_u32(&w, (uint32_t)len);
	struct iovec iov[] = {{head, w.len}, {(void *)text, len}};
	/* With stepd gone, the failure cannot be reported either. */
	(void)packet_send(h->log, iov, 2, NULL, 0);
}

/* In a process that a plugin forked the log is closed (atfork.c): what the user
 * would have seen goes where Slurm writes it, to standard error. */
static void print_log(enum log_level level, const char *text, int len)
{
	if (level == LEVEL_ERROR)
		dprintf(STDERR_FILENO, "stepd-%s: error: %.*s\n",
			host.cfg.node_name ? host.cfg.node_name : "", len, text);
	else if (level == LEVEL_SPANK_LOG)
		dprintf(STDERR_FILENO, "%.*s\n", len, text);
}

static void log_va(enum log_level level, const char *format, va_list ap)
{
	_cleanup_free_ char *big = NULL;
	char small[512];
	const char *text = small;
	int saved = errno; /* plugins use %m */
	va_list again;

	if (format == NULL)
		return;
	va_copy(again, ap);
	int len = vsnprintf(small, sizeof(small), format, ap);
	if (len >= (int)sizeof(small)) {
		errno = saved;
		len = vasprintf(&big, format, again);
		text = big;
	}
	va_end(again);
	if (len >= 0) {
		while (len > 0 && text[len - 1] == '\n')
			len--;
		if (host.log >= 0)
			send_log(level, text, (size_t)len);
		else
			print_log(level, text, len);
	} else {
		big = NULL; /* undefined after a failed vasprintf */
	}
	errno = saved;
}

void log_text(enum log_level level, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	log_va(level, format, ap);
	va_end(ap);
}

void log_warn(struct host *h, const struct plugin *p, uint32_t hook, const char *what)
{
	uint8_t buf[512];
	struct writer w = wr_init(buf, sizeof(buf));

	wr_u32(&w, REC_WARN);
	wr_u32(&w, p ? p->index : NO_PLUGIN);
	wr_u32(&w, hook);
	wr_str(&w, what, sizeof(buf) - 32);
	struct iovec iov = {buf, w.len};
	if (h->log >= 0)
		(void)packet_send(h->log, &iov, 1, NULL, 0);
}

void log_threads(struct host *h, const struct plugin *p, uint32_t count)
{
	uint8_t buf[32];
	struct writer w = wr_init(buf, sizeof(buf));

	wr_u32(&w, REC_THREADS);
	wr_u32(&w, p->index);
	wr_u32(&w, h->hook);
	wr_u32(&w, count);
	struct iovec iov = {buf, w.len};
	if (h->log >= 0)
		(void)packet_send(h->log, &iov, 1, NULL, 0);
}

void log_limit(struct host *h, const char *name, uint64_t want, uint64_t have)
{
	uint8_t buf[128];
	struct writer w = wr_init(buf, sizeof(buf));

	wr_u32(&w, REC_LIMIT);
	wr_u32(&w, h->rank);
	wr_u64(&w, want);
	wr_u64(&w, have);
	wr_str(&w, name, 32);
	struct iovec iov = {buf, w.len};
	if (h->log >= 0)
		(void)packet_send(h->log, &iov, 1, NULL, 0);
}

void log_fail(struct host *h, uint32_t rank, enum stage stage, int error, const char *object,
	      const char *why)
{
	uint8_t buf[8192];
	struct writer w = wr_init(buf, sizeof(buf));

	wr_u32(&w, REC_FAIL);
	wr_u32(&w, rank);
	wr_u32(&w, stage);
	wr_i32(&w, error);
	wr_str(&w, object, sizeof(buf) - WHY_MAX - 32);
	wr_str(&w, why, WHY_MAX);
	struct iovec iov = {buf, w.len};
	if (h->log >= 0)
		(void)packet_send(h->log, &iov, 1, NULL, 0);
}

#define LOG_FUNCTION(name, level)                                                                  \
	SPANK_API void name(const char *format, ...)                                               \
	{                                                                                          \
		va_list ap;                                                                        \
                                                                                                   \
		va_start(ap, format);                                                              \
		log_va(level, format, ap);                                                         \
		va_end(ap);                                                                        \
	}

LOG_FUNCTION(slurm_info, LEVEL_INFO)
LOG_FUNCTION(slurm_verbose, LEVEL_VERBOSE)
LOG_FUNCTION(slurm_debug, LEVEL_DEBUG)
LOG_FUNCTION(slurm_debug2, LEVEL_DEBUG2)
LOG_FUNCTION(slurm_debug3, LEVEL_DEBUG3)
LOG_FUNCTION(slurm_spank_log, LEVEL_SPANK_LOG)

/* Not in spank.h: plugins that declare them themselves, and a libslurm that a
 * plugin brings along, find them here. */
void slurm_debug4(const char *format, ...) __attribute__((format(printf, 1, 2)));
void slurm_debug5(const char *format, ...) __attribute__((format(printf, 1, 2)));
LOG_FUNCTION(slurm_debug4, LEVEL_DEBUG3)
LOG_FUNCTION(slurm_debug5, LEVEL_DEBUG3)

/* libslurm's own code returns what it gets, always -1, though spank.h says void. */
int slurm_error_int(const char *format, ...) __asm__("slurm_error");
SPANK_API int slurm_error_int(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	log_va(LEVEL_ERROR, format, ap);
	va_end(ap);
	return SLURM_ERROR;
}

/* Ends this process as it would end slurmstepd, and nothing else: the crash of a
 * plugin, with a name. */
void slurm_fatal(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
SPANK_API void slurm_fatal(const char *format, ...)
{
	_cleanup_free_ char *text = NULL;
	va_list ap;

	va_start(ap, format);
	if (format == NULL || vasprintf(&text, format, ap) < 0)
		text = NULL;
	va_end(ap);
	log_text(LEVEL_ERROR, "fatal: %s", text ? text : "");
	plugin_fault(FAULT_FATAL, 1);
}

/* A name of Slurm's own that some plugins (oom-adj) call. Its siblings are not
 * here: `error' is glibc's, and the host's symbols come before a plugin's own. */
void debug(const char *format, ...) __attribute__((format(printf, 1, 2)));
LOG_FUNCTION(debug, LEVEL_DEBUG)
