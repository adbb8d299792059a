// SPDX-License-Identifier: Apache-2.0
/*
 * Stands for libpam in pamhost's tests. What the user's name says is done: "deny", "crash",
 * "hang", "ask" a question, "start" fails. Each call is a line on stdout.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

struct message {
	int style;
	const char *text;
};

struct conv {
	int (*talk)(int n, const struct message **messages, void **responses, void *data);
	void *data;
};

static struct {
	char user[64];
	struct conv conv;
} self;

static void say(const char *call, int number)
{
	char line[128];
	int n = snprintf(line, sizeof(line), "%s %d\n", call, number);

	(void)!write(1, line, (size_t)n);
}

static int speak(int style, const char *text)
{
	struct message m = {style, text};
	const struct message *list = &m;
	void *response = NULL;
	int code = self.conv.talk(1, &list, &response, self.conv.data);

	free(response);
	return code;
}

int pam_start(const char *service, const char *user, const struct conv *conv, void **handle)
{
	say(service, 0);
	if (strcmp(user, "start") == 0)
		return 4;
	(void)snprintf(self.user, sizeof(self.user), "%s", user);
	self.conv = *conv;
	*handle = &self;
	return 0;
}

int pam_set_item(void *handle, int item, const void *value)
{
	(void)handle;
	say(value, item);
	return 0;
}

int pam_setcred(void *handle, int flags)
{
	(void)handle;
	say("setcred", flags);
	return strcmp(self.user, "cred") == 0 ? 17 : 0;
}

int pam_open_session(void *handle, int flags)
{
	struct rlimit files = {100, 200};

	(void)handle;
	say("open", flags);
	if (strcmp(self.user, "deny") == 0)
		return 14;
	if (strcmp(self.user, "crash") == 0)
		abort();
	if (strcmp(self.user, "hang") == 0)
		(void)pause();
	if (strcmp(self.user, "ask") == 0)
		return speak(1, "password: ");
	(void)setrlimit(RLIMIT_NOFILE, &files);
	(void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + 1);
	return speak(4, "welcome");
}

int pam_close_session(void *handle, int flags)
{
	(void)handle;
	say("close", flags);
	return strcmp(self.user, "stay") == 0 ? 14 : 0;
}

int pam_end(void *handle, int status)
{
	(void)handle;
	say("end", status);
	return 0;
}

const char *pam_strerror(void *handle, int code)
{
	static char text[32];

	(void)handle;
	(void)snprintf(text, sizeof(text), "error %d", code);
	return text;
}
