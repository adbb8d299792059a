/* SPDX-License-Identifier: Apache-2.0
 *
 * What the functions share that plugins call.
 */
#ifndef STEPD_API_H
#define STEPD_API_H

#include "host.h"

/* In the dynamic symbol table, which exports.list also says. */
#define SPANK_API __attribute__((visibility("default")))

/* The host, if spank is a handle that it gave out, else NULL. */
struct host *host_of(spank_t spank);

/* Copies a value to a plugin's buffer as spank_getenv does: cut, terminated and
 * ESPANK_NOSPACE if it does not fit; untouched if len is 0. */
spank_err_t copy_value(const char *value, char *buf, int len);

#endif
