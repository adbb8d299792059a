/* SPDX-License-Identifier: Apache-2.0
 *
 * A runner of tests: each is a function, and CHECK ends the program at the
 * first thing that is not so.
 */
#ifndef STEPD_TEST_H
#define STEPD_TEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(cond)                                                                                \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__,   \
				#cond);                                                            \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

#define CHECK_INT(have, want)                                                                      \
	do {                                                                                       \
		long long have_ = (long long)(have), want_ = (long long)(want);                    \
		if (have_ != want_) {                                                              \
			fprintf(stderr, "%s:%d: %s: %s is %lld, want %lld\n", __FILE__, __LINE__,  \
				__func__, #have, have_, want_);                                    \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

#define CHECK_STR(have, want)                                                                      \
	do {                                                                                       \
		const char *have_ = (have), *want_ = (want);                                       \
		if (have_ == NULL || strcmp(have_, want_) != 0) {                                  \
			fprintf(stderr, "%s:%d: %s: %s is \"%s\", want \"%s\"\n", __FILE__,        \
				__LINE__, __func__, #have, have_ ? have_ : "(null)", want_);       \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

#define RUN(test)                                                                                  \
	do {                                                                                       \
		test();                                                                            \
		printf("ok %s\n", #test);                                                          \
	} while (0)

#endif
