/* SPDX-License-Identifier: Apache-2.0
 *
 * pmixhost: what its files know of each other.
 *
 * Two kinds of threads: the main one, which reads stepd's commands, and
 * libpmix's own, which call upcalls.c and the callbacks of server.c. They share the
 * channel (channel.c) and nothing else.
 */
#ifndef PMIXHOST_HOST_H
#define PMIXHOST_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

#include <pmix.h>
#include <pmix_server.h>

#include "buf.h"

/* Ends the process: a host without memory can do nothing, and stepd sees that it
 * is gone. */
void *must(void *p);

/* channel.c */
struct frame {
	uint32_t type, id;
	struct reader body; /* in buf */
	uint8_t *buf;
};

/* The next frame of stepd; false at its end. A frame that breaks the protocol
 * ends the process. The caller frees buf. */
bool channel_read(struct frame *f);
/* Begins a frame in an empty w, and sends it and frees w. send is false where the
 * frame was too long; nothing was sent then. */
void frame_begin(struct out *w, uint32_t type, uint32_t id);
bool frame_send(struct out *w);
/* DONE with a failure of the library, or of the system (errno). */
void done(uint32_t id, pmix_status_t status, const char *what);
void done_errno(uint32_t id, const char *what);
/* A line for the administrator. */
void word(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* user.c: joins the job's mount namespace where ns is, and becomes the user for
 * good. what says what went wrong, and errno why. */
struct user {
	uid_t uid;
	gid_t gid;
	size_t ngroups;
	gid_t *groups;
	uint64_t data_limit;
};
bool user_become(const struct user *u, bool join, const char **what);

/* values.c */
void out_proc(struct out *w, const char *nspace, pmix_rank_t rank);
void out_procs(struct out *w, const pmix_proc_t *procs, size_t n);
void out_value(struct out *w, const pmix_value_t *v, int depth);
void out_infos(struct out *w, const pmix_info_t *info, size_t n);
void rd_proc(struct reader *r, pmix_proc_t *proc);
void rd_value(struct reader *r, pmix_value_t *v, int depth);
/* For PMIX_INFO_FREE. */
pmix_info_t *rd_infos(struct reader *r, size_t *n);
/* A value in the library's own form, whatever its type is. */
void out_packed(struct out *w, const pmix_value_t *v);
pmix_status_t rd_packed(struct reader *r, pmix_value_t *v);

/* server.c: stepd's commands. */
void server_command(struct frame *f);

/* upcalls.c */
extern pmix_server_module_t upcalls;
/* Hands stepd's answer to the library, in its own thread. */
void upcall_answer(uint32_t id, const struct reader *body);
/* DONE when its thread has done what it was given before. */
void upcall_sync(uint32_t id);
void lost_connection(size_t handler, pmix_status_t status, const pmix_proc_t *source,
		     pmix_info_t info[], size_t ninfo, pmix_info_t results[], size_t nresults,
		     pmix_event_notification_cbfunc_fn_t cbfunc, void *cbdata);

/* peer.c: sets who may connect, once the limit of open files is the last. */
void peer_allow(uid_t uid);

/* quick.c: lets no message to or from a client wait for an acknowledgement. */
void quick_connection(int sd);

#endif
