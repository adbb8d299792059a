// SPDX-License-Identifier: Apache-2.0
/* What the library asks of its host, handed to stepd. Nothing is decided here:
 * an upcall becomes a frame with a number, and stepd's answer finds the library's
 * callback by it. All of this but upcall_answer runs in the library's threads. */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>

#include "host.h"
#include "protocol.h"

/* An upcall that waits for its answer; type 0 is a free place. */
struct pending {
	uint32_t type;
	union {
		pmix_op_cbfunc_t op;
		pmix_modex_cbfunc_t modex;
		pmix_lookup_cbfunc_t lookup;
		pmix_spawn_cbfunc_t spawn;
		pmix_info_cbfunc_t info;
		pmix_tool_connection_cbfunc_t tool;
	} call;
	void *data;
	uint32_t next; /* of the free places */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pending *table; /* guarded by lock; number n is at n-1 */
static uint32_t places, used, unused;

/* A number for an upcall. */
static uint32_t remember(struct pending p)
{
	uint32_t id;

	pthread_mutex_lock(&lock);
	if (unused != 0) {
		id = unused;
		unused = table[id - 1].next;
	} else {
		if (used == places) {
			places = places != 0 ? places * 2 : 64;
			table = must(reallocarray(table, places, sizeof(*table)));
		}
		id = ++used;
	}
	table[id - 1] = p;
	pthread_mutex_unlock(&lock);
	return id;
}

static struct pending recall(uint32_t id)
{
	struct pending p = {0};

	pthread_mutex_lock(&lock);
	if (id > 0 && id <= used && table[id - 1].type != 0) {
		p = table[id - 1];
		table[id - 1] = (struct pending){.next = unused};
		unused = id;
	}
	pthread_mutex_unlock(&lock);
	return p;
}

/* Sends an upcall whose answer goes to p. */
static pmix_status_t ask(struct out *w, uint32_t id)
{
	if (frame_send(w))
		return PMIX_SUCCESS;
	recall(id);
	word("an upcall of more than %d bytes was refused", PMIXHOST_FRAME_MAX);
	return PMIX_ERR_OUT_OF_RESOURCE;
}

static void tell(uint32_t type, const pmix_proc_t *proc)
{
	struct out w = {0};

	frame_begin(&w, type, 0);
	out_proc(&w, proc->nspace, proc->rank);
	frame_send(&w);
}

static pmix_status_t client_connected(const pmix_proc_t *proc, void *object,
				      pmix_op_cbfunc_t cbfunc, void *cbdata)
{
	(void)object, (void)cbfunc, (void)cbdata;
	tell(UP_CONNECTED, proc);
	return PMIX_OPERATION_SUCCEEDED;
}

#if PMIX_VERSION_MAJOR >= 4
static pmix_status_t client_connected2(const pmix_proc_t *proc, void *object, pmix_info_t info[],
				       size_t ninfo, pmix_op_cbfunc_t cbfunc, void *cbdata)
{
	(void)info, (void)ninfo;
	return client_connected(proc, object, cbfunc, cbdata);
}
#endif

static pmix_status_t client_finalized(const pmix_proc_t *proc, void *object,
				      pmix_op_cbfunc_t cbfunc, void *cbdata)
{
	(void)object, (void)cbfunc, (void)cbdata;
	tell(UP_FINALIZED, proc);
	return PMIX_OPERATION_SUCCEEDED;
}

static pmix_status_t aborted(const pmix_proc_t *proc, void *object, int status, const char msg[],
			     pmix_proc_t procs[], size_t nprocs, pmix_op_cbfunc_t cbfunc,
			     void *cbdata)
{
	uint32_t id = remember((struct pending){UP_ABORT, {.op = cbfunc}, cbdata, 0});
	struct out w = {0};

	(void)object;
	frame_begin(&w, UP_ABORT, id);
	out_proc(&w, proc->nspace, proc->rank);
	out_i32(&w, status);
	out_str(&w, msg);
	out_procs(&w, procs, procs != NULL ? nprocs : 0);
	return ask(&w, id);
}

static pmix_status_t fence_nb(const pmix_proc_t procs[], size_t nprocs, const pmix_info_t info[],
			      size_t ninfo, char *data, size_t ndata, pmix_modex_cbfunc_t cbfunc,
			      void *cbdata)
{
	uint32_t id = remember((struct pending){UP_FENCE, {.modex = cbfunc}, cbdata, 0});
	struct out w = {0};

	frame_begin(&w, UP_FENCE, id);
	out_procs(&w, procs, nprocs);
	out_infos(&w, info, ninfo);
	out_bytes(&w, data, data != NULL ? ndata : 0);
#if PMIX_VERSION_MAJOR == 4
	free(data); /* these releases hand it over; of others it is not known */
#endif
	return ask(&w, id);
}

static pmix_status_t direct_modex(const pmix_proc_t *proc, const pmix_info_t info[], size_t ninfo,
				  pmix_modex_cbfunc_t cbfunc, void *cbdata)
{
	uint32_t id = remember((struct pending){UP_MODEX, {.modex = cbfunc}, cbdata, 0});
	struct out w = {0};

	frame_begin(&w, UP_MODEX, id);
	out_proc(&w, proc->nspace, proc->rank);
	out_infos(&w, info, ninfo);
	return ask(&w, id);
}

static pmix_status_t publish(const pmix_proc_t *proc, const pmix_info_t info[], size_t ninfo,
			     pmix_op_cbfunc_t cbfunc, void *cbdata)
{
	uint32_t id = remember((struct pending){UP_PUBLISH, {.op = cbfunc}, cbdata, 0});
	struct out w = {0};

	frame_begin(&w, UP_PUBLISH, id);
	out_proc(&w, proc->nspace, proc->rank);
	out_infos(&w, info, ninfo);
	out_u32(&w, (uint32_t)ninfo);
	for (size_t i = 0; i < ninfo; i++)
		out_packed(&w, &info[i].value);
	return ask(&w, id);
}

static void out_strings(struct out *w, char **list)
{
	uint32_t n = 0;

	for (; list != NULL && list[n] != NULL; n++)
		;
	out_u32(w, n);
	for (uint32_t i = 0; i < n; i++)
		out_str(w, list[i]);
}

static pmix_status_t lookup(const pmix_proc_t *proc, char **keys, const pmix_info_t info[],
			    size_t ninfo, pmix_lookup_cbfunc_t cbfunc, void *cbdata)
{
	uint32_t id = remember((struct pending){UP_LOOKUP, {.lookup = cbfunc}, cbdata, 0});
	struct out w = {0};

	frame_begin(&w, UP_LOOKUP, id);
	out_proc(&w, proc->nspace, proc->rank);
	out_strings(&w, keys);
	out_infos(&w, info, ninfo);
	return ask(&w, id);
}

static pmix_status_t unpublish(const pmix_proc_t *proc, char **keys, const pmix_info_t info[],
			       size_t ninfo, pmix_op_cbfunc_t cbfunc, void *cbdata)
{
	uint32_t id = remember((struct pending){UP_UNPUBLISH, {.op = cbfunc}, cbdata, 0});
	struct out w = {0};

	frame_begin(&w, UP_UNPUBLISH, id);
	out_proc(&w, proc->nspace, proc->rank);
	out_strings(&w, keys);
	out_infos(&w, info, ninfo);
	return ask(&w, id);
}

static pmix_status_t spawn(const pmix_proc_t *proc, const pmix_info_t job_info[], size_t ninfo,
			   const pmix_app_t apps[], size_t napps, pmix_spawn_cbfunc_t cbfunc,
			   void *cbdata)
{
	uint32_t id = remember((struct pending){UP_SPAWN, {.spawn = cbfunc}, cbdata, 0});
	struct out w = {0};

	frame_begin(&w, UP_SPAWN, id);
	out_proc(&w, proc->nspace, proc->rank);
	out_infos(&w, job_info, ninfo);
	out_u32(&w, (uint32_t)napps);
	for (size_t i = 0; i < napps; i++) {
		out_str(&w, apps[i].cmd);
		out_strings(&w, apps[i].argv);
		out_strings(&w, apps[i].env);
		out_str(&w, apps[i].cwd);
		out_u32(&w, (uint32_t)apps[i].maxprocs);
		out_infos(&w, apps[i].info, apps[i].ninfo);
	}
	return ask(&w, id);
}

static pmix_status_t meet(uint32_t type, const pmix_proc_t procs[], size_t nprocs,
			  const pmix_info_t info[], size_t ninfo, pmix_op_cbfunc_t cbfunc,
			  void *cbdata)
{
	uint32_t id = remember((struct pending){type, {.op = cbfunc}, cbdata, 0});
	struct out w = {0};

	frame_begin(&w, type, id);
	out_procs(&w, procs, nprocs);
	out_infos(&w, info, ninfo);
	return ask(&w, id);
}

static pmix_status_t join(const pmix_proc_t procs[], size_t nprocs, const pmix_info_t info[],
			  size_t ninfo, pmix_op_cbfunc_t cbfunc, void *cbdata)
{
	return meet(UP_JOIN, procs, nprocs, info, ninfo, cbfunc, cbdata);
}

static pmix_status_t part(const pmix_proc_t procs[], size_t nprocs, const pmix_info_t info[],
			  size_t ninfo, pmix_op_cbfunc_t cbfunc, void *cbdata)
{
	return meet(UP_PART, procs, nprocs, info, ninfo, cbfunc, cbdata);
}

/* Every event of the step's own processes is reported anyway. */
static pmix_status_t register_events(pmix_status_t *codes, size_t ncodes, const pmix_info_t info[],
				     size_t ninfo, pmix_op_cbfunc_t cbfunc, void *cbdata)
{
	(void)codes, (void)ncodes, (void)info, (void)ninfo, (void)cbfunc, (void)cbdata;
	return PMIX_OPERATION_SUCCEEDED;
}

static pmix_status_t deregister_events(pmix_status_t *codes, size_t ncodes, pmix_op_cbfunc_t cbfunc,
				       void *cbdata)
{
	(void)codes, (void)ncodes, (void)cbfunc, (void)cbdata;
	return PMIX_OPERATION_SUCCEEDED;
}

/* It is done at once as far as the library sees: 4.2 gives up what the callback is
 * for when the host answers later, and then falls over its answer. */
static pmix_status_t notify_event(pmix_status_t code, const pmix_proc_t *source,
				  pmix_data_range_t range, pmix_info_t info[], size_t ninfo,
				  pmix_op_cbfunc_t cbfunc, void *cbdata)
{
	struct out w = {0};

	(void)cbfunc, (void)cbdata;
	frame_begin(&w, UP_NOTIFY, 0);
	out_i32(&w, code);
	out_proc(&w, source != NULL ? source->nspace : "",
		 source != NULL ? source->rank : PMIX_RANK_UNDEF);
	out_u32(&w, range);
	out_infos(&w, info, ninfo);
	return frame_send(&w) ? PMIX_OPERATION_SUCCEEDED : PMIX_ERR_OUT_OF_RESOURCE;
}

static pmix_status_t query(pmix_proc_t *proct, pmix_query_t *queries, size_t nqueries,
			   pmix_info_cbfunc_t cbfunc, void *cbdata)
{
	uint32_t id = remember((struct pending){UP_QUERY, {.info = cbfunc}, cbdata, 0});
	struct out w = {0};

	frame_begin(&w, UP_QUERY, id);
	out_proc(&w, proct->nspace, proct->rank);
	out_u32(&w, (uint32_t)nqueries);
	for (size_t i = 0; i < nqueries; i++) {
		out_strings(&w, queries[i].keys);
		out_infos(&w, queries[i].qualifiers, queries[i].nqual);
	}
	return ask(&w, id);
}

static void tool_connected(pmix_info_t *info, size_t ninfo, pmix_tool_connection_cbfunc_t cbfunc,
			   void *cbdata)
{
	uint32_t id = remember((struct pending){UP_TOOL, {.tool = cbfunc}, cbdata, 0});
	struct out w = {0};
	pmix_proc_t nobody = {.rank = PMIX_RANK_UNDEF};
	pmix_status_t rc;

	frame_begin(&w, UP_TOOL, id);
	out_infos(&w, info, ninfo);
	rc = ask(&w, id);
	if (rc != PMIX_SUCCESS)
		cbfunc(rc, &nobody, cbdata); /* it is read whatever the status is */
}

static void log_data(const pmix_proc_t *client, const pmix_info_t data[], size_t ndata,
		     const pmix_info_t directives[], size_t ndirs, pmix_op_cbfunc_t cbfunc,
		     void *cbdata)
{
	uint32_t id = remember((struct pending){UP_LOG, {.op = cbfunc}, cbdata, 0});
	struct out w = {0};
	pmix_status_t rc;

	frame_begin(&w, UP_LOG, id);
	out_proc(&w, client->nspace, client->rank);
	out_infos(&w, data, ndata);
	out_infos(&w, directives, ndirs);
	rc = ask(&w, id);
	if (rc != PMIX_SUCCESS)
		cbfunc(rc, cbdata);
}

/* Releases differ in whether the library wants to know. */
static pmix_status_t log_and_tell(const pmix_proc_t *client, const pmix_info_t data[], size_t ndata,
				  const pmix_info_t directives[], size_t ndirs,
				  pmix_op_cbfunc_t cbfunc, void *cbdata)
{
	log_data(client, data, ndata, directives, ndirs, cbfunc, cbdata);
	return PMIX_SUCCESS;
}

#define LOG_DATA                                                                                   \
	_Generic(((pmix_server_module_t *)0)->log, __typeof__(&log_data)                           \
		 : log_data, default                                                               \
		 : log_and_tell)

static pmix_status_t job_control(const pmix_proc_t *requestor, const pmix_proc_t targets[],
				 size_t ntargets, const pmix_info_t directives[], size_t ndirs,
				 pmix_info_cbfunc_t cbfunc, void *cbdata)
{
	uint32_t id = remember((struct pending){UP_CONTROL, {.info = cbfunc}, cbdata, 0});
	struct out w = {0};

	frame_begin(&w, UP_CONTROL, id);
	out_proc(&w, requestor->nspace, requestor->rank);
	out_procs(&w, targets, targets != NULL ? ntargets : 0);
	out_infos(&w, directives, ndirs);
	return ask(&w, id);
}

#if PMIX_VERSION_MAJOR >= 4
static pmix_status_t group(pmix_group_operation_t op, char grp[], const pmix_proc_t procs[],
			   size_t nprocs, const pmix_info_t directives[], size_t ndirs,
			   pmix_info_cbfunc_t cbfunc, void *cbdata)
{
	uint32_t id = remember((struct pending){UP_GROUP, {.info = cbfunc}, cbdata, 0});
	struct out w = {0};

	frame_begin(&w, UP_GROUP, id);
	out_u32(&w, (uint32_t)op);
	out_str(&w, grp);
	out_procs(&w, procs, nprocs);
	out_infos(&w, directives, ndirs);
	return ask(&w, id);
}
#endif

/* What is left out is answered by the library itself: not supported. */
pmix_server_module_t upcalls = {
	.client_connected = client_connected,
	.client_finalized = client_finalized,
	.abort = aborted,
	.fence_nb = fence_nb,
	.direct_modex = direct_modex,
	.publish = publish,
	.lookup = lookup,
	.unpublish = unpublish,
	.spawn = spawn,
	.connect = join,
	.disconnect = part,
	.register_events = register_events,
	.deregister_events = deregister_events,
	.notify_event = notify_event,
	.query = query,
	.tool_connected = tool_connected,
	.log = LOG_DATA,
	.job_control = job_control,
#if PMIX_VERSION_MAJOR >= 4
	.group = group,
	.client_connected2 = client_connected2,
#endif
};

/* A client's connection has ended before it had finalized. */
void lost_connection(size_t handler, pmix_status_t status, const pmix_proc_t *source,
		     pmix_info_t info[], size_t ninfo, pmix_info_t results[], size_t nresults,
		     pmix_event_notification_cbfunc_fn_t cbfunc, void *cbdata)
{
	(void)handler, (void)status, (void)info, (void)ninfo, (void)results, (void)nresults;
	if (source != NULL)
		tell(UP_LOST, source);
	if (cbfunc != NULL)
		cbfunc(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, cbdata);
}

/* What a callback was given; it is freed when the library says so. */
struct blob {
	pmix_info_t *info;
	size_t ninfo;
	char *bytes;
};

static void blob_free(void *p)
{
	struct blob *b = p;

	if (b->info != NULL)
		PMIX_INFO_FREE(b->info, b->ninfo);
	free(b->bytes);
	free(b);
}

static void answer_modex(const struct pending *p, pmix_status_t status, struct reader *r)
{
	/* A failure, or a fence whose keys are all here, has no bytes. */
	struct reader bytes = r->left > 0 ? rd_bytes(r) : (struct reader){0};
	struct blob *b = must(calloc(1, sizeof(*b)));
	size_t n = bytes.bad ? 0 : bytes.left;

	if (n > 0) {
		b->bytes = must(malloc(n));
		memcpy(b->bytes, bytes.p, n);
	}
	p->call.modex(status, b->bytes, n, p->data, blob_free, b);
}

static void answer_infos(const struct pending *p, pmix_status_t status, struct reader *r)
{
	struct blob *b = must(calloc(1, sizeof(*b)));

	if (r->left > 0)
		b->info = rd_infos(r, &b->ninfo);
	p->call.info(status, b->info, b->ninfo, p->data, blob_free, b);
}

static void answer_lookup(const struct pending *p, pmix_status_t status, struct reader *r)
{
	uint32_t n = r->left > 0 ? rd_count(r, 16) : 0, got = 0;
	pmix_pdata_t *data = must(calloc(n != 0 ? n : 1, sizeof(*data)));

	for (uint32_t i = 0; i < n; i++) {
		char *key;

		rd_proc(r, &data[got].proc);
		key = rd_copy(r);
		strncpy(data[got].key, key, PMIX_MAX_KEYLEN);
		free(key);
		if (rd_packed(r, &data[got].value) == PMIX_SUCCESS)
			got++;
	}
	if (got == 0 && status == PMIX_SUCCESS)
		status = PMIX_ERR_NOT_FOUND;
	p->call.lookup(status, data, got, p->data);
	for (uint32_t i = 0; i < got; i++)
		PMIX_VALUE_DESTRUCT(&data[i].value);
	free(data);
}

static void answer_spawn(const struct pending *p, pmix_status_t status, struct reader *r)
{
	char *name = r->left > 0 ? rd_copy(r) : NULL;
	pmix_nspace_t nspace = {0};

	if (name != NULL)
		strncpy(nspace, name, PMIX_MAX_NSLEN);
	free(name);
	p->call.spawn(status, nspace, p->data);
}

static void answer_tool(const struct pending *p, pmix_status_t status, struct reader *r)
{
	pmix_proc_t proc = {0};

	if (r->left > 0)
		rd_proc(r, &proc);
	p->call.tool(status, &proc, p->data);
}

/* Where the library has its own thread call something: it does so at the end of
 * any request, and there is no handler of this number to take away. */
#define NO_HANDLER ((size_t)-8)

/* An answer of stepd's on its way to the library's thread. */
struct reply {
	struct pending p;
	uint32_t id;
	struct reader body; /* in bytes */
	uint8_t bytes[];
};

static void deliver(pmix_status_t rc, void *data)
{
	struct reply *a = data;
	struct reader *r = &a->body;
	pmix_status_t status = (pmix_status_t)rd_u32(r);

	(void)rc;
	switch (a->p.type) {
	case 0: /* stepd answers once, and only what it was asked */
		r->bad = true;
		break;
	case UP_FENCE:
	case UP_MODEX:
		answer_modex(&a->p, status, r);
		break;
	case UP_LOOKUP:
		answer_lookup(&a->p, status, r);
		break;
	case UP_SPAWN:
		answer_spawn(&a->p, status, r);
		break;
	case UP_QUERY:
	case UP_CONTROL:
	case UP_GROUP:
		answer_infos(&a->p, status, r);
		break;
	case UP_TOOL:
		answer_tool(&a->p, status, r);
		break;
	default:
		if (a->p.call.op != NULL)
			a->p.call.op(status, a->p.data);
	}
	if (r->bad)
		word("stepd's answer to upcall %u could not be read", a->id);
	free(a);
}

/* Callbacks of libpmix 4.2 queue a client's message without a look at who else
 * does (lookups, queries, job control): they are its own thread's to call. */
void upcall_answer(uint32_t id, const struct reader *r)
{
	struct reply *a = must(malloc(sizeof(*a) + r->left));

	a->p = recall(id);
	a->id = id;
	if (r->left > 0)
		memcpy(a->bytes, r->p, r->left);
	a->body = rd_init(a->bytes, r->left);
	if (PMIx_Deregister_event_handler(NO_HANDLER, deliver, a) != PMIX_SUCCESS)
		deliver(PMIX_SUCCESS, a);
}

static void synced(pmix_status_t rc, void *data)
{
	(void)rc;
	done((uint32_t)(uintptr_t)data, PMIX_SUCCESS, "");
}

void upcall_sync(uint32_t id)
{
	void *data = (void *)(uintptr_t)id;

	if (PMIx_Deregister_event_handler(NO_HANDLER, synced, data) != PMIX_SUCCESS)
		synced(PMIX_SUCCESS, data);
}
