// SPDX-License-Identifier: Apache-2.0
/* slurm_load_job, for the job whose plugin asks and for no other: there is no
 * controller behind a step's host. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <time.h>

#include "api.h"
#include "imports.h"
#include "job_layout.h"
#include "util.h"

/* What a field is filled from. */
enum source {
	UNSET,
	UNSET_DOUBLE,
	NICE_ZERO,
	RUNNING,
	SHOW_FLAGS,
	JOB_ID,
	UID,
	GID,
	NNODES,
	NTASKS,
	NCPUS,
	CPUS_PER_TASK,
	RESTARTS,
	BATCH,
	MEMORY,
	/* Pointers. */
	NO_NODES,
	JOB_NAME,
	USER,
	PARTITION,
	CLUSTER,
	NODE_LIST,
	BATCH_HOST,
	SUBMIT_HOST,
	CWD,
};

/* Their numbers, the same in all releases. */
#define SLURM_NO_VAL	  0xfffffffeu
#define SLURM_NICE_OFFSET 0x80000000u
#define SLURM_JOB_RUNNING 1

struct field {
	uint16_t offset;
	uint8_t size, source;
};

struct layout {
	uint32_t series; /* plugin_version without its micro number */
	uint16_t message_size, last_update, record_count, job_array, record_size;
	const struct field *fields;
	size_t nfields;
};

#define FIELD(name, offset, size, source) {offset, size, source},
static const struct field fields_2205[] = {JOB_FIELDS_2205(FIELD)};

static const struct layout layouts[] = {
	{0x160500, JOB_MESSAGE_2205, fields_2205, ARRAY_SIZE(fields_2205)},
};

/* The layout that a plugin was compiled with; NULL if it is not known. */
static const struct layout *layout_of(const struct plugin *p)
{
	const unsigned int *version =
		p != NULL && p->dl != NULL ? dlsym(p->dl, "plugin_version") : NULL;

	/* The tables hold for 64-bit machines. */
	if (version == NULL || sizeof(void *) != 8 || sizeof(time_t) != 8)
		return NULL;
	for (size_t i = 0; i < ARRAY_SIZE(layouts); i++) {
		if (layouts[i].series == (*version & ~0xffu))
			return &layouts[i];
	}
	return NULL;
}

bool job_is_told_to(const struct plugin *p)
{
	return layout_of(p) != NULL;
}

static uint64_t unset_unless(uint64_t value)
{
	return value != 0 ? value : SLURM_NO_VAL;
}

/* A number; SLURM_NO_VAL is cut to NO_VAL16, or made NO_VAL64, by its size. */
static uint64_t number_of(const struct config *c, enum source source, uint16_t show_flags)
{
	switch (source) {
	case NICE_ZERO:
		return SLURM_NICE_OFFSET;
	case RUNNING:
		return SLURM_JOB_RUNNING;
	case SHOW_FLAGS:
		return show_flags;
	case JOB_ID:
		return c->job_id;
	case UID:
		return c->uid;
	case GID:
		return c->gid;
	case NNODES:
		return unset_unless(c->job_nnodes ? c->job_nnodes : c->nnodes);
	case NTASKS:
		return unset_unless(c->total_tasks);
	case NCPUS:
		return unset_unless(c->job_ncpus ? c->job_ncpus : c->ncpus);
	case CPUS_PER_TASK:
		return unset_unless(c->cpus_per_task);
	case RESTARTS:
		return c->restarts;
	case BATCH:
		return c->batch == CONFIG_UNKNOWN ? SLURM_NO_VAL : c->batch;
	case MEMORY:
		return c->job_mem;
	default:
		return SLURM_NO_VAL;
	}
}

/* A text, empty if it is not known. */
static const char *text_of(const struct config *c, enum source source)
{
	switch (source) {
	case JOB_NAME:
		return c->job_name;
	case USER:
		return c->user;
	case PARTITION:
		return c->partition;
	case CLUSTER:
		return c->cluster;
	case NODE_LIST:
		return c->node_list;
	case BATCH_HOST: /* the job's first node */
		return c->nnodes == 1 && c->job_nnodes <= 1 ? c->node_name : "";
	case SUBMIT_HOST:
		return c->submit_host;
	default:
		return c->cwd;
	}
}

static void put_number(char *at, size_t size, uint64_t value)
{
	if (value == SLURM_NO_VAL && size == 8)
		value = UINT64_MAX - 1;
	/* Little or big endian: the host's own. */
	uint32_t four = (uint32_t)value;
	uint16_t two = (uint16_t)value;
	memcpy(at, size == 8 ? (void *)&value : size == 4 ? (void *)&four : (void *)&two, size);
}

static void put_pointer(char *at, const void *p)
{
	memcpy(at, &p, sizeof(p));
}

/* Fills a record; texts are copied to *room, which has space for them. */
static void fill(const struct layout *l, const struct config *c, uint16_t show_flags, char *record,
		 char *room)
{
	static const int32_t no_nodes[] = {-1}; /* ends a list of index pairs */
	const double unset = SLURM_NO_VAL;

	for (size_t i = 0; i < l->nfields; i++) {
		const struct field *f = &l->fields[i];
		char *at = record + f->offset;

		if (f->source == UNSET_DOUBLE) {
			memcpy(at, &unset, sizeof(unset));
		} else if (f->source == NO_NODES) {
			put_pointer(at, no_nodes);
		} else if (f->source < NO_NODES) {
			put_number(at, f->size, number_of(c, f->source, show_flags));
		} else if (text_of(c, f->source)[0] != 0) {
			put_pointer(at, room);
			room = stpcpy(room, text_of(c, f->source)) + 1;
		}
	}
}

static size_t room_for(const struct layout *l, const struct config *c)
{
	size_t size = 0;

	for (size_t i = 0; i < l->nfields; i++) {
		if (l->fields[i].source > NO_NODES)
			size += strlen(text_of(c, l->fields[i].source)) + 1;
	}
	return size;
}

/* Messages that were given out: the other ones that come back are not ours. */
static struct given {
	struct given *next;
	void *message;
} * given;

/* The message, its one record and the texts in one piece. */
static void *make_message(const struct layout *l, const struct config *c, uint16_t show_flags)
{
	char *message = must_zero(1, l->message_size + l->record_size + room_for(l, c));
	char *record = message + l->message_size;
	struct given *g = must_zero(1, sizeof(*g));
	time_t now = time(NULL);

	memcpy(message + l->last_update, &now, sizeof(now));
	put_number(message + l->record_count, 4, 1);
	put_pointer(message + l->job_array, record);
	fill(l, c, show_flags, record, record + l->record_size);
	*g = (struct given){.next = given, .message = message};
	given = g;
	return message;
}

/* The job exists and runs: in slurmd context there is none, in the allocator none
 * yet, and in the epilog it has ended. */
static bool job_runs(const struct host *h)
{
	switch (h->cfg.context) {
	case S_CTX_LOCAL:
	case S_CTX_REMOTE:
		return h->cfg.job_id != 0;
	case S_CTX_JOB_SCRIPT:
		return h->cfg.job_id != 0 && h->hook == HOOK_JOB_PROLOG;
	default:
		return false;
	}
}

int slurm_load_job(void **resp, uint32_t job_id, uint16_t show_flags);
SPANK_API int slurm_load_job(void **resp, uint32_t job_id, uint16_t show_flags)
{
	const struct layout *l = layout_of(host.plugin);

	if (resp == NULL || l == NULL || !job_runs(&host) || job_id != host.cfg.job_id) {
		errno = resp == NULL ? EINVAL
			: l == NULL  ? ESLURM_NOT_SUPPORTED
				     : ESLURM_INVALID_JOB_ID;
		return SLURM_ERROR;
	}
	*resp = make_message(l, &host.cfg, show_flags);
	return SLURM_SUCCESS;
}

/* One that came from a plugin's own libslurm goes back to it. */
static void free_theirs(void *message)
{
	void (*theirs)(void *) = NULL;

	if (host.plugin != NULL && host.plugin->dl != NULL)
		*(void **)&theirs = dlsym(host.plugin->dl, "slurm_free_job_info_msg");
	if (theirs != NULL)
		theirs(message);
}

void slurm_free_job_info_msg(void *message);
SPANK_API void slurm_free_job_info_msg(void *message)
{
	if (message == NULL)
		return;
	for (struct given **at = &given; *at != NULL; at = &(*at)->next) {
		struct given *g = *at;

		if (g->message != message)
			continue;
		*at = g->next;
		free(g->message);
		free(g);
		return;
	}
	free_theirs(message);
}
