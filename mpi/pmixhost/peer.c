// SPDX-License-Identifier: Apache-2.0
/* Who may connect. libpmix 4 listens on the loopback interface, where every user
 * of the node can reach it, and its "native" security believes the uid that a
 * peer says it has. The kernel knows better: it reports whose socket the other end
 * is (sock_diag(7)), and what is not the step's user's or root's is closed before
 * the library sees it.
 *
 * What is refused is refused here: the library stops listening when descriptors
 * run out, and 4.2 falls over where its host refuses a tool.
 *
 * This program's accept() comes before the C library's when libpmix calls it. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "host.h"

static _Atomic uint32_t allowed;
static _Atomic int descriptors;

/* What the library needs for itself at any time: files of keys, a socket. */
#define SPARE_DESCRIPTORS 32

void peer_allow(uid_t uid)
{
	struct rlimit files = {.rlim_cur = 1024};
	rlim_t most = 1 << 20;

	(void)getrlimit(RLIMIT_NOFILE, &files);
	if (files.rlim_cur < most)
		most = files.rlim_cur;
	atomic_store(&descriptors, (int)most - SPARE_DESCRIPTORS);
	atomic_store(&allowed, uid);
}

/* The lowest free number is what a socket gets, so it shows how many there are. */
static bool too_many(int sd)
{
	static atomic_bool said;

	if (sd < atomic_load(&descriptors))
		return false;
	if (!atomic_exchange(&said, true))
		word("refused a connection: there are %d descriptors open (RLIMIT_NOFILE)", sd);
	return true;
}

/* The other end's two addresses, as that end sees them. */
static bool fill_id(int sd, struct inet_diag_req_v2 *req)
{
	struct sockaddr_storage mine, theirs;
	socklen_t mlen = sizeof(mine), tlen = sizeof(theirs);

	if (getsockname(sd, (struct sockaddr *)&mine, &mlen) < 0 ||
	    getpeername(sd, (struct sockaddr *)&theirs, &tlen) < 0 ||
	    mine.ss_family != theirs.ss_family)
		return false;
	req->sdiag_family = (uint8_t)mine.ss_family;
	req->sdiag_protocol = IPPROTO_TCP;
	req->idiag_states = 1u << TCP_ESTABLISHED;
	memset(req->id.idiag_cookie, 0xff, sizeof(req->id.idiag_cookie)); /* INET_DIAG_NOCOOKIE */
	if (mine.ss_family == AF_INET) {
		const struct sockaddr_in *m = (void *)&mine, *t = (void *)&theirs;

		req->id.idiag_sport = t->sin_port;
		req->id.idiag_dport = m->sin_port;
		memcpy(req->id.idiag_src, &t->sin_addr, sizeof(t->sin_addr));
		memcpy(req->id.idiag_dst, &m->sin_addr, sizeof(m->sin_addr));
		return true;
	}
	if (mine.ss_family == AF_INET6) {
		const struct sockaddr_in6 *m = (void *)&mine, *t = (void *)&theirs;

		req->id.idiag_sport = t->sin6_port;
		req->id.idiag_dport = m->sin6_port;
		memcpy(req->id.idiag_src, &t->sin6_addr, sizeof(t->sin6_addr));
		memcpy(req->id.idiag_dst, &m->sin6_addr, sizeof(m->sin6_addr));
		return true;
	}
	return false;
}

/* Asks for one socket. Only an established one has an owner for certain: one
 * that its process has closed counts as root's. */
static bool ask_owner(int nl, int sd, uid_t *uid)
{
	struct {
		struct nlmsghdr head;
		struct inet_diag_req_v2 req;
	} q = {.head = {.nlmsg_len = sizeof(q),
			.nlmsg_type = SOCK_DIAG_BY_FAMILY,
			.nlmsg_flags = NLM_F_REQUEST}};
	union {
		struct nlmsghdr head;
		char room[1024];
	} a;
	const struct inet_diag_msg *m;
	ssize_t n;

	if (!fill_id(sd, &q.req) || send(nl, &q, sizeof(q), 0) != (ssize_t)sizeof(q))
		return false;
	do
		n = recv(nl, &a, sizeof(a), 0);
	while (n < 0 && errno == EINTR);
	if (n < 0 || !NLMSG_OK(&a.head, (size_t)n) || a.head.nlmsg_type != SOCK_DIAG_BY_FAMILY ||
	    a.head.nlmsg_len < NLMSG_LENGTH(sizeof(*m)))
		return false;
	m = NLMSG_DATA(&a.head);
	*uid = m->idiag_uid;
	return m->idiag_state == TCP_ESTABLISHED;
}

static bool owner(int sd, uid_t *uid)
{
	int nl = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	bool ok = nl >= 0 && ask_owner(nl, sd, uid);

	if (nl >= 0)
		close(nl);
	return ok;
}

/* libpmix calls it in the thread that listens. ECONNABORTED makes it go on. */
__attribute__((visibility("default"))) int accept(int sock, struct sockaddr *restrict addr,
						  socklen_t *restrict len)
{
	int sd = accept4(sock, addr, len, SOCK_CLOEXEC);
	uid_t uid = 0;
	bool known;

	if (sd < 0)
		return sd;
	if (too_many(sd)) {
		close(sd);
		errno = ECONNABORTED;
		return -1;
	}
	known = owner(sd, &uid);
	if (known && (uid == atomic_load(&allowed) || uid == 0)) {
		quick_connection(sd);
		return sd;
	}
	close(sd);
	if (known)
		word("refused a connection of uid %u: the step is uid %u's", uid,
		     atomic_load(&allowed));
	errno = ECONNABORTED;
	return -1;
}
