// SPDX-License-Identifier: Apache-2.0
/*
 * pamhost: opens a PAM session of the service slurm for a step, tells the step daemon what it
 * has changed of its own limits, and closes the session when the daemon says so or has ended.
 * It is run by slurmstepd, as root with the user's groups:
 *
 *	pamhost USER GID NODE
 *
 * A site's modules run in here: one that hangs or crashes ends this process alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "pamhost.h"

#ifndef STEPD_VERSION
#define STEPD_VERSION "unreleased"
#endif

/* Of pam(3), whose headers the build does not need: all are part of libpam's ABI. */
enum { PAM_SUCCESS = 0, PAM_BUF_ERR = 5, PAM_CONV_ERR = 19 };
enum { PAM_RHOST = 4, PAM_RUSER = 8 };
enum { PAM_ESTABLISH_CRED = 2, PAM_DELETE_CRED = 4 };
enum { PAM_ERROR_MSG = 3, PAM_TEXT_INFO = 4 };
enum { PAM_MAX_NUM_MSG = 32 };

struct pam_message {
	int style;
	const char *text;
};

struct pam_response {
	char *text;
	int code;
};

struct pam_conv {
	int (*talk)(int n, const struct pam_message **messages, struct pam_response **responses,
		    void *data);
	void *data;
};

struct pam {
	void *handle; /* of pam_start; NULL without one */
	int last;     /* the last result, which pam_end passes on to modules */
	int (*start)(const char *service, const char *user, const struct pam_conv *conv,
		     void **handle);
	int (*set_item)(void *handle, int item, const void *value);
	int (*setcred)(void *handle, int flags);
	int (*open)(void *handle, int flags);
	int (*close)(void *handle, int flags);
	int (*end)(void *handle, int status);
	const char *(*strerror)(void *handle, int code);
};

/* A question has no answer here. What modules have to say goes to the daemon's log. */
static int talk(int n, const struct pam_message **messages, struct pam_response **responses,
		void *data)
{
	(void)data;
	if (n <= 0 || n > PAM_MAX_NUM_MSG)
		return PAM_CONV_ERR;
	for (int i = 0; i < n; i++)
		if (messages[i]->style != PAM_ERROR_MSG && messages[i]->style != PAM_TEXT_INFO)
			return PAM_CONV_ERR;
	*responses = calloc((size_t)n, sizeof(**responses));
	if (*responses == NULL)
		return PAM_BUF_ERR;
	for (int i = 0; i < n; i++)
		(void)fprintf(stderr, "pamhost: %s\n", messages[i]->text ? messages[i]->text : "");
	return PAM_SUCCESS;
}

static void limits(uint64_t to[PAMHOST_LIMITS][2])
{
	struct rlimit r;

	for (int i = 0; i < PAMHOST_LIMITS; i++)
		if (getrlimit((__rlimit_resource_t)i, &r) == 0) {
			to[i][0] = r.rlim_cur;
			to[i][1] = r.rlim_max;
		}
}

static void answer(struct pamhost_answer *a)
{
	const char *at = (const char *)a;

	/* A pipe takes so little at once. The daemon's death is told by the other one. */
	while (write(PAMHOST_FD_ANSWER, at, sizeof(*a)) < 0 && errno == EINTR)
		continue;
}

/* Finds libpam's functions. False: the reason is in text. */
static bool load(struct pam *p, char text[PAMHOST_TEXT])
{
	static const char *const names[] = {"pam_start",	"pam_set_item",	     "pam_setcred",
					    "pam_open_session", "pam_close_session", "pam_end",
					    "pam_strerror"};
	void **to[] = {(void **)&p->start,   (void **)&p->set_item, (void **)&p->setcred,
		       (void **)&p->open,    (void **)&p->close,    (void **)&p->end,
		       (void **)&p->strerror};
	void *lib = dlopen("libpam.so.0", RTLD_NOW | RTLD_GLOBAL);

	for (size_t i = 0; lib != NULL && i < sizeof(names) / sizeof(names[0]); i++) {
		*to[i] = dlsym(lib, names[i]);
		if (*to[i] == NULL)
			lib = NULL;
	}
	if (lib == NULL)
		(void)snprintf(text, PAMHOST_TEXT, "cannot load libpam: %s", dlerror());
	return lib != NULL;
}

/* Notes a call's result. False: it failed, and text says how. */
static bool check(struct pam *p, const char *call, int code, char text[PAMHOST_TEXT])
{
	p->last = code;
	if (code != PAM_SUCCESS)
		(void)snprintf(text, PAMHOST_TEXT, "%s: %s", call, p->strerror(p->handle, code));
	return code == PAM_SUCCESS;
}

/* Opens the session in the order of Slurm's step daemon. What a failure leaves is taken back. */
static bool open_session(struct pam *p, char *const *argv, gid_t gid, char text[PAMHOST_TEXT])
{
	static const struct pam_conv conv = {.talk = talk};

	if (setegid(gid) < 0) {
		(void)snprintf(text, PAMHOST_TEXT, "cannot become group %u: %s", gid,
			       strerror(errno));
		return false;
	}
	if (!check(p, "pam_start", p->start("slurm", argv[1], &conv, &p->handle), text)) {
		p->handle = NULL;
		return false;
	}
	if (!check(p, "pam_set_item", p->set_item(p->handle, PAM_RUSER, argv[1]), text) ||
	    !check(p, "pam_set_item", p->set_item(p->handle, PAM_RHOST, argv[3]), text) ||
	    !check(p, "pam_setcred", p->setcred(p->handle, PAM_ESTABLISH_CRED), text))
		return false;
	if (check(p, "pam_open_session", p->open(p->handle, 0), text))
		return true;
	int failed = p->last;

	(void)p->setcred(p->handle, PAM_DELETE_CRED);
	p->last = failed;
	return false;
}

static void close_session(struct pam *p, char text[PAMHOST_TEXT])
{
	if (setegid(0) < 0)
		(void)snprintf(text, PAMHOST_TEXT, "cannot become root's group: %s",
			       strerror(errno));
	if (check(p, "pam_close_session", p->close(p->handle, 0), text))
		(void)check(p, "pam_setcred", p->setcred(p->handle, PAM_DELETE_CRED), text);
}

/* Returns when the daemon has closed its end, or has ended. */
static void await_end(void)
{
	char word;
	ssize_t n;

	do
		n = read(PAMHOST_FD_LIFE, &word, 1);
	while (n > 0 || (n < 0 && errno == EINTR));
}

int main(int argc, char **argv)
{
	struct pamhost_answer a = {0};
	struct pam p = {0};

	if (argc == 2 && strcmp(argv[1], "--version") == 0)
		return printf("pamhost %s\n", STEPD_VERSION) < 0;
	if (argc != 4 || fcntl(PAMHOST_FD_LIFE, F_SETFD, FD_CLOEXEC) < 0 ||
	    fcntl(PAMHOST_FD_ANSWER, F_SETFD, FD_CLOEXEC) < 0) {
		(void)fprintf(stderr, "pamhost: this program is run by slurmstepd\n");
		return 1;
	}
	(void)prctl(PR_SET_DUMPABLE, 0);
	limits(a.before);
	a.nice[0] = getpriority(PRIO_PROCESS, 0);
	bool open = load(&p, a.text) &&
		    open_session(&p, argv, (gid_t)strtoul(argv[2], NULL, 10), a.text);

	limits(a.after);
	a.nice[1] = getpriority(PRIO_PROCESS, 0);
	a.code = open ? PAM_SUCCESS : p.last != PAM_SUCCESS ? p.last : -1;
	answer(&a);
	if (open) {
		await_end();
		p.last = PAM_SUCCESS;
		close_session(&p, a.text);
		a.code = p.last;
		answer(&a);
	}
	if (p.handle != NULL)
		(void)p.end(p.handle, p.last);
	return a.code != PAM_SUCCESS;
}
