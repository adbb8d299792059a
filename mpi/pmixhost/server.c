// SPDX-License-Identifier: Apache-2.0
/* stepd's commands, carried out by the library. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "host.h"
#include "protocol.h"

static struct user user;
static bool ready; /* SETUP has been done */

/* A call that takes a callback is waited for by the library where it gets none;
 * "done at once" is what it says then. */
static pmix_status_t at_once(pmix_status_t rc)
{
	return rc == PMIX_OPERATION_SUCCEEDED ? PMIX_SUCCESS : rc;
}

static char **in_strings(struct reader *r)
{
	uint32_t n = rd_count(r, 4);
	char **list = must(calloc((size_t)n + 1, sizeof(*list)));

	for (uint32_t i = 0; i < n; i++)
		list[i] = rd_copy(r);
	return list;
}

static void free_strings(char **list)
{
	for (char **s = list; s != NULL && *s != NULL; s++)
		free(*s);
	free(list);
}

struct setup {
	uint32_t flags;
	char *folder;
	pmix_proc_t self;
	char **env;
};

static void in_setup(struct reader *r, struct setup *s)
{
	uint32_t n;

	s->flags = rd_u32(r);
	user.uid = rd_u32(r);
	user.gid = rd_u32(r);
	n = rd_count(r, 4);
	user.ngroups = n;
	user.groups = must(calloc((size_t)n + 1, sizeof(*user.groups)));
	for (uint32_t i = 0; i < n; i++)
		user.groups[i] = rd_u32(r);
	user.data_limit = rd_u64(r);
	s->folder = rd_copy(r);
	rd_proc(r, &s->self);
	s->env = in_strings(r);
}

static void set_environment(char **env)
{
	clearenv();
	for (char **e = env; *e != NULL; e++) {
		char *eq = strchr(*e, '=');

		if (eq == NULL)
			continue;
		*eq = 0;
		(void)setenv(*e, eq + 1, 1);
	}
}

static pmix_status_t start_library(const struct setup *s)
{
	bool tools = (s->flags & SETUP_TOOLS) != 0, no = false;
#ifdef PMIX_SERVER_SHARE_TOPOLOGY
	bool topology = (s->flags & SETUP_TOPOLOGY) != 0;
#endif
	pmix_status_t lost = PMIX_ERR_LOST_CONNECTION, rc;
	pmix_info_t info[10];
	char uri[PATH_MAX];
	size_t n = 0;

	memset(info, 0, sizeof(info));
	PMIX_INFO_LOAD(&info[n], PMIX_SERVER_TMPDIR, s->folder, PMIX_STRING);
	n++;
	PMIX_INFO_LOAD(&info[n], PMIX_SYSTEM_TMPDIR, s->folder, PMIX_STRING);
	n++;
	PMIX_INFO_LOAD(&info[n], PMIX_SERVER_NSPACE, s->self.nspace, PMIX_STRING);
	n++;
	PMIX_INFO_LOAD(&info[n], PMIX_SERVER_RANK, &s->self.rank, PMIX_PROC_RANK);
	n++;
	PMIX_INFO_LOAD(&info[n], PMIX_SERVER_TOOL_SUPPORT, &tools, PMIX_BOOL);
	n++;
	PMIX_INFO_LOAD(&info[n], PMIX_SERVER_REMOTE_CONNECTIONS, &no, PMIX_BOOL);
	n++;
#ifdef PMIX_SERVER_SHARE_TOPOLOGY
	PMIX_INFO_LOAD(&info[n], PMIX_SERVER_SHARE_TOPOLOGY, &topology, PMIX_BOOL);
	n++;
#endif
	/* How a user's tool finds us; the library takes it away at its end. */
	(void)snprintf(uri, sizeof(uri), "%s/uri", s->folder);
	PMIX_INFO_LOAD(&info[n], PMIX_TCP_REPORT_URI, uri, PMIX_STRING);
	n++;
#ifdef PMIX_IOF_LOCAL_OUTPUT
	PMIX_INFO_LOAD(&info[n], PMIX_IOF_LOCAL_OUTPUT, &no, PMIX_BOOL);
	n++;
#endif
	rc = PMIx_server_init(&upcalls, info, n);
	for (size_t i = 0; i < n; i++)
		PMIX_INFO_DESTRUCT(&info[i]);
	if (rc == PMIX_SUCCESS)
		PMIx_Register_event_handler(&lost, 1, NULL, 0, lost_connection, NULL, NULL);
	return rc;
}

static void setup(struct frame *f)
{
	struct setup s = {0};
	struct out w = {0};
	const char *what;
	pmix_status_t rc;

	if (rd_u32(&f->body) != PMIXHOST_PROTOCOL_VERSION) {
		errno = EPROTO;
		done_errno(f->id, "cannot speak stepd's version of the protocol");
		return;
	}
	in_setup(&f->body, &s);
	if (!rd_done(&f->body) || ready) {
		errno = EPROTO;
		done_errno(f->id, "cannot read SETUP");
		goto out;
	}
	if (!user_become(&user, (s.flags & SETUP_JOIN_NS) != 0, &what)) {
		done_errno(f->id, what);
		goto out;
	}
	peer_allow(user.uid);
	set_environment(s.env);
	rc = start_library(&s);
	if (rc != PMIX_SUCCESS) {
		done(f->id, rc, "cannot start the PMIx server (PMIx_server_init)");
		goto out;
	}
	ready = true;
	frame_begin(&w, REP_DONE, f->id);
	out_i32(&w, PMIX_SUCCESS);
	out_str(&w, "");
	out_str(&w, PMIx_Get_version());
	frame_send(&w);
out:
	free(s.folder);
	free_strings(s.env);
}

/* The maps of nodes and of their ranks come as plain lists; each release has its
 * own form for them. */
static pmix_status_t compress_map(pmix_info_t *info)
{
	char *plain = info->value.data.string, *regex = NULL;
	bool nodes = strcmp(info->key, PMIX_NODE_MAP) == 0;
	pmix_status_t rc;

	rc = nodes ? PMIx_generate_regex(plain, &regex) : PMIx_generate_ppn(plain, &regex);
	if (rc != PMIX_SUCCESS)
		return rc;
	free(plain);
	info->value.data.string = NULL;
#ifdef PMIX_REGEX
	PMIX_INFO_LOAD(info, nodes ? PMIX_NODE_MAP : PMIX_PROC_MAP, regex, PMIX_REGEX);
#else
	PMIX_INFO_LOAD(info, nodes ? PMIX_NODE_MAP : PMIX_PROC_MAP, regex, PMIX_STRING);
#endif
	free(regex);
	return PMIX_SUCCESS;
}

static pmix_status_t compress_maps(pmix_info_t *info, size_t n)
{
	pmix_status_t rc = PMIX_SUCCESS;

	for (size_t i = 0; i < n && rc == PMIX_SUCCESS; i++) {
		if (info[i].value.type == PMIX_STRING && (strcmp(info[i].key, PMIX_NODE_MAP) == 0 ||
							  strcmp(info[i].key, PMIX_PROC_MAP) == 0))
			rc = compress_map(&info[i]);
	}
	return rc;
}

static void register_nspace(struct frame *f)
{
	char *name = rd_copy(&f->body);
	uint32_t local = rd_u32(&f->body);
	size_t n = 0;
	pmix_info_t *info = rd_infos(&f->body, &n);
	pmix_nspace_t nspace = {0};
	pmix_status_t rc = PMIX_ERR_BAD_PARAM;

	if (rd_done(&f->body) && strlen(name) <= PMIX_MAX_NSLEN) {
		strncpy(nspace, name, PMIX_MAX_NSLEN);
		rc = compress_maps(info, n);
	}
	if (rc == PMIX_SUCCESS)
		rc = at_once(PMIx_server_register_nspace(nspace, (int)local, info, n, NULL, NULL));
	done(f->id, rc, "cannot register the job (PMIx_server_register_nspace)");
	if (info != NULL)
		PMIX_INFO_FREE(info, n);
	free(name);
}

static pmix_status_t register_client(const pmix_proc_t *proc, struct out *w)
{
	char **env = NULL;
	uint32_t n = 0;
	pmix_status_t rc;

	rc = at_once(PMIx_server_register_client(proc, user.uid, user.gid, NULL, NULL, NULL));
	if (rc != PMIX_SUCCESS)
		return rc;
	rc = PMIx_server_setup_fork(proc, &env);
	if (rc == PMIX_SUCCESS) {
		for (; env != NULL && env[n] != NULL; n++)
			;
		out_u32(w, n);
		for (uint32_t i = 0; i < n; i++)
			out_str(w, env[i]);
	}
	free_strings(env);
	return rc;
}

static void register_clients(struct frame *f)
{
	pmix_proc_t proc = {0};
	char *name = rd_copy(&f->body);
	uint32_t n = rd_count(&f->body, 4);
	pmix_status_t rc = f->body.bad ? PMIX_ERR_BAD_PARAM : PMIX_SUCCESS;
	struct out w = {0};

	strncpy(proc.nspace, name, PMIX_MAX_NSLEN);
	free(name);
	frame_begin(&w, REP_DONE, f->id);
	out_i32(&w, PMIX_SUCCESS);
	out_str(&w, "");
	out_u32(&w, n);
	for (uint32_t i = 0; i < n && rc == PMIX_SUCCESS; i++) {
		proc.rank = rd_u32(&f->body);
		rc = register_client(&proc, &w);
	}
	if (rc != PMIX_SUCCESS) {
		out_free(&w);
		done(f->id, rc,
		     "cannot register the tasks (PMIx_server_register_client, "
		     "PMIx_server_setup_fork)");
	} else if (!frame_send(&w)) {
		done(f->id, PMIX_ERR_OUT_OF_RESOURCE,
		     "cannot tell the environment of so many tasks");
	}
}

static void drop(struct frame *f)
{
	char *name = rd_copy(&f->body);
	pmix_nspace_t nspace = {0};

	strncpy(nspace, name, PMIX_MAX_NSLEN);
	free(name);
	PMIx_server_deregister_nspace(nspace, NULL, NULL);
	done(f->id, PMIX_SUCCESS, "");
}

static void modex_response(pmix_status_t status, char *data, size_t size, void *cbdata)
{
	uint32_t id = (uint32_t)(uintptr_t)cbdata;
	struct out w = {0};

	frame_begin(&w, REP_DONE, id);
	out_i32(&w, status);
	out_str(&w, status == PMIX_SUCCESS ? "" : "cannot get what the rank has put");
	out_bytes(&w, data, data != NULL ? size : 0);
	if (!frame_send(&w))
		done(id, PMIX_ERR_OUT_OF_RESOURCE,
		     "cannot send what the rank has put: it is too long");
}

static void modex(struct frame *f)
{
	pmix_proc_t proc;
	pmix_status_t rc = PMIX_ERR_BAD_PARAM;

	rd_proc(&f->body, &proc);
	if (rd_done(&f->body))
		rc = PMIx_server_dmodex_request(&proc, modex_response, (void *)(uintptr_t)f->id);
	if (rc != PMIX_SUCCESS)
		modex_response(rc, NULL, 0, (void *)(uintptr_t)f->id);
}

/* An event's infos must live until the library has notified every process. */
struct event {
	uint32_t id;
	pmix_proc_t source;
	pmix_info_t *info;
	size_t n;
};

static void notified(pmix_status_t status, void *cbdata)
{
	struct event *e = cbdata;

	done(e->id, at_once(status), "cannot tell the event");
	if (e->info != NULL)
		PMIX_INFO_FREE(e->info, e->n);
	free(e);
}

static void notify(struct frame *f)
{
	struct event *e = must(calloc(1, sizeof(*e)));
	pmix_status_t status = (pmix_status_t)rd_u32(&f->body), rc = PMIX_ERR_BAD_PARAM;
	uint32_t range;

	e->id = f->id;
	rd_proc(&f->body, &e->source);
	range = rd_u32(&f->body);
	e->info = rd_infos(&f->body, &e->n);
	if (rd_done(&f->body))
		rc = PMIx_Notify_event(status, &e->source, (pmix_data_range_t)range, e->info, e->n,
				       notified, e);
	if (rc != PMIX_SUCCESS)
		notified(rc, e);
}

/* What the library has made in its folder goes with it. */
static void end(struct frame *f)
{
	pmix_status_t rc = ready ? PMIx_server_finalize() : PMIX_SUCCESS;

	done(f->id, rc, "cannot end the PMIx server (PMIx_server_finalize)");
	_exit(0);
}

void server_command(struct frame *f)
{
	if (f->type == CMD_SETUP) {
		setup(f);
		return;
	}
	if (f->type == CMD_END)
		end(f);
	if (!ready) {
		errno = EPROTO;
		done_errno(f->id, "cannot do anything before SETUP");
		return;
	}
	switch (f->type) {
	case CMD_NSPACE:
		register_nspace(f);
		break;
	case CMD_CLIENTS:
		register_clients(f);
		break;
	case CMD_DROP:
		drop(f);
		break;
	case CMD_MODEX:
		modex(f);
		break;
	case CMD_NOTIFY:
		notify(f);
		break;
	case CMD_ANSWER:
		upcall_answer(f->id, &f->body);
		break;
	case CMD_SYNC:
		upcall_sync(f->id);
		break;
	default:
		errno = EPROTO;
		done_errno(f->id, "cannot understand the command");
	}
}
