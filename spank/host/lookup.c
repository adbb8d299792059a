// SPDX-License-Identifier: Apache-2.0
/* spankhost --lookup: questions to the C library's name service, which knows
 * the site's LDAP and SSSD. One line in, lines NAME=VALUE out; a process of its
 * own, since a name service may hang or crash. */
#define _GNU_SOURCE
#include <ctype.h>
#include <grp.h>
#include <pwd.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "host.h"
#include "util.h"

/* Exit codes. */
enum { FOUND = 0, NOT_FOUND = 2, FAILED = 3 };

#define REQUEST_MAX 1024
#define ENTRY_MAX   (16u << 20) /* a group with all users of a large site */
#define GROUPS_MAX  65536	/* NGROUPS_MAX */

static int failed(const char *what, int error)
{
	dprintf(2, "cannot %s: %s\n", what, strerror(error));
	return FAILED;
}

/* A value with a line break in it would be read as two answers. */
static bool one_line(const char *s)
{
	return s != NULL && s[strcspn(s, "\r\n")] == 0;
}

static bool parse_id(const char *text, uint32_t *id)
{
	char *end;

	errno = 0;
	unsigned long long v = strtoull(text, &end, 10);
	*id = (uint32_t)v;
	/* The last number means "no change" to the kernel. */
	return isdigit((unsigned char)text[0]) && *end == 0 && errno == 0 && v < UINT32_MAX;
}

/* Not found is 0 with no entry, or one of these (getpwnam(3)). */
static bool means_not_found(int error)
{
	return error == 0 || error == ENOENT || error == ESRCH || error == EBADF || error == EPERM;
}

static bool print_groups(FILE *to, const char *name, gid_t gid)
{
	int cap = 64;

	for (;;) {
		_cleanup_free_ gid_t *groups = must_zero((size_t)cap, sizeof(*groups));
		int n = cap;

		if (getgrouplist(name, gid, groups, &n) >= 0) {
			fputs("groups=", to);
			for (int i = 0; i < n; i++)
				fprintf(to, "%s%u", i ? "," : "", groups[i]);
			fputc('\n', to);
			return true;
		}
		if (cap >= GROUPS_MAX)
			return false;
		cap = n > cap && n <= GROUPS_MAX ? n
						 : (2 * cap < GROUPS_MAX ? 2 * cap : GROUPS_MAX);
	}
}

static int print_user(const struct passwd *pw)
{
	_cleanup_free_ char *text = NULL;
	size_t len;
	FILE *to;

	if (!one_line(pw->pw_name))
		return failed("use the entry of the user: it has a line break", EINVAL);
	to = must(open_memstream(&text, &len));
	fprintf(to, "uid=%u\ngid=%u\nname=%s\n", pw->pw_uid, pw->pw_gid, pw->pw_name);
	bool ok = print_groups(to, pw->pw_name, pw->pw_gid);
	/* All or nothing: a list of groups that was cut would grant less, or more. */
	if (fclose(to) != 0 || !ok)
		return failed("list the groups of the user", ENOMEM);
	return dprintf(1, "%s", text) < 0 ? FAILED : FOUND;
}

static int lookup_user(const char *name, uint32_t uid)
{
	for (size_t size = 4096; size <= ENTRY_MAX; size *= 4) {
		_cleanup_free_ char *buf = must(malloc(size));
		struct passwd pw, *found = NULL;
		int error = name ? getpwnam_r(name, &pw, buf, size, &found)
				 : getpwuid_r(uid, &pw, buf, size, &found);

		if (error == ERANGE)
			continue;
		if (found != NULL)
			return print_user(found);
		return means_not_found(error) ? NOT_FOUND : failed("look up the user", error);
	}
	return failed("look up the user: the entry is too large", ERANGE);
}

static int lookup_group(const char *name, uint32_t gid)
{
	for (size_t size = 4096; size <= ENTRY_MAX; size *= 4) {
		_cleanup_free_ char *buf = must(malloc(size));
		struct group gr, *found = NULL;
		int error = name ? getgrnam_r(name, &gr, buf, size, &found)
				 : getgrgid_r(gid, &gr, buf, size, &found);

		if (error == ERANGE)
			continue;
		if (found != NULL && !one_line(found->gr_name))
			return failed("use the entry of the group: it has a line break", EINVAL);
		if (found != NULL)
			return dprintf(1, "gid=%u\nname=%s\n", gr.gr_gid, gr.gr_name) < 0 ? FAILED
											  : FOUND;
		return means_not_found(error) ? NOT_FOUND : failed("look up the group", error);
	}
	return failed("look up the group: the entry is too large", ERANGE);
}

/* Answers "user NAME", "uid N", "group NAME" or "gid N". */
static int answer(char *request)
{
	char *value = strchr(request, ' ');
	uint32_t id;

	if (value == NULL || value[1] == 0)
		return failed("read the request: want \"user NAME\", \"uid N\", \"group NAME\" or "
			      "\"gid N\"",
			      EINVAL);
	*value++ = 0;
	if (strcmp(request, "user") == 0)
		return lookup_user(value, 0);
	if (strcmp(request, "group") == 0)
		return lookup_group(value, 0);
	if (strcmp(request, "uid") == 0 && parse_id(value, &id))
		return lookup_user(NULL, id);
	if (strcmp(request, "gid") == 0 && parse_id(value, &id))
		return lookup_group(NULL, id);
	return failed("read the request", EINVAL);
}

int lookup_main(void)
{
	char request[REQUEST_MAX];
	size_t len = 0;

	while (len < sizeof(request) - 1 && memchr(request, '\n', len) == NULL) {
		ssize_t n = RETRY(read(0, request + len, sizeof(request) - 1 - len));

		if (n < 0)
			return failed("read the request", errno);
		if (n == 0)
			break;
		len += (size_t)n;
	}
	if (len == sizeof(request) - 1 && memchr(request, '\n', len) == NULL)
		return failed("read the request", E2BIG);
	request[len] = 0;
	if (strlen(request) != len)
		return failed("read the request", EINVAL);
	request[strcspn(request, "\n")] = 0;
	return answer(request);
}
