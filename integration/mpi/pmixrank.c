/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank that speaks PMIx itself, for what MPI has no call for.
 *
 *   pmixrank wait		says "up RANK" and waits; SIGUSR1 makes it say "usr1 RANK" and end well
 *   pmixrank event CODE	waits for an event, says "event CODE of SOURCE at RANK", and ends
 *   pmixrank tell CODE		rank 0 tells all others, which wait as with event
 *   pmixrank control KEY RANK	rank 0 controls rank RANK ("kill", "term"; a number is a signal), the others wait
 *   pmixrank late RANK		all but one fence
 *   pmixrank group [PARTS]	all make a group, or PARTS at a time of every PARTSth rank, and say "group STATUS
 *				context NUMBER at RANK"; then they take it apart and say "gone STATUS at RANK"
 */
#include <pmix.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pmix_proc_t me;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t come = PTHREAD_COND_INITIALIZER;
static int seen, registered, told;

static void set(int *what)
{
	pthread_mutex_lock(&lock);
	*what = 1;
	pthread_cond_broadcast(&come);
	pthread_mutex_unlock(&lock);
}

static void await(int *what)
{
	pthread_mutex_lock(&lock);
	while (!*what)
		pthread_cond_wait(&come, &lock);
	pthread_mutex_unlock(&lock);
}

static void heard(size_t handler, pmix_status_t code, const pmix_proc_t *source, pmix_info_t info[],
		  size_t ninfo, pmix_info_t results[], size_t nresults,
		  pmix_event_notification_cbfunc_fn_t done, void *data)
{
	(void)handler, (void)results, (void)nresults;
	printf("event %d of %s:%u at %u", code, source->nspace, source->rank, me.rank);
	for (size_t i = 0; i < ninfo; i++)
		if (!strcmp(info[i].key, "test.text"))
			printf(" text %s", info[i].value.data.string);
		else if (!strcmp(info[i].key, "test.number"))
			printf(" number %g", info[i].value.data.dval);
	printf("\n");
	fflush(stdout);
	if (done != NULL)
		done(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, data);
	set(&seen);
}

static void is_registered(pmix_status_t status, size_t ref, void *data)
{
	(void)status, (void)ref, (void)data;
	set(&registered);
}

static void is_told(pmix_status_t status, void *data)
{
	(void)status, (void)data;
	set(&told);
}

static void listen_for(pmix_status_t code)
{
	PMIx_Register_event_handler(&code, 1, NULL, 0, heard, is_registered, NULL);
	await(&registered);
}

static pmix_status_t fence(void)
{
	pmix_proc_t all;

	PMIX_LOAD_PROCID(&all, me.nspace, PMIX_RANK_WILDCARD);
	return PMIx_Fence(&all, 1, NULL, 0);
}

static void up(void)
{
	printf("up %u\n", me.rank);
	fflush(stdout);
}

static void wait_for_signal(void)
{
	int sig = 0;
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	up();
	while (sigwait(&set, &sig) != 0 || sig != SIGUSR1)
		;
	printf("usr1 %u\n", me.rank);
	fflush(stdout);
}

static void tell(pmix_status_t code)
{
	pmix_info_t info[3];
	double number = 2.5;
	pmix_status_t rc;

	PMIX_INFO_LOAD(&info[0], PMIX_EVENT_NON_DEFAULT, NULL, PMIX_BOOL);
	PMIX_INFO_LOAD(&info[1], "test.text", "hello", PMIX_STRING);
	PMIX_INFO_LOAD(&info[2], "test.number", &number, PMIX_DOUBLE);
	rc = PMIx_Notify_event(code, &me, PMIX_RANGE_NAMESPACE, info, 3, is_told, NULL);
	if (rc == PMIX_SUCCESS)
		await(&told);
	else if (rc != PMIX_OPERATION_SUCCEEDED)
		printf("notify %d\n", rc);
}

static void control(const char *key, const char *rank)
{
	pmix_proc_t target;
	pmix_info_t info, *got = NULL;
	size_t n = 0;
	int sig = atoi(key);

	PMIX_LOAD_PROCID(&target, me.nspace, (pmix_rank_t)atoi(rank));
	if (sig > 0)
		PMIX_INFO_LOAD(&info, PMIX_JOB_CTRL_SIGNAL, &sig, PMIX_INT);
	else if (!strcmp(key, "kill"))
		PMIX_INFO_LOAD(&info, PMIX_JOB_CTRL_KILL, NULL, PMIX_BOOL);
	else
		PMIX_INFO_LOAD(&info, PMIX_JOB_CTRL_TERMINATE, NULL, PMIX_BOOL);
	printf("control %d\n", PMIx_Job_control(&target, 1, &info, 1, &got, &n));
	fflush(stdout);
}

static uint32_t job_size(void)
{
	pmix_proc_t job;
	pmix_value_t *size;

	PMIX_LOAD_PROCID(&job, me.nspace, PMIX_RANK_WILDCARD);
	return PMIx_Get(&job, PMIX_JOB_SIZE, NULL, 0, &size) == PMIX_SUCCESS ? size->data.uint32
									     : 0;
}

/* members are all ranks, or every PARTSth with this one. */
static size_t members(pmix_proc_t *of, size_t room, const char *parts)
{
	uint32_t step = parts != NULL ? (uint32_t)atoi(parts) : 1;
	size_t n = 0;

	if (step == 1) {
		PMIX_LOAD_PROCID(&of[0], me.nspace, PMIX_RANK_WILDCARD);
		return 1;
	}
	for (uint32_t rank = me.rank % step; rank < job_size() && n < room; rank += step, n++)
		PMIX_LOAD_PROCID(&of[n], me.nspace, rank);
	return n;
}

static int group(const char *parts)
{
	pmix_proc_t of[64];
	pmix_info_t info, *got = NULL;
	size_t n = 0, context = 0, size = members(of, 64, parts);
	char name[32];
	pmix_status_t rc;

	snprintf(name, sizeof name, "ours.%u", of[0].rank);
	PMIX_INFO_LOAD(&info, PMIX_GROUP_ASSIGN_CONTEXT_ID, NULL, PMIX_BOOL);
	rc = PMIx_Group_construct(name, of, size, &info, 1, &got, &n);
	for (size_t i = 0; i < n; i++)
		if (PMIX_CHECK_KEY(&got[i], PMIX_GROUP_CONTEXT_ID))
			context = got[i].value.data.size;
	printf("group %d context %zu at %u\n", rc, context, me.rank);
	fflush(stdout);
	if (rc == PMIX_SUCCESS)
		rc = PMIx_Group_destruct(name, NULL, 0);
	printf("gone %d at %u\n", rc, me.rank);
	return rc == PMIX_SUCCESS ? 0 : 1;
}

static int run(const char *verb, char **arg)
{
	if (!strcmp(verb, "event") || !strcmp(verb, "tell")) {
		listen_for(atoi(arg[0]));
		if (fence() != PMIX_SUCCESS)
			return 3;
		up();
		if (!strcmp(verb, "tell") && me.rank == 0)
			tell(atoi(arg[0]));
		else
			await(&seen);
	} else if (!strcmp(verb, "control")) {
		if (me.rank == 0)
			control(arg[0], arg[1]);
		wait_for_signal();
	} else if (!strcmp(verb, "late")) {
		up();
		if (me.rank == (pmix_rank_t)atoi(arg[0]))
			pause();
	} else if (!strcmp(verb, "group")) {
		return group(arg[0]);
	} else {
		wait_for_signal();
	}
	return fence() == PMIX_SUCCESS ? 0 : 4;
}

int main(int argc, char **argv)
{
	sigset_t usr1;
	int code;

	if (argc < 2)
		return 1;
	/* Before the library has threads. */
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	sigprocmask(SIG_BLOCK, &usr1, NULL);
	if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
		return 2;
	code = run(argv[1], argv + 2);
	PMIx_Finalize(NULL, 0);
	return code;
}
