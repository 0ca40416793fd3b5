// SPDX-License-Identifier: GPL-2.0-only
/*
 * The kernel's elevator: requests that the device has no room for yet. What mq-deadline does for
 * reads: neighbours become one request, requests go to the device in ascending order, and one that
 * has waited for too long goes first.
 *
 * All ios of a run are known from the start, so each has its rank by offset, and what waits is a
 * set of ranks: a bit for each, over it a bit for each word that is not 0, and so on.
 */
#include "device/device.h"

#include <stdlib.h>
#include <string.h>

static void set_add(struct elevator *elevator, size_t rank)
{
	for (int level = 0; level < elevator->levels; level++, rank /= 64)
		elevator->set[level][rank / 64] |= 1ull << rank % 64;
}

static void set_remove(struct elevator *elevator, size_t rank)
{
	for (int level = 0; level < elevator->levels; level++, rank /= 64) {
		uint64_t *word = &elevator->set[level][rank / 64];

		*word &= ~(1ull << rank % 64);
		if (*word)
			return;
	}
}

/* The first rank >= `rank` that waits (`up`), or the last <= `rank`. */
static size_t set_find(const struct elevator *elevator, size_t rank, bool up)
{
	uint64_t word = 0;
	int level;

	/* rise until a word has something on that side */
	for (level = 0; level < elevator->levels; level++) {
		word = elevator->set[level][rank / 64];
		word &= up ? ~0ull << rank % 64 : ~0ull >> (63 - rank % 64);
		if (word)
			break;
		if (!up && rank / 64 == 0)
			return NO_IO;
		rank = up ? rank / 64 + 1 : rank / 64 - 1;
	}
	if (!word)
		return NO_IO;
	rank /= 64;
	for (;;) {
		rank =
		    rank * 64 + (size_t)(up ? __builtin_ctzll(word) : 63 - __builtin_clzll(word));
		if (!level--)
			return rank;
		word = elevator->set[level][rank];
	}
}

struct ranked {
	uint64_t offset;
	size_t io;
};

static int compare_ranked(const void *left, const void *right)
{
	const struct ranked *a = left, *b = right;

	if (a->offset != b->offset)
		return a->offset < b->offset ? -1 : 1;
	return a->io < b->io ? -1 : 1;
}

static int rank_ios(struct elevator *elevator, size_t count)
{
	struct ranked *ranked = malloc((count + 1) * sizeof(*ranked));

	if (!ranked)
		return BM_NOMEM;
	for (size_t io = 0; io < count; io++)
		ranked[io] = (struct ranked){elevator->ios[io].offset, io};
	qsort(ranked, count, sizeof(*ranked), compare_ranked);
	for (size_t rank = 0; rank < count; rank++) {
		elevator->by_offset[rank] = ranked[rank].io;
		elevator->rank[ranked[rank].io] = rank;
	}
	free(ranked);
	return BM_OK;
}

int elevator_init(struct elevator *elevator, const struct bm_device *device,
		  const struct bm_io *ios, size_t count)
{
	size_t bits = count + 1;

	*elevator =
	    (struct elevator){.device = device, .ios = ios, .oldest = NO_IO, .newest = NO_IO};
	elevator->by_offset = malloc((count + 1) * sizeof(*elevator->by_offset));
	elevator->rank = malloc((count + 1) * sizeof(*elevator->rank));
	elevator->waiting = malloc((count + 1) * sizeof(*elevator->waiting));
	if (!elevator->by_offset || !elevator->rank || !elevator->waiting)
		return BM_NOMEM;
	do {
		/* one word more: set_find() looks behind the last */
		elevator->set[elevator->levels] = calloc(bits / 64 + 2, sizeof(uint64_t));
		if (!elevator->set[elevator->levels++])
			return BM_NOMEM;
		bits = bits / 64 + 1;
	} while (bits > 1);
	return rank_ios(elevator, count);
}

void elevator_deinit(struct elevator *elevator)
{
	free(elevator->by_offset);
	free(elevator->rank);
	free(elevator->waiting);
	for (int level = 0; level < elevator->levels; level++)
		free(elevator->set[level]);
}

static void fifo_add(struct elevator *elevator, size_t io)
{
	struct waiting *waiting = &elevator->waiting[io];

	waiting->older = elevator->newest;
	waiting->newer = NO_IO;
	if (elevator->newest == NO_IO)
		elevator->oldest = io;
	else
		elevator->waiting[elevator->newest].newer = io;
	elevator->newest = io;
}

/* Let what stands before and behind a place in the fifo know who is there: `io`, or each other. */
static void fifo_relink(struct elevator *elevator, const struct waiting *place, size_t before,
			size_t behind)
{
	if (place->older == NO_IO)
		elevator->oldest = before;
	else
		elevator->waiting[place->older].newer = before;
	if (place->newer == NO_IO)
		elevator->newest = behind;
	else
		elevator->waiting[place->newer].older = behind;
}

static void fifo_remove(struct elevator *elevator, size_t io)
{
	const struct waiting *place = &elevator->waiting[io];

	fifo_relink(elevator, place, place->newer, place->older);
}

static bool can_merge(const struct elevator *elevator, size_t first, size_t second)
{
	uint64_t start = elevator->ios[first].offset;

	return elevator->waiting[first].end == elevator->ios[second].offset &&
	       elevator->waiting[second].end - start <= elevator->device->max_request &&
	       elevator->ios[first].write == elevator->ios[second].write;
}

/* Make one request of two neighbours; it has the older one's place in the fifo. */
static void merge(struct elevator *elevator, size_t first, size_t second)
{
	struct waiting *into = &elevator->waiting[first], *from = &elevator->waiting[second];

	if (from->order < into->order) {
		fifo_remove(elevator, first);
		fifo_relink(elevator, from, first, first);
		into->older = from->older;
		into->newer = from->newer;
		into->since = from->since;
		into->order = from->order;
	} else {
		fifo_remove(elevator, second);
	}
	set_remove(elevator, elevator->rank[second]);
	into->end = from->end;
	elevator->waiting[into->last_io].next_io = second;
	into->last_io = from->last_io;
}

void elevator_add(struct elevator *elevator, size_t io, uint64_t now)
{
	size_t rank = elevator->rank[io], near;

	elevator->waiting[io] = (struct waiting){
	    .end = elevator->ios[io].offset + elevator->ios[io].length,
	    .since = now,
	    .order = elevator->added++,
	    .next_io = NO_IO,
	    .last_io = io,
	};
	fifo_add(elevator, io);
	set_add(elevator, rank);
	if (elevator->device->elevator == BM_ELEVATOR_none)
		return;
	near = set_find(elevator, rank + 1, true);
	if (near != NO_IO && can_merge(elevator, io, elevator->by_offset[near]))
		merge(elevator, io, elevator->by_offset[near]);
	near = rank ? set_find(elevator, rank - 1, false) : NO_IO;
	if (near != NO_IO && can_merge(elevator, elevator->by_offset[near], io))
		merge(elevator, elevator->by_offset[near], io);
}

/* dd_dispatch_request(): go on with the ascending sweep, or start one anew. */
static size_t next_in_sweep(struct elevator *elevator, uint64_t now)
{
	const struct bm_device *device = elevator->device;
	size_t rank = set_find(elevator, elevator->next_rank, true), io = elevator->oldest;

	if (rank != NO_IO && elevator->batch < device->fifo_batch)
		return elevator->by_offset[rank];
	elevator->batch = 0;
	if (rank == NO_IO || now - elevator->waiting[io].since >= device->read_expire)
		return io;
	return elevator->by_offset[rank];
}

size_t elevator_take(struct elevator *elevator, uint64_t now)
{
	size_t io = elevator->oldest;

	if (io == NO_IO)
		return NO_IO;
	if (elevator->device->elevator == BM_ELEVATOR_mq_deadline) {
		io = next_in_sweep(elevator, now);
		elevator->batch++;
		elevator->next_rank = elevator->rank[io] + 1;
	}
	fifo_remove(elevator, io);
	set_remove(elevator, elevator->rank[io]);
	return io;
}
