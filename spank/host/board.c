// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "host.h"
#include "util.h"

_Static_assert(sizeof(struct board) == 64, "the Go half reads at these offsets");
_Static_assert(sizeof(struct board_slot) == 24, "the Go half reads at these offsets");
_Static_assert(sizeof(struct board_entry) == 32, "the Go half reads at these offsets");
_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2,
	       "shared between processes");

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Maps the board and closes nothing. False with errno set. */
bool board_attach(struct board_map *b, int fd, size_t ntasks)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return false;
	size_t size = (size_t)st.st_size, need = sizeof(struct board);
	if (size < need) {
		errno = EPROTO;
		return false;
	}
	void *mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (mem == MAP_FAILED)
		return false;
	b->head = mem;
	/* Read once: what is used from here on does not change with the memory. */
	b->nslots = b->head->nslots;
	b->nentries = b->head->nentries;
	need += (size_t)b->nslots * sizeof(struct board_slot);
	need += (size_t)b->nentries * sizeof(struct board_entry);
	if (b->head->magic != BOARD_MAGIC || b->head->version != HOST_PROTOCOL_VERSION ||
	    b->nslots < ntasks + 1 || size < need) {
		munmap(mem, size);
		*b = (struct board_map){0};
		errno = EPROTO;
		return false;
	}
	b->slots = (struct board_slot *)(b->head + 1);
	b->entries = (struct board_entry *)(b->slots + b->nslots);
	return true;
}

static struct board_slot *slot_of(struct host *h, uint32_t slot)
{
	return slot < h->board.nslots ? &h->board.slots[slot] : NULL;
}

/* Slot 0 is the host, slot r + 1 local task r. */
void board_stage(struct host *h, uint32_t slot, enum stage stage)
{
	struct board_slot *s = slot_of(h, slot);

	if (s == NULL)
		return;
	atomic_store(&s->since_ns, now_ns());
	atomic_store(&s->stage, (uint32_t)stage);
}

void board_error(struct host *h, uint32_t slot, int error)
{
	struct board_slot *s = slot_of(h, slot);

	if (s != NULL)
		atomic_store(&s->error, error);
}

bool board_claim(struct host *h, uint32_t slot)
{
	struct board_slot *s = slot_of(h, slot);
	uint64_t token = h->token;

	/* The odd nanosecond does not matter. */
	if (s == NULL)
		return true;
	if (h->copy)
		return atomic_compare_exchange_strong(&s->since_ns, &token, token + 1);
	atomic_store_explicit(&s->since_ns, token + 1, memory_order_relaxed);
	return true;
}

bool board_at_exec(struct host *h, uint32_t slot)
{
	const struct board_slot *s = slot_of(h, slot);

	return s != NULL && atomic_load(&s->stage) == STAGE_EXEC;
}

/* A hook has executed another program: the task is that program. */
void board_execed(struct host *h, uint32_t slot)
{
	struct board_slot *s = slot_of(h, slot);

	if (s == NULL)
		return;
	atomic_store(&s->error, 0);
	atomic_store(&s->hook, NO_HOOK);
	atomic_store(&s->stage, STAGE_EXEC);
}

static struct board_entry *entry_take(struct board_map *b)
{
	if (b->head == NULL || atomic_load(&b->head->next) >= b->nentries)
		return NULL;
	uint32_t at = atomic_fetch_add(&b->head->next, 1);
	return at < b->nentries ? &b->entries[at] : NULL;
}

static void slot_enter(struct host *h, struct board_slot *s, uint64_t now, uint32_t plugin,
		       uint32_t hook)
{
	if (s == NULL)
		return;
	atomic_store_explicit(&s->since_ns, now, memory_order_relaxed);
	h->token = now;
	atomic_store_explicit(&s->plugin, plugin, memory_order_relaxed);
	/* Last: it says that the others hold. */
	atomic_store_explicit(&s->hook, hook, memory_order_release);
}

/* A reader needs the order of these stores, and a process that dies has made all of
 * them: barriers would cost more than the rest. The entry is NULL when the journal
 * is full. */
struct board_entry *board_hook_enter(struct host *h, uint32_t slot, uint32_t plugin, uint32_t hook,
				     uint32_t rank)
{
	struct board_slot *s = slot_of(h, slot);
	struct board_entry *e = entry_take(&h->board);
	uint64_t now = now_ns();

	if (e != NULL) {
		e->start_ns = now;
		e->rank = rank;
		e->plugin = (uint16_t)plugin;
		e->hook = (uint16_t)hook;
		atomic_store_explicit(&e->ready, 1, memory_order_release);
	}
	slot_enter(h, s, now, plugin, hook);
	return e;
}

void board_at(struct host *h, uint32_t plugin, uint32_t hook)
{
	slot_enter(h, slot_of(h, 0), now_ns(), plugin, hook);
}

void board_hook_leave(struct host *h, uint32_t slot, struct board_entry *e, int rc)
{
	struct board_slot *s = slot_of(h, slot);

	if (e != NULL) {
		e->rc = rc;
		atomic_thread_fence(memory_order_release);
		e->end_ns = now_ns();
	}
	if (s != NULL)
		atomic_store_explicit(&s->hook, NO_HOOK, memory_order_release);
}
