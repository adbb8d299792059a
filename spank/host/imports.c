// SPDX-License-Identifier: Apache-2.0
/* What a plugin imports and nothing here provides. Data, and functions of a
 * plugin that binds at once, dlopen has refused already; the others are bound when
 * they are called, and then ld.so would end the process. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include "host.h"
#include "imports.h"
#include "util.h"

/* Symbols that are named for one plugin; the rest are counted. */
#define TOLD_MAX 64

/* A relocation, with an addend behind it or without. */
struct reloc {
	ElfW(Addr) offset;
	ElfW(Xword) info;
};

/* What an object's dynamic section says of its relocations. */
struct object {
	const struct link_map *map;
	const ElfW(Sym) * symbols;
	const char *strings;
	size_t strings_size;
	/* Of functions that are bound when they are called, and of the rest. */
	const uint8_t *lazy, *eager;
	size_t lazy_size, eager_size, lazy_step, eager_step;
};

struct missing {
	struct host *h;
	struct plugin *p;
	uint32_t n;
};

/* glibc has added the load address to a pointer of the dynamic section, but where
 * that section is read-only. */
static const void *pointer(const struct link_map *map, ElfW(Addr) p)
{
	return (const void *)(p < map->l_addr ? p + map->l_addr : p);
}

static bool read_object(struct object *o, const struct link_map *map)
{
	*o = (struct object){
		.map = map, .lazy_step = sizeof(ElfW(Rela)), .eager_step = sizeof(ElfW(Rela))};
	for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
		switch (d->d_tag) {
		case DT_SYMTAB:
			o->symbols = pointer(map, d->d_un.d_ptr);
			break;
		case DT_STRTAB:
			o->strings = pointer(map, d->d_un.d_ptr);
			break;
		case DT_STRSZ:
			o->strings_size = d->d_un.d_val;
			break;
		case DT_JMPREL:
			o->lazy = pointer(map, d->d_un.d_ptr);
			break;
		case DT_PLTRELSZ:
			o->lazy_size = d->d_un.d_val;
			break;
		case DT_PLTREL:
			if (d->d_un.d_val == DT_REL)
				o->lazy_step = sizeof(ElfW(Rel));
			break;
		case DT_REL:
			o->eager_step = sizeof(ElfW(Rel));
			o->eager = pointer(map, d->d_un.d_ptr);
			break;
		case DT_RELA:
			o->eager = pointer(map, d->d_un.d_ptr);
			break;
		case DT_RELSZ:
		case DT_RELASZ:
			o->eager_size = d->d_un.d_val;
			break;
		}
	}
	return o->symbols != NULL && o->strings != NULL;
}

/* The name that a relocation imports; NULL if it imports none, or can do without. */
static const char *imported(const struct object *o, const struct reloc *r)
{
	size_t index = _ElfW(ELF, __ELF_NATIVE_CLASS, R_SYM)(r->info);
	const ElfW(Sym) *symbol = &o->symbols[index];

	if (index == STN_UNDEF || symbol->st_shndx != SHN_UNDEF ||
	    ELF64_ST_BIND(symbol->st_info) == STB_WEAK || symbol->st_name >= o->strings_size)
		return NULL;
	return o->strings + symbol->st_name;
}

static void reply_missing(const struct missing *m, const char *symbol, uint32_t more)
{
	uint8_t buf[2048];
	struct writer w = wr_init(buf, sizeof(buf));

	wr_u32(&w, REP_MISSING);
	wr_u32(&w, m->p->index);
	wr_u32(&w, more);
	wr_str(&w, symbol, 1024); /* C++ has long ones */
	struct iovec iov = {buf, w.len};
	(void)packet_send(m->h->control, &iov, 1, NULL, 0); /* end of file tells us next */
}

static void note(struct missing *m, const char *symbol)
{
	if (m->n++ < TOLD_MAX)
		reply_missing(m, symbol, 0);
}

static bool provided(const struct plugin *p, const char *symbol)
{
	/* In the order of the binding: this program and the C library before the
	 * plugin's own libraries. */
	return dlsym(RTLD_DEFAULT, symbol) != NULL || dlsym(p->dl, symbol) != NULL;
}

/* Where a lazy binding keeps the function's address. */
static void (**slot_of(const struct object *o, const struct reloc *r))(void)
{
	return (void (**)(void))(o->map->l_addr + r->offset);
}

static void check_lazy(struct missing *m, const struct object *o)
{
	for (size_t at = 0; at + o->lazy_step <= o->lazy_size; at += o->lazy_step) {
		const struct reloc *r = (const struct reloc *)(o->lazy + at);
		const char *symbol = imported(o, r);

		if (symbol == NULL || provided(m->p, symbol))
			continue;
		if (m->n < TOLD_MAX)
			missing_catch(m->p, symbol, m->n, slot_of(o, r));
		note(m, symbol);
	}
}

/* slurm_load_job is here, and cannot answer every plugin. */
static bool imports_load_job(const struct object *o, const uint8_t *table, size_t size, size_t step)
{
	for (size_t at = 0; at + step <= size; at += step) {
		const char *symbol = imported(o, (const struct reloc *)(table + at));

		if (symbol != NULL && strcmp(symbol, "slurm_load_job") == 0)
			return true;
	}
	return false;
}

void imports_check(struct host *h, struct plugin *p)
{
	struct missing m = {.h = h, .p = p};
	struct link_map *map;
	struct object o;

	if (dlinfo(p->dl, RTLD_DI_LINKMAP, &map) != 0 || !read_object(&o, map))
		return;
	check_lazy(&m, &o);
	if (!job_is_told_to(p) && (imports_load_job(&o, o.lazy, o.lazy_size, o.lazy_step) ||
				   imports_load_job(&o, o.eager, o.eager_size, o.eager_step)))
		note(&m, "slurm_load_job");
	if (m.n > TOLD_MAX)
		reply_missing(&m, "", m.n - TOLD_MAX);
}
