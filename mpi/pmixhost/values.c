// SPDX-License-Identifier: Apache-2.0
/* Between the library's values and protocol.h's. */
#define _GNU_SOURCE
#include <string.h>

#include "host.h"
#include "protocol.h"

/* Go has the numbers of protocol.h: they are the standard's, whatever the release. */
_Static_assert(V_BOOL == PMIX_BOOL && V_BYTE == PMIX_BYTE && V_STRING == PMIX_STRING, "types");
_Static_assert(V_SIZE == PMIX_SIZE && V_PID == PMIX_PID && V_INT == PMIX_INT, "types");
_Static_assert(V_INT8 == PMIX_INT8 && V_INT16 == PMIX_INT16 && V_INT32 == PMIX_INT32, "types");
_Static_assert(V_INT64 == PMIX_INT64 && V_UINT == PMIX_UINT && V_UINT8 == PMIX_UINT8, "types");
_Static_assert(V_UINT16 == PMIX_UINT16 && V_UINT32 == PMIX_UINT32, "types");
_Static_assert(V_UINT64 == PMIX_UINT64 && V_FLOAT == PMIX_FLOAT && V_DOUBLE == PMIX_DOUBLE,
	       "types");
_Static_assert(V_TIMEVAL == PMIX_TIMEVAL && V_TIME == PMIX_TIME && V_STATUS == PMIX_STATUS,
	       "types");
_Static_assert(V_PROC == PMIX_PROC && V_BYTE_OBJECT == PMIX_BYTE_OBJECT, "types");
_Static_assert(V_PERSIST == PMIX_PERSIST && V_SCOPE == PMIX_SCOPE, "types");
_Static_assert(V_DATA_RANGE == PMIX_DATA_RANGE && V_PROC_STATE == PMIX_PROC_STATE, "types");
_Static_assert(V_PROC_INFO == PMIX_PROC_INFO && V_DATA_ARRAY == PMIX_DATA_ARRAY, "types");
_Static_assert(V_PROC_RANK == PMIX_PROC_RANK && V_INFO == PMIX_INFO, "types");
_Static_assert(V_ALLOC_DIRECTIVE == PMIX_ALLOC_DIRECTIVE && V_ENVAR == PMIX_ENVAR, "types");
_Static_assert(V_INFO_DIRECTIVES == PMIX_INFO_DIRECTIVES, "types");
#ifdef PMIX_PROC_NSPACE
_Static_assert(V_PROC_NSPACE == PMIX_PROC_NSPACE, "types");
#endif
_Static_assert(RANGE_RM == PMIX_RANGE_RM, "ranges");
_Static_assert(RANGE_LOCAL == PMIX_RANGE_LOCAL && RANGE_NAMESPACE == PMIX_RANGE_NAMESPACE,
	       "ranges");
_Static_assert(RANGE_SESSION == PMIX_RANGE_SESSION && RANGE_GLOBAL == PMIX_RANGE_GLOBAL, "ranges");
_Static_assert(RANGE_CUSTOM == PMIX_RANGE_CUSTOM && RANGE_PROC_LOCAL == PMIX_RANGE_PROC_LOCAL,
	       "ranges");
_Static_assert(ST_ERROR == PMIX_ERROR && ST_NO_PERMISSIONS == PMIX_ERR_NO_PERMISSIONS, "statuses");
_Static_assert(ST_TIMEOUT == PMIX_ERR_TIMEOUT && ST_UNREACH == PMIX_ERR_UNREACH, "statuses");
_Static_assert(ST_BAD_PARAM == PMIX_ERR_BAD_PARAM && ST_NOMEM == PMIX_ERR_NOMEM, "statuses");
_Static_assert(ST_RESOURCES == PMIX_ERR_OUT_OF_RESOURCE, "statuses");
_Static_assert(ST_NOT_FOUND == PMIX_ERR_NOT_FOUND && ST_NOT_SUPPORTED == PMIX_ERR_NOT_SUPPORTED,
	       "statuses");
_Static_assert(ST_LOST_CONNECTION == PMIX_ERR_LOST_CONNECTION, "statuses");
_Static_assert(ST_OPERATION_SUCCEEDED == PMIX_OPERATION_SUCCEEDED, "statuses");
#ifdef PMIX_READY_FOR_DEBUG
_Static_assert(ST_READY_FOR_DEBUG == PMIX_READY_FOR_DEBUG, "statuses");
#endif
#if PMIX_VERSION_MAJOR >= 4
_Static_assert(ST_PARTIAL_SUCCESS == PMIX_ERR_PARTIAL_SUCCESS, "statuses");
_Static_assert(ST_DUPLICATE_KEY == PMIX_ERR_DUPLICATE_KEY, "statuses");
_Static_assert(ST_JOB_END == PMIX_EVENT_JOB_END, "statuses");
_Static_assert(ST_JOB_ABORTED == PMIX_ERR_JOB_ABORTED, "statuses");
_Static_assert(ST_LAUNCH_FAILED == PMIX_ERR_JOB_FAILED_TO_LAUNCH, "statuses");
#endif

void out_proc(struct out *w, const char *nspace, pmix_rank_t rank)
{
	out_bytes(w, nspace, strnlen(nspace, PMIX_MAX_NSLEN));
	out_u32(w, rank);
}

void out_procs(struct out *w, const pmix_proc_t *procs, size_t n)
{
	out_u32(w, (uint32_t)n);
	for (size_t i = 0; i < n; i++)
		out_proc(w, procs[i].nspace, procs[i].rank);
}

static void out_double(struct out *w, double d)
{
	uint64_t bits;

	memcpy(&bits, &d, sizeof(bits));
	out_u64(w, bits);
}

static void out_proc_info(struct out *w, const pmix_proc_info_t *p)
{
	out_proc(w, p->proc.nspace, p->proc.rank);
	out_str(w, p->hostname);
	out_str(w, p->executable_name);
	out_u64(w, (uint64_t)(int64_t)p->pid);
	out_u64(w, (uint64_t)(int64_t)p->exit_code);
	out_u32(w, p->state);
}

static void out_array(struct out *w, const pmix_data_array_t *a, int depth);

/* The number of a value that is one; false for others. */
static bool number(const pmix_value_t *v, uint64_t *n)
{
	switch (v->type) {
	case PMIX_BYTE:
		*n = v->data.byte;
		return true;
	case PMIX_SIZE:
		*n = v->data.size;
		return true;
	case PMIX_PID:
		*n = (uint64_t)(int64_t)v->data.pid;
		return true;
	case PMIX_INT:
		*n = (uint64_t)(int64_t)v->data.integer;
		return true;
	case PMIX_INT8:
		*n = (uint64_t)(int64_t)v->data.int8;
		return true;
	case PMIX_INT16:
		*n = (uint64_t)(int64_t)v->data.int16;
		return true;
	case PMIX_INT32:
		*n = (uint64_t)(int64_t)v->data.int32;
		return true;
	case PMIX_INT64:
		*n = (uint64_t)v->data.int64;
		return true;
	case PMIX_UINT:
		*n = v->data.uint;
		return true;
	case PMIX_UINT8:
		*n = v->data.uint8;
		return true;
	case PMIX_UINT16:
		*n = v->data.uint16;
		return true;
	case PMIX_UINT32:
		*n = v->data.uint32;
		return true;
	case PMIX_UINT64:
		*n = v->data.uint64;
		return true;
	case PMIX_TIME:
		*n = (uint64_t)(int64_t)v->data.time;
		return true;
	case PMIX_STATUS:
		*n = (uint64_t)(int64_t)v->data.status;
		return true;
	case PMIX_PERSIST:
		*n = v->data.persist;
		return true;
	case PMIX_SCOPE:
		*n = v->data.scope;
		return true;
	case PMIX_DATA_RANGE:
		*n = v->data.range;
		return true;
	case PMIX_PROC_STATE:
		*n = v->data.state;
		return true;
	case PMIX_PROC_RANK:
		*n = v->data.rank;
		return true;
	case PMIX_ALLOC_DIRECTIVE:
		*n = v->data.adir;
		return true;
	default:
		return false;
	}
}

static void out_payload(struct out *w, const pmix_value_t *v, int depth)
{
	uint64_t n;

	if (number(v, &n)) {
		out_u64(w, n);
		return;
	}
	switch (v->type) {
	case PMIX_BOOL:
		out_u64(w, v->data.flag);
		break;
	case PMIX_FLOAT:
		out_double(w, (double)v->data.fval);
		break;
	case PMIX_DOUBLE:
		out_double(w, v->data.dval);
		break;
	case PMIX_TIMEVAL:
		out_u64(w, (uint64_t)(int64_t)v->data.tv.tv_sec);
		out_u64(w, (uint64_t)(int64_t)v->data.tv.tv_usec);
		break;
	case PMIX_STRING:
		out_str(w, v->data.string);
		break;
	case PMIX_BYTE_OBJECT:
		out_bytes(w, v->data.bo.bytes, v->data.bo.bytes != NULL ? v->data.bo.size : 0);
		break;
	case PMIX_PROC:
		if (v->data.proc != NULL)
			out_proc(w, v->data.proc->nspace, v->data.proc->rank);
		break;
#ifdef PMIX_PROC_NSPACE
	case PMIX_PROC_NSPACE:
		out_str(w, v->data.nspace != NULL ? (const char *)*v->data.nspace : "");
		break;
#endif
	case PMIX_PROC_INFO:
		if (v->data.pinfo != NULL)
			out_proc_info(w, v->data.pinfo);
		break;
	case PMIX_ENVAR:
		out_str(w, v->data.envar.envar);
		out_str(w, v->data.envar.value);
		out_u32(w, (uint8_t)v->data.envar.separator);
		break;
	case PMIX_DATA_ARRAY:
		if (v->data.darray != NULL && depth < PMIXHOST_DEPTH_MAX)
			out_array(w, v->data.darray, depth + 1);
		break;
	default: /* only its presence is known */
		break;
	}
}

void out_value(struct out *w, const pmix_value_t *v, int depth)
{
	size_t mark;

	out_u16(w, v->type);
	mark = out_mark(w);
	out_payload(w, v, depth);
	out_fill(w, mark);
}

static void out_info(struct out *w, const pmix_info_t *info, int depth)
{
	out_bytes(w, info->key, strnlen(info->key, PMIX_MAX_KEYLEN));
	out_u32(w, info->flags & PMIX_INFO_REQD); /* the others are the library's own */
	out_value(w, &info->value, depth);
}

void out_infos(struct out *w, const pmix_info_t *info, size_t n)
{
	if (info == NULL)
		n = 0;
	out_u32(w, (uint32_t)n);
	for (size_t i = 0; i < n; i++)
		out_info(w, &info[i], 0);
}

/* Elements that protocol.h has; an array of others has none. */
static void out_array(struct out *w, const pmix_data_array_t *a, int depth)
{
	size_t n = a->array != NULL ? a->size : 0;

	out_u16(w, a->type);
	switch (a->type) {
	case PMIX_INFO:
		out_u32(w, (uint32_t)n);
		for (size_t i = 0; i < n; i++)
			out_info(w, &((const pmix_info_t *)a->array)[i], depth);
		break;
	case PMIX_PROC:
		out_procs(w, a->array, n);
		break;
	case PMIX_STRING:
		out_u32(w, (uint32_t)n);
		for (size_t i = 0; i < n; i++)
			out_str(w, ((char **)a->array)[i]);
		break;
	case PMIX_PROC_INFO:
		out_u32(w, (uint32_t)n);
		for (size_t i = 0; i < n; i++)
			out_proc_info(w, &((const pmix_proc_info_t *)a->array)[i]);
		break;
	case PMIX_UINT32:
	case PMIX_PROC_RANK:
		out_u32(w, (uint32_t)n);
		for (size_t i = 0; i < n; i++)
			out_u32(w, ((const uint32_t *)a->array)[i]);
		break;
	default:
		out_u32(w, 0);
	}
}

void rd_proc(struct reader *r, pmix_proc_t *proc)
{
	char *nspace = rd_copy(r);

	if (strlen(nspace) > PMIX_MAX_NSLEN)
		r->bad = true;
	memset(proc, 0, sizeof(*proc));
	if (!r->bad)
		strncpy(proc->nspace, nspace, PMIX_MAX_NSLEN);
	proc->rank = rd_u32(r);
	free(nspace);
}

static void in_proc_info(struct reader *r, pmix_proc_info_t *p)
{
	rd_proc(r, &p->proc);
	p->hostname = rd_copy(r);
	p->executable_name = rd_copy(r);
	p->pid = (pid_t)rd_u64(r);
	p->exit_code = (int)rd_u64(r);
	p->state = (pmix_proc_state_t)rd_u32(r);
}

static void load_info(struct reader *r, pmix_info_t *info, int depth)
{
	char *key = rd_copy(r);

	if (strlen(key) > PMIX_MAX_KEYLEN)
		r->bad = true;
	else
		strncpy(info->key, key, PMIX_MAX_KEYLEN);
	free(key);
	/* The library marks the last of an array by a flag of its own. */
	info->flags = (info->flags & PMIX_INFO_ARRAY_END) | (rd_u32(r) & PMIX_INFO_REQD);
	rd_value(r, &info->value, depth);
}

/* The least that an element takes in a frame. */
#define INFO_SIZE 14
#define PROC_SIZE 8

static void *in_elements(struct reader *r, uint16_t type, size_t *size, int depth)
{
	uint32_t n;

	*size = 0;
	switch (type) {
	case PMIX_INFO: {
		pmix_info_t *a = NULL;

		n = rd_count(r, INFO_SIZE);
		if (n > 0)
			PMIX_INFO_CREATE(a, n);
		*size = n;
		for (uint32_t i = 0; i < n; i++)
			load_info(r, &a[i], depth);
		return a;
	}
	case PMIX_PROC: {
		pmix_proc_t *a = NULL;

		n = rd_count(r, PROC_SIZE);
		if (n > 0)
			PMIX_PROC_CREATE(a, n);
		*size = n;
		for (uint32_t i = 0; i < n; i++)
			rd_proc(r, &a[i]);
		return a;
	}
	case PMIX_STRING: {
		char **a = NULL;

		n = rd_count(r, 4);
		if (n > 0)
			a = must(calloc(n, sizeof(*a)));
		*size = n;
		for (uint32_t i = 0; i < n; i++)
			a[i] = rd_copy(r);
		return a;
	}
	case PMIX_PROC_INFO: {
		pmix_proc_info_t *a = NULL;

		n = rd_count(r, PROC_SIZE);
		if (n > 0)
			PMIX_PROC_INFO_CREATE(a, n);
		*size = n;
		for (uint32_t i = 0; i < n; i++)
			in_proc_info(r, &a[i]);
		return a;
	}
	case PMIX_UINT32:
	case PMIX_PROC_RANK: {
		uint32_t *a = NULL;

		n = rd_count(r, 4);
		if (n > 0)
			a = must(calloc(n, sizeof(*a)));
		*size = n;
		for (uint32_t i = 0; i < n; i++)
			a[i] = rd_u32(r);
		return a;
	}
	default:
		r->bad = true;
		return NULL;
	}
}

static void in_array(struct reader *r, pmix_value_t *v, int depth)
{
	pmix_data_array_t *a;

	if (depth >= PMIXHOST_DEPTH_MAX) {
		r->bad = true;
		return;
	}
	a = must(calloc(1, sizeof(*a)));
	a->type = rd_u16(r);
	a->array = in_elements(r, a->type, &a->size, depth + 1);
	if (a->array == NULL) { /* the library frees some types without a look */
		a->type = PMIX_UNDEF;
		a->size = 0;
	}
	v->type = PMIX_DATA_ARRAY;
	v->data.darray = a;
}

static double to_double(uint64_t bits)
{
	double d;

	memcpy(&d, &bits, sizeof(d));
	return d;
}

static bool in_number(uint16_t type, uint64_t n, pmix_value_t *v)
{
	switch (type) {
	case PMIX_BOOL:
		v->data.flag = n != 0;
		break;
	case PMIX_BYTE:
		v->data.byte = (uint8_t)n;
		break;
	case PMIX_SIZE:
		v->data.size = n;
		break;
	case PMIX_PID:
		v->data.pid = (pid_t)n;
		break;
	case PMIX_INT:
		v->data.integer = (int)n;
		break;
	case PMIX_INT8:
		v->data.int8 = (int8_t)n;
		break;
	case PMIX_INT16:
		v->data.int16 = (int16_t)n;
		break;
	case PMIX_INT32:
		v->data.int32 = (int32_t)n;
		break;
	case PMIX_INT64:
		v->data.int64 = (int64_t)n;
		break;
	case PMIX_UINT:
		v->data.uint = (unsigned int)n;
		break;
	case PMIX_UINT8:
		v->data.uint8 = (uint8_t)n;
		break;
	case PMIX_UINT16:
		v->data.uint16 = (uint16_t)n;
		break;
	case PMIX_UINT32:
		v->data.uint32 = (uint32_t)n;
		break;
	case PMIX_UINT64:
		v->data.uint64 = n;
		break;
	case PMIX_FLOAT:
		v->data.fval = (float)to_double(n);
		break;
	case PMIX_DOUBLE:
		v->data.dval = to_double(n);
		break;
	case PMIX_TIME:
		v->data.time = (time_t)n;
		break;
	case PMIX_STATUS:
		v->data.status = (pmix_status_t)n;
		break;
	case PMIX_PERSIST:
		v->data.persist = (pmix_persistence_t)n;
		break;
	case PMIX_SCOPE:
		v->data.scope = (pmix_scope_t)n;
		break;
	case PMIX_DATA_RANGE:
		v->data.range = (pmix_data_range_t)n;
		break;
	case PMIX_PROC_STATE:
		v->data.state = (pmix_proc_state_t)n;
		break;
	case PMIX_ALLOC_DIRECTIVE:
		v->data.adir = (pmix_alloc_directive_t)n;
		break;
	case PMIX_PROC_RANK:
		v->data.rank = (pmix_rank_t)n;
		break;
	default:
		return false;
	}
	v->type = type;
	return true;
}

/* A value that is no number; false for a type that there is no form for. */
static bool in_payload(struct reader *b, uint16_t type, pmix_value_t *v, int depth)
{
	v->type = type;
	switch (type) {
	case PMIX_STRING:
		v->data.string = rd_copy(b);
		return true;
	case PMIX_BYTE_OBJECT: {
		struct reader bytes = rd_bytes(b);

		v->data.bo.size = bytes.left;
		v->data.bo.bytes = must(malloc(bytes.left + 1));
		if (bytes.left > 0)
			memcpy(v->data.bo.bytes, bytes.p, bytes.left);
		return true;
	}
	case PMIX_PROC:
		v->data.proc = must(calloc(1, sizeof(*v->data.proc)));
		rd_proc(b, v->data.proc);
		return true;
#ifdef PMIX_PROC_NSPACE
	case PMIX_PROC_NSPACE: {
		char *name = rd_copy(b);

		v->data.nspace = must(calloc(1, sizeof(*v->data.nspace)));
		strncpy(*v->data.nspace, name, PMIX_MAX_NSLEN);
		free(name);
		return true;
	}
#endif
	case PMIX_PROC_INFO:
		v->data.pinfo = must(calloc(1, sizeof(*v->data.pinfo)));
		in_proc_info(b, v->data.pinfo);
		return true;
	case PMIX_TIMEVAL:
		v->data.tv.tv_sec = (time_t)rd_u64(b);
		v->data.tv.tv_usec = (suseconds_t)rd_u64(b);
		return true;
	case PMIX_ENVAR:
		v->data.envar.envar = rd_copy(b);
		v->data.envar.value = rd_copy(b);
		v->data.envar.separator = (char)rd_u32(b);
		return true;
	case PMIX_DATA_ARRAY:
		in_array(b, v, depth);
		return true;
	default:
		v->type = PMIX_UNDEF;
		return false;
	}
}

void rd_value(struct reader *r, pmix_value_t *v, int depth)
{
	uint16_t type = rd_u16(r);
	struct reader b = rd_bytes(r);

	memset(v, 0, sizeof(*v));
	if (b.bad)
		r->bad = true;
	else if (b.left > 0 && !in_payload(&b, type, v, depth) && !in_number(type, rd_u64(&b), v))
		b.bad = true;
	/* Only its presence: the library frees some types without a look. */
	if (!rd_done(&b))
		r->bad = true;
}

pmix_info_t *rd_infos(struct reader *r, size_t *n)
{
	return in_elements(r, PMIX_INFO, n, 0);
}

void out_packed(struct out *w, const pmix_value_t *v)
{
	pmix_data_buffer_t b;
	char *bytes = NULL;
	size_t size = 0;

	PMIX_DATA_BUFFER_CONSTRUCT(&b);
	if (PMIx_Data_pack(NULL, &b, (void *)v, 1, PMIX_VALUE) == PMIX_SUCCESS) {
		bytes = b.base_ptr;
		size = b.bytes_used;
	}
	out_bytes(w, bytes, size);
	PMIX_DATA_BUFFER_DESTRUCT(&b);
}

pmix_status_t rd_packed(struct reader *r, pmix_value_t *v)
{
	struct reader bytes = rd_bytes(r);
	pmix_data_buffer_t b;
	pmix_status_t rc;
	int32_t n = 1;
	char *copy;

	memset(v, 0, sizeof(*v));
	if (r->bad || bytes.left == 0)
		return PMIX_ERR_BAD_PARAM;
	copy = must(malloc(bytes.left));
	memcpy(copy, bytes.p, bytes.left);
	PMIX_DATA_BUFFER_CONSTRUCT(&b);
	b.base_ptr = copy;
	b.unpack_ptr = copy;
	b.pack_ptr = copy + bytes.left;
	b.bytes_allocated = b.bytes_used = bytes.left;
	rc = PMIx_Data_unpack(NULL, &b, v, &n, PMIX_VALUE);
	PMIX_DATA_BUFFER_DESTRUCT(&b);
	return rc;
}
