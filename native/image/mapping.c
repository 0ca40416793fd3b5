// SPDX-License-Identifier: GPL-2.0-only
/*
 * Files mapped into memory that somebody else may cut off, or devices that fail to read.
 *
 * The kernel answers an access to a page that is not there any more with SIGBUS. A handler puts
 * zeros in place of the rest of the file, notes where that happened, and the access goes on;
 * who holds the mapping asks afterwards whether what it read can be believed. SIGBUS at any other
 * address goes to whoever handled it before.
 */
#define _GNU_SOURCE /* MAP_ANONYMOUS, MAP_NORESERVE, mremap(), siginfo_t */
#include "image/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct part {
	int file;
	uint64_t start;
	uint64_t size;
	struct stat opened;
};

/* Never freed, as the handler may be looking at it: the next files take its place. */
struct bm_mapping {
	int taken;
	uintptr_t start; /* 0: no files */
	uint64_t size;
	struct part *parts; /* ascending */
	size_t count;
	uint64_t lost;	  /* first byte that could not be read, and 1; 0: none */
	uintptr_t copies; /* of as many bytes, and parts of the files among them; 0: none */
	int is_shown;	  /* parts of the files are, or the files are used as they are */
	struct bm_mapping *next;
};

static struct bm_mapping *mappings;
static struct sigaction before;

static int holds(const uintptr_t *start, uint64_t size, uintptr_t at)
{
	uintptr_t from = __atomic_load_n(start, __ATOMIC_ACQUIRE);

	return from && at >= from && at - from < size;
}

static uint64_t size_of(const struct bm_mapping *one)
{
	return __atomic_load_n(&one->size, __ATOMIC_ACQUIRE);
}

static struct bm_mapping *find(uintptr_t at)
{
	struct bm_mapping *one = __atomic_load_n(&mappings, __ATOMIC_ACQUIRE);

	while (one && !holds(&one->start, size_of(one), at) &&
	       !holds(&one->copies, size_of(one), at))
		one = one->next;
	return one;
}

/* The file at a byte, or the last one before it. */
static const struct part *part_at(const struct bm_mapping *mapping, uint64_t offset)
{
	size_t at = mapping->count;

	while (at > 1 && mapping->parts[at - 1].start > offset)
		at--;
	return &mapping->parts[at - 1];
}

static void note_lost(struct bm_mapping *mapping, uint64_t offset)
{
	uint64_t none = 0;

	__atomic_compare_exchange_n(&mapping->lost, &none, offset + 1, 0, __ATOMIC_ACQ_REL,
				    __ATOMIC_ACQUIRE);
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
	uint64_t offset, size;

	if (hit) {
		page = at & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1);
		if (holds(&hit->start, hit->size, at)) {
			/* whatever follows is most likely gone, too, and is not believed anyway */
			const struct part *part;

			offset = page - hit->start;
			part = part_at(hit, offset);
			size = part->start + part->size - offset;
		} else {
			/* what follows may be copies */
			offset = page - hit->copies;
			size = BM_WINDOW - offset % BM_WINDOW;
			size = size < hit->size - offset ? size : hit->size - offset;
		}
		note_lost(hit, offset);
		if (mmap((void *)page, size, PROT_READ,
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

static void close_parts(struct bm_mapping *one)
{
	for (size_t i = 0; i < one->count; i++)
		if (one->parts[i].file >= 0)
			close(one->parts[i].file);
	free(one->parts);
	one->parts = NULL;
	one->count = 0;
}

static int map_part(struct part *part, const struct bm_file *from, uint8_t *base)
{
	*part = (struct part){.file = fcntl(from->file, F_DUPFD_CLOEXEC, 0),
			      .start = from->start,
			      .size = from->size};
	if (part->file < 0 || mmap(base + part->start, part->size, PROT_READ,
				   MAP_SHARED | MAP_FIXED, part->file, 0) == MAP_FAILED)
		return -1;
	return fstat(part->file, &part->opened);
}

const uint8_t *bm_map_files(const struct bm_file *files, size_t count, uint64_t size,
			    struct bm_fault *fault)
{
	struct bm_mapping *one = take_place();
	void *base;

	if (one)
		one->parts = malloc((count ? count : 1) * sizeof(*one->parts));
	if (!one || !one->parts) {
		if (one)
			__atomic_store_n(&one->taken, 0, __ATOMIC_RELEASE);
		bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
		return NULL;
	}
	handle_sigbus();
	base = mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	for (size_t i = 0; i < count && base != MAP_FAILED; i++) {
		one->count = i + 1;
		if (map_part(&one->parts[i], &files[i], base)) {
			munmap(base, size);
			base = MAP_FAILED;
		}
	}
	if (base == MAP_FAILED) {
		bm_fail(fault, (struct bm_fault){.code = BM_ERRNO, .found = (uint64_t)errno});
		close_parts(one);
		__atomic_store_n(&one->taken, 0, __ATOMIC_RELEASE);
		return NULL;
	}
	__atomic_store_n(&one->lost, 0, __ATOMIC_RELEASE);
	one->is_shown = 0;
	__atomic_store_n(&one->size, size, __ATOMIC_RELEASE);
	__atomic_store_n(&one->start, (uintptr_t)base, __ATOMIC_RELEASE);
	return base;
}

void bm_unmap_files(const uint8_t *base)
{
	struct bm_mapping *one = find((uintptr_t)base);
	uintptr_t start;

	if (!one)
		return;
	start = one->start;
	__atomic_store_n(&one->copies, 0, __ATOMIC_RELEASE);
	__atomic_store_n(&one->start, 0, __ATOMIC_RELEASE);
	munmap((void *)start, one->size);
	close_parts(one);
	__atomic_store_n(&one->taken, 0, __ATOMIC_RELEASE);
}

int bm_make_private(uint8_t *base, uint64_t size, int file, struct bm_fault *fault)
{
	/* whatever can fail does so before the old mapping goes; then the new one takes its place */
	void *made = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file, 0);

	if (made == MAP_FAILED)
		return bm_fail(fault,
			       (struct bm_fault){.code = BM_ERRNO, .found = (uint64_t)errno});
	if (mremap(made, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, base) == MAP_FAILED) {
		bm_fail(fault, (struct bm_fault){.code = BM_ERRNO, .found = (uint64_t)errno});
		munmap(made, size);
		return BM_ERRNO;
	}
	return BM_OK;
}

static int differs(const uint8_t *one, const uint8_t *other, uint64_t size, uint64_t at)
{
	return memcmp(one + at, other + at, size - at < BM_PAGE ? size - at : BM_PAGE) != 0;
}

void bm_next_difference(const uint8_t *one, const uint8_t *other, uint64_t size, uint64_t at,
			uint64_t most, uint64_t *out)
{
	while (at < size && !differs(one, other, size, at))
		at += BM_PAGE;
	out[0] = at < size ? at : size;
	while (at < size && at - out[0] < most && differs(one, other, size, at))
		at += BM_PAGE;
	out[1] = at < size ? at : size;
}

struct bm_mapping *bm_mapping_of(const uint8_t *address)
{
	return find((uintptr_t)address);
}

void bm_mapping_read(struct bm_mapping *mapping, uint64_t offset, uint8_t *out, size_t size)
{
	const struct part *part = part_at(mapping, offset);
	off_t from = (off_t)(offset - part->start);
	size_t done = 0;
	ssize_t got = 1;

	while (done < size && got > 0) {
		got = pread(part->file, out + done, size - done, from + (off_t)done);
		if (got > 0)
			done += (size_t)got;
		else if (got < 0 && errno == EINTR)
			got = 1;
	}
	if (done < size) {
		memset(out + done, 0, size - done);
		note_lost(mapping, offset + done);
	}
}

void bm_mapping_set_copies(struct bm_mapping *mapping, const uint8_t *copies)
{
	__atomic_store_n(&mapping->copies, (uintptr_t)copies, __ATOMIC_RELEASE);
}

void bm_mapping_show_all(struct bm_mapping *mapping)
{
	mapping->is_shown = 1;
}

int bm_mapping_show(struct bm_mapping *mapping, uint64_t offset)
{
	const struct part *part = part_at(mapping, offset);
	uint64_t from = offset - part->start;
	uint64_t size = part->size - from < BM_WINDOW ? part->size - from : BM_WINDOW;

	mapping->is_shown = 1;
	return mmap((void *)(mapping->copies + offset), size, PROT_READ, MAP_SHARED | MAP_FIXED,
		    part->file, (off_t)from) == MAP_FAILED
		   ? BM_NOMEM
		   : BM_OK;
}

/* Whether somebody wrote to a file, as far as its times say. */
static int was_written(const struct bm_mapping *mapping)
{
	for (size_t i = 0; i < mapping->count; i++) {
		const struct stat *was = &mapping->parts[i].opened;
		struct stat now;

		if (fstat(mapping->parts[i].file, &now) < 0 || now.st_size != was->st_size ||
		    now.st_mtim.tv_sec != was->st_mtim.tv_sec ||
		    now.st_mtim.tv_nsec != was->st_mtim.tv_nsec)
			return 1;
	}
	return 0;
}

int bm_mapping_is_whole(struct bm_mapping *mapping, struct bm_fault *fault)
{
	uint64_t lost;

	if (!mapping)
		return BM_OK;
	/* where nothing is copied, nothing that was verified can be believed then */
	if (mapping->is_shown && was_written(mapping))
		note_lost(mapping, 0);
	lost = __atomic_load_n(&mapping->lost, __ATOMIC_ACQUIRE);
	if (!lost)
		return BM_OK;
	return bm_fail(fault, (struct bm_fault){.code = BM_FILE_CHANGED, .offset = lost - 1});
}
