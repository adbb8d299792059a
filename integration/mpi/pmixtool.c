/* SPDX-License-Identifier: Apache-2.0
 *
 * A PMIx tool, as a debugger is one: it connects to a step's server and asks.
 *
 *   pmixtool URI names | status | table [NSPACE] | local | other NSPACE KEY
 *   pmixtool URI signal N [RANK] | kill [RANK] | end
 *   pmixtool URI release		lets ranks go on that wait in PMIx_Init
 *   pmixtool URI notify CODE		tells all ranks of the step
 *   pmixtool URI watch CODE		waits for an event
 *
 * URI may be file:PATH. The answer to all of them ends with "status N".
 */
#include <pmix.h>
#include <pmix_tool.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pmix_proc_t me;
static char job[PMIX_MAX_NSLEN + 1];

static int finish(pmix_status_t rc)
{
	printf("status %d\n", rc);
	PMIx_tool_finalize();
	return 0;
}

/* One query; the caller has the answer. */
static pmix_status_t ask(const char *key, const char *nspace, pmix_info_t **got, size_t *n)
{
	pmix_query_t *query;
	pmix_status_t rc;

	PMIX_QUERY_CREATE(query, 1);
	PMIX_ARGV_APPEND(rc, query->keys, key);
	if (nspace != NULL) {
		PMIX_INFO_CREATE(query->qualifiers, 1);
		query->nqual = 1;
		PMIX_INFO_LOAD(&query->qualifiers[0], PMIX_NSPACE, nspace, PMIX_STRING);
	}
	*n = 0;
	rc = PMIx_Query_info(query, 1, got, n);
	return rc;
}

static void print_table(const pmix_data_array_t *a)
{
	for (size_t i = 0; i < a->size; i++) {
		const pmix_proc_info_t *p = &((const pmix_proc_info_t *)a->array)[i];

		printf("%s %u %s %d %s state %u exit %d\n", p->proc.nspace, p->proc.rank,
		       p->hostname, (int)p->pid, p->executable_name, p->state, p->exit_code);
	}
}

static int query(const char *key, const char *nspace)
{
	pmix_info_t *got = NULL;
	size_t n;
	pmix_status_t rc = ask(key, nspace, &got, &n);

	for (size_t i = 0; i < n; i++) {
		const pmix_value_t *v = &got[i].value;

		if (v->type == PMIX_STRING)
			printf("%s %s\n", got[i].key, v->data.string);
		else if (v->type == PMIX_STATUS)
			printf("%s %d\n", got[i].key, v->data.status);
		else if (v->type == PMIX_UINT32)
			printf("%s %u\n", got[i].key, v->data.uint32);
		else if (v->type == PMIX_DATA_ARRAY && v->data.darray->type == PMIX_PROC_INFO)
			print_table(v->data.darray);
		else
			printf("%s type %u\n", got[i].key, v->type);
	}
	return finish(rc);
}

static int control(const char *key, int sig, const char *rank)
{
	pmix_proc_t target;
	pmix_info_t info, *got = NULL;
	size_t n = 0;

	PMIX_LOAD_PROCID(&target, job, rank != NULL ? (pmix_rank_t)atoi(rank) : PMIX_RANK_WILDCARD);
	if (sig > 0)
		PMIX_INFO_LOAD(&info, key, &sig, PMIX_INT);
	else
		PMIX_INFO_LOAD(&info, key, NULL, PMIX_BOOL);
	return finish(PMIx_Job_control(&target, 1, &info, 1, &got, &n));
}

static int notify(pmix_status_t code)
{
	pmix_info_t info[2];
	pmix_proc_t all;
	pmix_data_array_t range = {.type = PMIX_PROC, .size = 1, .array = &all};

	PMIX_LOAD_PROCID(&all, job, PMIX_RANK_WILDCARD);
	PMIX_INFO_LOAD(&info[0], PMIX_EVENT_CUSTOM_RANGE, &range, PMIX_DATA_ARRAY);
	PMIX_INFO_LOAD(&info[1], PMIX_EVENT_NON_DEFAULT, NULL, PMIX_BOOL);
	return finish(PMIx_Notify_event(code, &me, PMIX_RANGE_CUSTOM, info, 2, NULL, NULL));
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t come = PTHREAD_COND_INITIALIZER;
static int seen;

static void heard(size_t handler, pmix_status_t code, const pmix_proc_t *source, pmix_info_t info[],
		  size_t ninfo, pmix_info_t results[], size_t nresults,
		  pmix_event_notification_cbfunc_fn_t done, void *data)
{
	(void)handler, (void)info, (void)ninfo, (void)results, (void)nresults;
	printf("event %d of %s:%u\n", code, source->nspace, source->rank);
	fflush(stdout);
	pthread_mutex_lock(&lock);
	seen = 1;
	pthread_cond_signal(&come);
	pthread_mutex_unlock(&lock);
	if (done != NULL)
		done(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, data);
}

static int watch(pmix_status_t code)
{
	PMIx_Register_event_handler(&code, 1, NULL, 0, heard, NULL, NULL);
	printf("watching\n");
	fflush(stdout);
	pthread_mutex_lock(&lock);
	while (!seen)
		pthread_cond_wait(&come, &lock);
	pthread_mutex_unlock(&lock);
	return finish(PMIX_SUCCESS);
}

static int run(const char *verb, char **arg)
{
	if (!strcmp(verb, "names"))
		return query(PMIX_QUERY_NAMESPACES, NULL);
	if (!strcmp(verb, "status"))
		return query(PMIX_QUERY_JOB_STATUS, job);
	if (!strcmp(verb, "table"))
		return query(PMIX_QUERY_PROC_TABLE, arg[0] != NULL ? arg[0] : job);
	if (!strcmp(verb, "local"))
		return query(PMIX_QUERY_LOCAL_PROC_TABLE, job);
	if (!strcmp(verb, "signal"))
		return control(PMIX_JOB_CTRL_SIGNAL, atoi(arg[0]), arg[1]);
	if (!strcmp(verb, "kill"))
		return control(PMIX_JOB_CTRL_KILL, 0, arg[0]);
	if (!strcmp(verb, "end"))
		return control(PMIX_JOB_CTRL_TERMINATE, 0, NULL);
	if (!strcmp(verb, "release"))
		return notify(PMIX_DEBUGGER_RELEASE);
	if (!strcmp(verb, "notify"))
		return notify(atoi(arg[0]));
	if (!strcmp(verb, "watch"))
		return watch(atoi(arg[0]));
	fprintf(stderr, "what is %s?\n", verb);
	return 1;
}

int main(int argc, char **argv)
{
	pmix_info_t info, *got = NULL;
	pmix_status_t rc;
	size_t n;

	if (argc < 3)
		return 1;
	PMIX_INFO_LOAD(&info, PMIX_SERVER_URI, argv[1], PMIX_STRING);
	rc = PMIx_tool_init(&me, &info, 1);
	if (rc != PMIX_SUCCESS) {
		printf("no connection: status %d\n", rc);
		return 2;
	}
	printf("I am %s:%u\n", me.nspace, me.rank);
	/* The step is the first of the namespaces that its server knows. */
	if (ask(PMIX_QUERY_NAMESPACES, NULL, &got, &n) == PMIX_SUCCESS && n == 1)
		snprintf(job, sizeof(job), "%.*s", (int)strcspn(got[0].value.data.string, ","),
			 got[0].value.data.string);
	return run(argv[2], argv + 3);
}
