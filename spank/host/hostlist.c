// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "hostlist.h"

#include <inttypes.h>
#include <string.h>

#include "util.h"

/* Digits of a number: what a uint64_t holds for sure. */
#define DIGITS_MAX 18
/* Bracketed groups in one name. */
#define GROUPS_MAX 8

static void make_room(struct hostlist *hl)
{
	size_t n = hl->end - hl->first;

	if (hl->first > n) {
		/* More has been shifted off than is left. */
		memcpy(hl->host, hl->host + hl->first, n * sizeof(*hl->host));
		hl->first = 0;
		hl->end = n;
		return;
	}
	hl->cap = hl->cap ? 2 * hl->cap : 8;
	hl->host = must_grow(hl->host, hl->cap, sizeof(*hl->host));
}

bool hostlist_add(struct hostlist *hl, const char *name, size_t len)
{
	if (len == 0 || len >= HOST_NAME_BYTES || hl->end - hl->first == HOSTLIST_MAX)
		return false;
	if (hl->end == hl->cap)
		make_room(hl);
	hl->host[hl->end++] = must(strndup(name, len));
	return true;
}

/* A name in the making. */
struct name {
	char text[HOST_NAME_BYTES];
	size_t len;
	int groups;
};

static bool append(struct name *n, const char *p, size_t len)
{
	if (len >= sizeof(n->text) - n->len)
		return false;
	memcpy(n->text + n->len, p, len);
	n->len += len;
	return true;
}

static bool append_number(struct name *n, uint64_t v, int width)
{
	char digits[DIGITS_MAX + 4];
	int len = snprintf(digits, sizeof(digits), "%0*" PRIu64, width, v);

	return append(n, digits, (size_t)len);
}

/* Reads digits at *p. Their number, 0 if there are none or too many. */
static int read_number(const char **p, uint64_t *v)
{
	int width = 0;

	for (*v = 0; **p >= '0' && **p <= '9'; ++*p) {
		if (++width > DIGITS_MAX)
			return 0;
		*v = *v * 10 + (uint64_t)(**p - '0');
	}
	return width;
}

/* Reads LO or LO-HI up to the comma or bracket behind it. LO's width is the width of all.
 */
static bool read_range(const char **p, uint64_t *lo, uint64_t *hi, int *width)
{
	*width = read_number(p, lo);
	*hi = *lo;
	if (*width == 0)
		return false;
	if (**p == '-') {
		++*p;
		if (read_number(p, hi) == 0)
			return false;
	}
	return *lo <= *hi && (**p == ',' || **p == ']');
}

/* Adds every name that begins with n and goes on by p up to end, in which the
 * brackets are paired. */
static bool expand(struct hostlist *hl, struct name *n, const char *p, const char *end)
{
	const char *open = memchr(p, '[', (size_t)(end - p));
	struct name head = *n;

	if (open == NULL) {
		/* As in Slurm nothing follows the last number. */
		return (n->groups == 0 || p == end) && append(&head, p, (size_t)(end - p)) &&
		       hostlist_add(hl, head.text, head.len);
	}
	if (++head.groups > GROUPS_MAX || !append(&head, p, (size_t)(open - p)))
		return false;
	const char *behind = (const char *)memchr(open, ']', (size_t)(end - open)) + 1;
	for (p = open; *p != ']';) {
		uint64_t lo, hi;
		int width;

		p++; /* the bracket, or a comma */
		if (!read_range(&p, &lo, &hi, &width))
			return false;
		for (; lo <= hi; lo++) {
			struct name one = head;

			if (!append_number(&one, lo, width) || !expand(hl, &one, behind, end))
				return false;
		}
	}
	return true;
}

static bool is_separator(char c)
{
	return c == ',' || c == ' ' || (c >= '\t' && c <= '\r');
}

/* Where the element that begins at p ends; NULL if its brackets are not paired. */
static const char *element_end(const char *p)
{
	bool inside = false;

	for (; *p != 0 && (inside || !is_separator(*p)); p++) {
		if (*p == (inside ? '[' : ']'))
			return NULL;
		if (*p == '[' || *p == ']')
			inside = !inside;
	}
	return inside ? NULL : p;
}

bool hostlist_parse(struct hostlist *hl, const char *text)
{
	size_t before = hl->end;

	for (;;) {
		struct name n = {.len = 0};

		while (is_separator(*text))
			text++;
		if (*text == 0)
			return true;
		const char *end = element_end(text);
		if (end == NULL || !expand(hl, &n, text, end))
			break;
		text = end;
	}
	while (hl->end > before)
		free(hl->host[--hl->end]);
	return false;
}

/* A host's name: what is before the digits that it ends with, and they. */
struct split {
	const char *name;
	size_t prefix, width; /* bytes; width 0: no number */
	uint64_t number;
};

static struct split split(const char *name)
{
	struct split s = {.name = name, .prefix = strlen(name)};

	while (s.prefix > 0 && s.width < DIGITS_MAX && name[s.prefix - 1] >= '0' &&
	       name[s.prefix - 1] <= '9') {
		s.prefix--;
		s.width++;
	}
	for (size_t i = 0; i < s.width; i++)
		s.number = s.number * 10 + (uint64_t)(name[s.prefix + i] - '0');
	return s;
}

static bool same_prefix(const struct split *a, const struct split *b)
{
	return a->width > 0 && b->width > 0 && a->prefix == b->prefix &&
	       memcmp(a->name, b->name, a->prefix) == 0;
}

static size_t natural_width(uint64_t v)
{
	size_t n = 1;

	while (v >= 10) {
		v /= 10;
		n++;
	}
	return n;
}

/* True if the range that begins with lo and has reached last yields next's very digits.
 */
static bool continues(const struct split *lo, const struct split *last, const struct split *next)
{
	size_t width = natural_width(next->number);

	return next->number == last->number + 1 &&
	       next->width == (width > lo->width ? width : lo->width);
}

struct text {
	char *p;
	size_t len, cap;
};

static void put(struct text *t, const char *p, size_t len)
{
	if (t->cap - t->len <= len) {
		t->cap = 2 * (t->len + len) + 64;
		t->p = must_grow(t->p, t->cap, 1);
	}
	memcpy(t->p + t->len, p, len);
	t->len += len;
	t->p[t->len] = 0;
}

/* Writes the range that begins with host i, and returns the host behind it. */
static size_t put_range(struct text *t, const struct hostlist *hl, size_t i)
{
	struct split lo = split(hl->host[i]), last = lo;

	while (++i < hl->end) {
		struct split next = split(hl->host[i]);

		if (!same_prefix(&lo, &next) || !continues(&lo, &last, &next))
			break;
		last = next;
	}
	put(t, lo.name + lo.prefix, lo.width);
	if (last.number != lo.number) {
		put(t, "-", 1);
		put(t, last.name + last.prefix, last.width);
	}
	return i;
}

/* True if host i exists and can stand in the same brackets. */
static bool joins(const struct hostlist *hl, size_t i, const struct split *s)
{
	struct split other;

	if (i >= hl->end)
		return false;
	other = split(hl->host[i]);
	return same_prefix(s, &other);
}

char *hostlist_ranged(const struct hostlist *hl)
{
	struct text t = {0};

	put(&t, "", 0);
	for (size_t i = hl->first; i < hl->end;) {
		struct split s = split(hl->host[i]);

		if (i > hl->first)
			put(&t, ",", 1);
		put(&t, s.name, s.prefix);
		if (!joins(hl, i + 1, &s)) {
			put(&t, s.name + s.prefix, s.width);
			i++;
			continue;
		}
		for (const char *sep = "["; joins(hl, i, &s); sep = ",") {
			put(&t, sep, 1);
			i = put_range(&t, hl, i);
		}
		put(&t, "]", 1);
	}
	return t.p;
}

char *hostlist_plain(const struct hostlist *hl)
{
	struct text t = {0};

	put(&t, "", 0);
	for (size_t i = hl->first; i < hl->end; i++) {
		if (i > hl->first)
			put(&t, ",", 1);
		put(&t, hl->host[i], strlen(hl->host[i]));
	}
	return t.p;
}

static int compare(const void *pa, const void *pb)
{
	struct split a = split(*(char *const *)pa), b = split(*(char *const *)pb);
	char prefix_a[HOST_NAME_BYTES], prefix_b[HOST_NAME_BYTES];

	memcpy(prefix_a, a.name, a.prefix);
	memcpy(prefix_b, b.name, b.prefix);
	prefix_a[a.prefix] = prefix_b[b.prefix] = 0;
	int order = strverscmp(prefix_a, prefix_b);
	if (order != 0)
		return order;
	if (a.width != b.width)
		return a.width < b.width ? -1 : 1;
	if (a.number != b.number)
		return a.number < b.number ? -1 : 1;
	return 0;
}

void hostlist_order(struct hostlist *hl)
{
	if (hl->end > hl->first)
		qsort(hl->host + hl->first, hl->end - hl->first, sizeof(*hl->host), compare);
}
