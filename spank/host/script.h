/* SPDX-License-Identifier: Apache-2.0
 *
 * The scripts around a task: TaskProlog, TaskEpilog and the user's own.
 */
#ifndef STEPD_SCRIPT_H
#define STEPD_SCRIPT_H

#include <stdbool.h>
#include <stddef.h>

#include "host.h"

/* What a script may write of what is read from it, and a line of that: a variable
 * beyond MAX_ARG_STRLEN could not be given to a program. */
#define SCRIPT_OUTPUT_MAX (1u << 20)
#define SCRIPT_LINE_MAX	  (128u << 10)

/* What a line of a task prolog's output asks for. */
enum verb {
	VERB_NONE,
	VERB_EXPORT,
	VERB_UNSET,
	VERB_PRINT,
};

/* Reads a line, which it takes apart. name and value are parts of it, where the verb
 * has such; print has its text as value. */
enum verb verb_parse(char *line, char **name, char **value);

/* Called for each line, without its end; arg is the caller's. */
typedef void script_line(struct host *h, char *line, void *arg);

/* Runs a script to its end, as who we are, with the job's environment. fd is the one
 * of its descriptors (1 or 2) whose lines are reported; its input is empty. False if it
 * did not end with code 0: why says so, and status is an exit code for that. */
bool script_run(struct host *h, const struct script *s, int fd, script_line *told, void *arg,
		char *why, size_t size, int *status);

#endif
