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
	STATE,
	SHOW_FLAGS,
	TIME_LIMIT,
	START,
	END,
	ARRAY_JOB,
	ARRAY_TASK,
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
#define SLURM_INFINITE	  0xffffffffu
#define SLURM_JOB_RUNNING 1
#define SLURM_COMPLETING  0x8000
#define SLURM_YEAR	  (365 * 24 * 3600)

struct release {
	uint16_t series, record_size;
};

#define RELEASE(series, size) {series, size},
static const struct release releases[] = {JOB_RELEASES(RELEASE)};

static const struct message {
	uint16_t size, last_update, record_count, job_array;
} message_at = {JOB_MESSAGE};

static const struct field {
	uint8_t size, source;
	uint16_t offset[ARRAY_SIZE(releases)]; /* 0: the release does not have it */
} fields[] = {
#define FIELD(name, size, source, ...) {size, source, {__VA_ARGS__}},
	JOB_FIELDS(FIELD) JOB_FIELDS_TO_2405(FIELD) JOB_FIELDS_2511(FIELD)};

/* The release that a plugin was compiled for, as its column; NULL if it is not known. */
static const struct release *release_of(const struct plugin *p)
{
	const unsigned int *version =
		p != NULL && p->dl != NULL ? dlsym(p->dl, "plugin_version") : NULL;

	/* The tables hold for 64-bit machines. */
	if (version == NULL || sizeof(void *) != 8 || sizeof(time_t) != 8)
		return NULL;
	unsigned int series = *version >> 8 == 0x170b ? 0x1702 : *version >> 8;
	for (size_t i = 0; i < ARRAY_SIZE(releases); i++) {
		if (releases[i].series == series)
			return &releases[i];
	}
	return NULL;
}

bool job_is_told_to(const struct plugin *p)
{
	return release_of(p) != NULL;
}

/* A job without a limit ends in a year, as slurmctld has it. */
static uint64_t end_of(const struct config *c)
{
	if (c->job_end != 0)
		return (uint64_t)time(NULL);
	if (c->job_start == 0)
		return 0;
	return c->job_start + (c->job_limit != 0 ? c->job_limit * 60ull : SLURM_YEAR);
}

/* A number; SLURM_NO_VAL is cut to NO_VAL16, or made NO_VAL64, by its size. */
static uint64_t number_of(const struct config *c, enum source source, uint16_t show_flags)
{
	switch (source) {
	case NICE_ZERO:
		return SLURM_NICE_OFFSET;
	case STATE:
		return c->job_end != 0 ? SLURM_COMPLETING | c->job_end : SLURM_JOB_RUNNING;
	case SHOW_FLAGS:
		return show_flags;
	case TIME_LIMIT:
		return c->job_limit != 0 ? c->job_limit : SLURM_INFINITE;
	case START:
		return c->job_start;
	case END:
		return end_of(c);
	case ARRAY_JOB:
		return c->job_array;
	case ARRAY_TASK:
		return c->array_task;
	case JOB_ID:
		return c->job_id;
	case UID:
		return c->uid;
	case GID:
		return c->gid;
	case NNODES:
		return c->job_nnodes;
	case NTASKS:
		return c->job_ntasks;
	case NCPUS:
		return c->job_ncpus;
	case CPUS_PER_TASK:
		return c->job_per_task;
	case RESTARTS:
		return c->restarts;
	case BATCH:
		return c->batch;
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
		return c->job_nnodes == 1 ? c->node_list : "";
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
static void fill(const struct release *l, const struct config *c, uint16_t show_flags, char *record,
		 char *room)
{
	static const int32_t no_nodes[] = {-1}; /* ends a list of index pairs */
	const double unset = SLURM_NO_VAL;

	for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
		const struct field *f = &fields[i];
		char *at = record + f->offset[l - releases];

		if (at == record)
			continue;
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

static size_t room_for(const struct config *c)
{
	size_t size = 0;

	for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
		if (fields[i].source > NO_NODES)
			size += strlen(text_of(c, fields[i].source)) + 1;
	}
	return size;
}

/* Messages that were given out: the other ones that come back are not ours. */
static struct given {
	struct given *next;
	void *message;
} * given;

/* The message, its one record and the texts in one piece. */
static void *make_message(const struct release *l, const struct config *c, uint16_t show_flags)
{
	char *message = must_zero(1, message_at.size + l->record_size + room_for(c));
	char *record = message + message_at.size;
	struct given *g = must_zero(1, sizeof(*g));
	time_t now = time(NULL);

	memcpy(message + message_at.last_update, &now, sizeof(now));
	put_number(message + message_at.record_count, 4, 1);
	put_pointer(message + message_at.job_array, record);
	fill(l, c, show_flags, record, record + l->record_size);
	*g = (struct given){.next = given, .message = message};
	given = g;
	return message;
}

int slurm_load_job(void **resp, uint32_t job_id, uint16_t show_flags);
SPANK_API int slurm_load_job(void **resp, uint32_t job_id, uint16_t show_flags)
{
	const struct release *l = release_of(host.plugin);

	/* In slurmd context there is no job, on the local side none before local_user_init. */
	if (resp == NULL || l == NULL || host.cfg.job_nnodes == 0 || job_id != host.cfg.job_id) {
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
