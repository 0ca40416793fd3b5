// SPDX-License-Identifier: GPL-2.0-only
/*
 * A file mapped into memory that somebody else may cut off, or a device that fails to read.
 *
 * The kernel answers an access to a page that is not there any more with SIGBUS. A handler puts
 * zeros in place of the rest of the mapping, notes where that happened, and the access goes on;
 * who holds the mapping asks afterwards whether what it read can be believed. SIGBUS at any other
 * address goes to whoever handled it before.
 */
#define _GNU_SOURCE /* MAP_ANONYMOUS, MAP_NORESERVE, siginfo_t */
#include "mapping.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Never freed, as the handler may be looking at it: the next file takes its place. */
struct bm_mapping {
	int taken;
	uintptr_t start, end; /* empty: no file */
	uint64_t lost;	      /* first byte that could not be read, and 1; 0: none */
	struct bm_mapping *next;
};

static struct bm_mapping *mappings;
static struct sigaction before;

static struct bm_mapping *find(uintptr_t at)
{
	struct bm_mapping *one = __atomic_load_n(&mappings, __ATOMIC_ACQUIRE);

	while (one && !(at >= __atomic_load_n(&one->start, __ATOMIC_ACQUIRE) &&
			at < __atomic_load_n(&one->end, __ATOMIC_ACQUIRE)))
		one = one->next;
	return one;
}

static void pass_on(int number, siginfo_t *info, void *context)
{
	struct sigaction usual = {.sa_handler = SIG_DFL};

	if (before.sa_flags & SA_SIGINFO) {
		before.sa_sigaction(number, info, context);
	} else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
		before.sa_handler(number);
	} else {
		/* an access fails again, and ends the process */
		sigaction(number, &usual, NULL);
		if (info->si_code <= 0)
			raise(number);
	}
}

static void on_sigbus(int number, siginfo_t *info, void *context)
{
	int saved = errno;
	uintptr_t at = (uintptr_t)info->si_addr, page;
	struct bm_mapping *hit = info->si_code > 0 ? find(at) : NULL;
	uint64_t none = 0;

	if (hit) {
		page = at & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
		__atomic_compare_exchange_n(&hit->lost, &none, page - hit->start + 1, 0,
					    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
		/* whatever follows is most likely gone, too, and is not to be believed anyway */
		if (mmap((void *)page, hit->end - page, PROT_READ,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
			 0) == MAP_FAILED)
			hit = NULL;
	}
	if (!hit)
		pass_on(number, info, context);
	errno = saved;
}

/* Others may have set a handler since the last time. */
static void handle_sigbus(void)
{
	static char busy;
	struct sigaction ours = {.sa_sigaction = on_sigbus,
				 .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER},
			 now;

	while (__atomic_test_and_set(&busy, __ATOMIC_ACQUIRE))
		;
	if (!sigaction(SIGBUS, NULL, &now) &&
	    !(now.sa_flags & SA_SIGINFO && now.sa_sigaction == on_sigbus)) {
		before = now;
		sigaction(SIGBUS, &ours, NULL);
	}
	__atomic_clear(&busy, __ATOMIC_RELEASE);
}

/* A free place, or a new one; NULL: no memory. */
static struct bm_mapping *take_place(void)
{
	struct bm_mapping *one = __atomic_load_n(&mappings, __ATOMIC_ACQUIRE);
	int no;

	for (; one; one = one->next) {
		no = 0;
		if (__atomic_compare_exchange_n(&one->taken, &no, 1, 0, __ATOMIC_ACQ_REL,
						__ATOMIC_ACQUIRE))
			return one;
	}
	one = calloc(1, sizeof(*one));
	if (!one)
		return NULL;
	one->taken = 1;
	one->next = __atomic_load_n(&mappings, __ATOMIC_ACQUIRE);
	while (!__atomic_compare_exchange_n(&mappings, &one->next, one, 0, __ATOMIC_ACQ_REL,
					    __ATOMIC_ACQUIRE))
		;
	return one;
}

const uint8_t *bm_map_file(int file, uint64_t size, struct bm_fault *fault)
{
	struct bm_mapping *one = take_place();
	void *base;

	if (!one) {
		bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
		return NULL;
	}
	handle_sigbus();
	base = mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0);
	if (base == MAP_FAILED) {
		bm_fail(fault, (struct bm_fault){.code = BM_ERRNO, .found = (uint64_t)errno});
		__atomic_store_n(&one->taken, 0, __ATOMIC_RELEASE);
		return NULL;
	}
	__atomic_store_n(&one->lost, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&one->start, (uintptr_t)base, __ATOMIC_RELEASE);
	__atomic_store_n(&one->end, (uintptr_t)base + size, __ATOMIC_RELEASE);
	return base;
}

void bm_unmap_file(const uint8_t *base)
{
	struct bm_mapping *one = find((uintptr_t)base);
	uintptr_t start, end;

	if (!one)
		return;
	start = one->start;
	end = one->end;
	__atomic_store_n(&one->end, 0, __ATOMIC_RELEASE);
	munmap((void *)start, end - start);
	__atomic_store_n(&one->taken, 0, __ATOMIC_RELEASE);
}

const struct bm_mapping *bm_mapping_of(const uint8_t *address)
{
	return find((uintptr_t)address);
}

int bm_mapping_is_whole(const struct bm_mapping *mapping, struct bm_fault *fault)
{
	uint64_t lost = mapping ? __atomic_load_n(&mapping->lost, __ATOMIC_ACQUIRE) : 0;

	if (!lost)
		return BM_OK;
	return bm_fail(fault, (struct bm_fault){.code = BM_FILE_CHANGED, .offset = lost - 1});
}
