/* SPDX-License-Identifier: Apache-2.0
 *
 * keys with NAME COMMAND...   runs the command with a session keyring that has a key of that name
 * keys add NAME               adds one to the session keyring that it has
 * keys user NAME              adds one to the user's keyring
 * keys see NAME...            says of each whether the session keyring leads to it
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/keyctl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int add(const char *name, int keyring)
{
	if (syscall(SYS_add_key, "user", name, "secret", 6, keyring) >= 0)
		return 0;
	perror("keys: add_key");
	return 1;
}

static int see(const char *name)
{
	long key = syscall(SYS_keyctl, KEYCTL_SEARCH, KEY_SPEC_SESSION_KEYRING, "user", name, 0);

	printf("%s: %s\n", name, key >= 0 ? "seen" : strerror(errno));
	return 0;
}

int main(int argc, char **argv)
{
	int rc = 0;

	if (argc < 3)
		return 2;
	if (strcmp(argv[1], "add") == 0)
		return add(argv[2], KEY_SPEC_SESSION_KEYRING);
	if (strcmp(argv[1], "user") == 0)
		return add(argv[2], KEY_SPEC_USER_KEYRING);
	if (strcmp(argv[1], "with") == 0) {
		if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) < 0 ||
		    add(argv[2], KEY_SPEC_SESSION_KEYRING) != 0)
			return 1;
		execvp(argv[3], argv + 3);
		return 1;
	}
	for (int i = 2; i < argc; i++)
		rc |= see(argv[i]);
	return rc;
}
