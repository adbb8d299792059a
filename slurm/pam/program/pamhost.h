/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a pamhost and its step daemon say to each other. The Go half reads these lines
 * (slurm/pam/pam_test.go).
 */
#ifndef PAMHOST_H
#define PAMHOST_H

#include <stdint.h>

/* The end of a pipe that the daemon alone writes to: its end closes the session. */
#define PAMHOST_FD_LIFE 3
/* Two answers are written here: of the session's opening, and of its close. */
#define PAMHOST_FD_ANSWER 4

#define PAMHOST_LIMITS 16
#define PAMHOST_TEXT   216

/* Of one machine: no byte order, and no padding. */
struct pamhost_answer {
	/* PAM's number of an error, 0 for none. */
	int32_t code;
	/* The nice value, before the session and in it. */
	int32_t nice[2];
	uint32_t zero;
	/* The limits of setrlimit(2) by their numbers, each soft and hard. */
	uint64_t before[PAMHOST_LIMITS][2];
	uint64_t after[PAMHOST_LIMITS][2];
	/* What failed and why, ended by a zero byte. */
	char text[PAMHOST_TEXT];
};

#endif
