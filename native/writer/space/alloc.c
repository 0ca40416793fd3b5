// SPDX-License-Identifier: GPL-2.0-only
/*
 * Where blocks and data go: block groups, their free ranges, and what is pinned until the commit.
 *
 * Tree blocks come from a cluster: all free ranges of a group from some address on, from which the
 * lowest is taken. What is freed goes back to the group and not to the cluster, so blocks ascend
 * in the order in which they are allocated until the cluster is used up. The trees of chunks and
 * groups that mix data and metadata have no cluster, and data has none either.
 *
 * Since Linux 6.3 a group of data is for extents of one size class, that of its first extent. It is
 * the caller who makes a chunk for another class before he takes what there is anyway.
 */
#include "writer/writer.h"

#include "writer/space/free_map.h"
#include "image/pool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	GROUP_DATA = 1,
	GROUP_SYSTEM = 2,
	GROUP_METADATA = 4,
};
#define CLUSTER_SSD (2u << 20)
#define CLUSTER_ROTATING (64u << 10)
/* The kernel keeps free space in windows of a page of bits: a search starts at one of these. */
#define WINDOW_SECTORS (8u * 4096u)

/* enum btrfs_block_group_size_class */
enum {
	CLASS_NONE,
	CLASS_SMALL,
	CLASS_MEDIUM,
	CLASS_LARGE,
};
#define CLASS_SMALL_MAX (128u << 10)
#define CLASS_MEDIUM_MAX (8u << 20)

struct group {
	uint64_t start;
	uint64_t length;
	uint64_t flags;
	uint64_t used;
	uint64_t commit_used;
	uint64_t reserved; /* of data: taken, and not used yet */
	uint64_t pinned;
	uint32_t size_class;
	int read_only; /* nothing is allocated in it */
	size_t order;  /* in which it was added: the order in which groups are tried */
	struct free_map free;
};

/* struct btrfs_free_cluster */
struct cluster {
	struct group *group; /* NULL: there is none */
	uint64_t window_start;
	struct free_map free;
};

struct bm_space {
	struct group **by_start;
	struct group **by_order;
	size_t count;
	size_t capacity;
	size_t last; /* where the last look-up ended */
	struct cluster cluster;
	int from_first; /* the cluster was in a group that is read-only now: no hint counts */
	struct free_range *pinned;
	size_t pinned_count;
	size_t pinned_capacity;
};

static int fail_nomem(struct bm_fault *fault)
{
	return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
}

static int fail_range(int code, uint64_t start, uint64_t size, struct bm_fault *fault)
{
	return bm_fail(fault, (struct bm_fault){.code = code, .found = start, .wanted = size});
}

int bm_space_create(struct bm_writer *writer, struct bm_fault *fault)
{
	writer->space = calloc(1, sizeof(*writer->space));
	return writer->space ? BM_OK : fail_nomem(fault);
}

void bm_space_destroy(struct bm_writer *writer)
{
	struct bm_space *space = writer->space;

	if (!space)
		return;
	for (size_t i = 0; i < space->count; i++) {
		free_map_clear(&space->by_start[i]->free);
		free(space->by_start[i]);
	}
	free_map_clear(&space->cluster.free);
	free(space->by_start);
	free(space->by_order);
	free(space->pinned);
	free(space);
	writer->space = NULL;
}

/* ------------------------------------------------------------------------------ block groups -- */

/* Place of the first group that starts above an address. */
static size_t place_above(const struct bm_space *space, uint64_t bytenr)
{
	size_t low = 0, high = space->count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (space->by_start[mid]->start <= bytenr)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static int holds(const struct group *group, uint64_t bytenr)
{
	return bytenr >= group->start && bytenr - group->start < group->length;
}

/* NULL: no group holds the address. */
static struct group *group_of(struct bm_space *space, uint64_t bytenr)
{
	if (space->last < space->count && holds(space->by_start[space->last], bytenr))
		return space->by_start[space->last];
	space->last = place_above(space, bytenr) - 1;
	if (space->last < space->count && holds(space->by_start[space->last], bytenr))
		return space->by_start[space->last];
	return NULL;
}

/* The group that holds a whole range; NULL and a fault when there is none. */
static struct group *group_of_range(const struct bm_writer *writer, uint64_t start, uint64_t size,
				    struct bm_fault *fault)
{
	struct group *group = group_of(writer->space, start);

	if (!group) {
		fail_range(BM_UNMAPPED, start, size, fault);
		return NULL;
	}
	if (!size || size > group->length - (start - group->start) ||
	    (start | size) % writer->sectorsize) {
		fail_range(BM_BAD_VALUE, start, size, fault);
		return NULL;
	}
	return group;
}

static int reserve_place(struct bm_space *space)
{
	size_t capacity = space->capacity ? space->capacity * 2 : 16;
	struct group **by_start, **by_order;

	if (space->count < space->capacity)
		return BM_OK;
	by_start = realloc(space->by_start, capacity * sizeof(*by_start));
	if (!by_start)
		return BM_NOMEM;
	space->by_start = by_start;
	by_order = realloc(space->by_order, capacity * sizeof(*by_order));
	if (!by_order)
		return BM_NOMEM;
	space->by_order = by_order;
	space->capacity = capacity;
	return BM_OK;
}

/* The chunk is there with all its copies, and no other group overlaps. */
static int check_group(const struct bm_writer *writer, uint64_t start, uint64_t length,
		       struct bm_fault *fault)
{
	const struct bm_space *space = writer->space;
	size_t place = place_above(space, start);
	uint64_t physical, contiguous;

	if (!length || start > UINT64_MAX - length || (start | length) % writer->sectorsize ||
	    (place && holds(space->by_start[place - 1], start)) ||
	    (place < space->count && space->by_start[place]->start < start + length))
		return fail_range(BM_BAD_VALUE, start, length, fault);
	if (bm_image_map(writer->image, start, 0, &physical, &contiguous, fault) < 0)
		return fault->code;
	for (int copy = 0; copy < 2; copy++) {
		if (bm_image_map(writer->image, start, copy, &physical, &contiguous, NULL) == 0 &&
		    contiguous < length)
			return fail_range(BM_PAST_END, start, length, fault);
	}
	return BM_OK;
}

int bm_writer_add_group(struct bm_writer *writer, uint64_t start, uint64_t length, uint64_t flags,
			struct bm_fault *fault)
{
	struct bm_space *space = writer->space;
	struct group *group;
	size_t place;

	if (check_group(writer, start, length, fault) < 0)
		return fault->code;
	group = calloc(1, sizeof(*group));
	if (!group || reserve_place(space) < 0 || free_map_add(&group->free, start, length) < 0) {
		free(group);
		return fail_nomem(fault);
	}
	group->start = start;
	group->length = length;
	group->flags = flags;
	group->order = space->count;
	place = place_above(space, start);
	memmove(space->by_start + place + 1, space->by_start + place,
		(space->count - place) * sizeof(*space->by_start));
	space->by_start[place] = group;
	space->by_order[space->count++] = group;
	BM_ASSERT(space->count <= space->capacity &&
		  (!place || space->by_start[place - 1]->start < start));
	return BM_OK;
}

static void describe_group(const struct bm_space *space, const struct group *group,
			   struct bm_writer_group *out)
{
	*out = (struct bm_writer_group){.start = group->start,
					.length = group->length,
					.flags = group->flags,
					.used = group->used,
					.free = group->read_only ? 0 : group->free.total,
					.pinned = group->pinned,
					.commit_used = group->commit_used};
	if (space->cluster.group == group)
		out->free += space->cluster.free.total;
}

int64_t bm_writer_groups(const struct bm_writer *writer, struct bm_writer_group *groups,
			 size_t capacity)
{
	const struct bm_space *space = writer->space;

	for (size_t i = 0; i < space->count && i < capacity; i++)
		describe_group(space, space->by_start[i], &groups[i]);
	return (int64_t)space->count;
}

int bm_writer_set_commit_used(struct bm_writer *writer, uint64_t start, uint64_t used,
			      struct bm_fault *fault)
{
	struct group *group = group_of(writer->space, start);

	if (!group)
		return fail_range(BM_UNMAPPED, start, 0, fault);
	group->commit_used = used;
	return BM_OK;
}

int bm_writer_space_info(const struct bm_writer *writer, uint64_t kind, struct bm_space_info *info)
{
	const struct bm_space *space = writer->space;
	const struct bm_space_info before = *info;

	*info = (struct bm_space_info){0};
	for (size_t i = 0; i < space->count; i++) {
		const struct group *group = space->by_start[i];

		info->stale_groups += group->used != group->commit_used;
		if (!(group->flags & kind))
			continue;
		info->flags = group->flags;
		info->total += group->length;
		info->pinned += group->pinned;
		if (group->read_only)
			continue;
		info->free += group->free.total;
		if (space->cluster.group == group)
			info->free += space->cluster.free.total;
	}
	bm_refs_info(writer, info);
	bm_writer_tree_info(writer, info);
	return memcmp(&before, info, sizeof(before)) != 0;
}

int bm_space_group_of(const struct bm_writer *writer, uint64_t bytenr,
		      struct bm_writer_group *group, struct bm_fault *fault)
{
	const struct group *found = group_of(writer->space, bytenr);

	if (!found)
		return fail_range(BM_UNMAPPED, bytenr, 0, fault);
	describe_group(writer->space, found, group);
	return BM_OK;
}

int bm_space_used(struct bm_writer *writer, uint64_t bytenr, int64_t change, struct bm_fault *fault)
{
	struct group *group = group_of(writer->space, bytenr);

	if (!group)
		return fail_range(BM_UNMAPPED, bytenr, 0, fault);
	if (change < 0 ? group->used < (uint64_t)-change
		       : group->length - group->used < (uint64_t)change)
		return fail_range(BM_BAD_VALUE, bytenr, group->used, fault);
	group->used += (uint64_t)change;
	BM_ASSERT(group->used <= group->length);
	if (change > 0)
		group->reserved -=
		    group->reserved < (uint64_t)change ? group->reserved : (uint64_t)change;
	else if (!group->used && !group->reserved)
		group->size_class = CLASS_NONE; /* btrfs_maybe_reset_size_class() */
	return BM_OK;
}

/* ---------------------------------------------------------------------------------- clusters -- */

/* btrfs_return_cluster_to_free_space() */
static int release_cluster(struct bm_space *space)
{
	struct cluster *cluster = &space->cluster;
	struct free_range range;

	if (!cluster->group)
		return BM_OK;
	while (free_map_find(&cluster->free, 0, 1, &range)) {
		if (free_map_add(&cluster->group->free, range.start, range.size) < 0 ||
		    free_map_take(&cluster->free, range.start, range.size) < 0)
			return BM_NOMEM;
	}
	cluster->group = NULL;
	return BM_OK;
}

/*
 * btrfs_find_space_cluster(): all free ranges of the group from `from` on become the cluster, if
 * they are `wanted` bytes together and one has `size`. 1: they are not.
 */
static int setup_cluster(struct bm_writer *writer, struct group *group, uint64_t from,
			 uint64_t size, uint64_t wanted)
{
	struct cluster *cluster = &writer->space->cluster;
	struct free_range range;
	uint64_t at = from, total = 0;

	if (group->free.total < wanted || !free_map_find(&group->free, from, size, &range))
		return 1;
	while (total < wanted && free_map_find(&group->free, at, writer->sectorsize, &range)) {
		total += range.size;
		at = range.start + range.size;
	}
	if (total < wanted)
		return 1;
	cluster->group = group;
	free_map_find(&group->free, from, writer->sectorsize, &range);
	cluster->window_start = range.start;
	while (free_map_find(&group->free, from, writer->sectorsize, &range)) {
		if (free_map_add(&cluster->free, range.start, range.size) < 0 ||
		    free_map_take(&group->free, range.start, range.size) < 0)
			return BM_NOMEM;
	}
	return BM_OK;
}

/* btrfs_alloc_from_cluster(): 1: nothing in it is large enough. */
static int take_from_cluster(struct cluster *cluster, uint64_t size, uint64_t *bytenr)
{
	struct free_range range;

	if (!cluster->group || !free_map_find(&cluster->free, 0, size, &range))
		return 1;
	*bytenr = range.start;
	return free_map_take(&cluster->free, range.start, size);
}

/* find_free_extent_clustered(): 1: not here. */
static int take_clustered(struct bm_writer *writer, struct group *group, uint64_t from,
			  uint64_t size, uint64_t empty, uint64_t *bytenr)
{
	struct bm_space *space = writer->space;
	int ret = take_from_cluster(&space->cluster, size, bytenr);

	if (ret <= 0)
		return ret;
	if (release_cluster(space) < 0)
		return BM_NOMEM;
	ret = setup_cluster(writer, group, from, size, size + empty);
	return ret ? ret : take_from_cluster(&space->cluster, size, bytenr);
}

/* ---------------------------------------------------------------------------- find_free_extent -- */

/* What is looked for. */
struct wanted {
	uint64_t kind; /* GROUP_* */
	uint64_t size;
	uint64_t hint;
	uint64_t empty;	  /* that must be free beside it; 0: no cluster is used */
	uint32_t classes; /* bits of the size classes of groups; 0: all */
	int in_use;	  /* only groups in which something is */
};

/* btrfs_block_group_should_use_size_class() */
static int has_size_class(const struct group *group)
{
	return group->flags & GROUP_DATA && !(group->flags & GROUP_METADATA);
}

/* btrfs_calc_block_group_size_class() */
static uint32_t class_of(uint64_t size)
{
	if (size <= CLASS_SMALL_MAX)
		return CLASS_SMALL;
	return size <= CLASS_MEDIUM_MAX ? CLASS_MEDIUM : CLASS_LARGE;
}

/*
 * btrfs_find_space_for_alloc(): without a hint the largest range, otherwise the first that is large
 * enough from the hint's window on. 1: not here.
 */
static int take_unclustered(struct bm_writer *writer, struct group *group, uint64_t from,
			    const struct wanted *wanted, uint64_t *bytenr)
{
	uint64_t window = (uint64_t)WINDOW_SECTORS * writer->sectorsize;
	struct free_range range;

	if (group->free.total < wanted->size + wanted->empty)
		return 1;
	if (from == group->start) {
		if (!free_map_largest(&group->free, &range) || range.size < wanted->size)
			return 1;
	} else {
		from = group->start + (from - group->start) / window * window;
		if (!free_map_find(&group->free, from, wanted->size, &range))
			return 1;
	}
	*bytenr = range.start;
	return free_map_take(&group->free, range.start, wanted->size);
}

static int take_from_group(struct bm_writer *writer, struct group *group, uint64_t from,
			   const struct wanted *wanted, uint64_t *bytenr)
{
	if (!(group->flags & wanted->kind) || group->read_only ||
	    (wanted->in_use && group->free.total == group->length))
		return 1;
	if (wanted->classes && has_size_class(group) && !(wanted->classes >> group->size_class & 1))
		return 1;
	if (wanted->kind == GROUP_METADATA && !(group->flags & GROUP_DATA)) {
		int ret = take_clustered(writer, group, from, wanted->size, wanted->empty, bytenr);

		if (ret <= 0)
			return ret;
	}
	return take_unclustered(writer, group, from, wanted, bytenr);
}

/* The group of the hint and those after it, then all from the first on. 1: nowhere. */
static int search_groups(struct bm_writer *writer, const struct wanted *wanted, uint64_t *bytenr)
{
	struct bm_space *space = writer->space;
	struct group *hinted = group_of(space, wanted->hint);
	int ret;

	if (hinted && hinted->flags & wanted->kind && !hinted->read_only) {
		for (size_t i = hinted->order; i < space->count; i++) {
			struct group *group = space->by_order[i];

			ret = take_from_group(writer, group,
					      group == hinted ? wanted->hint : group->start, wanted,
					      bytenr);
			if (ret <= 0)
				return ret;
		}
	}
	for (size_t i = 0; i < space->count; i++) {
		struct group *group = space->by_order[i];

		ret = take_from_group(writer, group, group->start, wanted, bytenr);
		if (ret <= 0)
			return ret;
	}
	return 1;
}

/* find_free_extent() for tree blocks; ENOSPC where no group has room. */
static int find_block_space(struct bm_writer *writer, uint64_t kind, uint64_t hint,
			    uint64_t *bytenr, struct bm_fault *fault)
{
	struct wanted wanted = {.kind = kind, .size = writer->nodesize, .hint = hint};
	int ret;

	if (kind == GROUP_METADATA) {
		wanted.empty = writer->ssd ? CLUSTER_SSD : CLUSTER_ROTATING;
		if (writer->space->from_first)
			wanted.hint = 0;
		writer->space->from_first = 0;
		if (writer->space->cluster.group)
			wanted.hint = writer->space->cluster.window_start;
		/*
		 * A caller adds a group before there is need of it; the kernel does when nothing
		 * is left elsewhere (LOOP_ALLOC_CHUNK).
		 */
		wanted.in_use = 1;
		ret = search_groups(writer, &wanted, bytenr);
		wanted.in_use = 0;
		if (ret > 0)
			ret = search_groups(writer, &wanted, bytenr);
		if (ret < 0)
			return fail_nomem(fault);
		if (!ret)
			return BM_OK;
		/* LOOP_NO_EMPTY_SIZE: any room will do */
		wanted.empty = 0;
	}
	ret = search_groups(writer, &wanted, bytenr);
	if (ret < 0)
		return fail_nomem(fault);
	return ret ? bm_writer_errno(fault, NULL, ENOSPC) : BM_OK;
}

uint64_t bm_writer_largest_data(const struct bm_writer *writer, uint64_t size)
{
	const struct bm_space *space = writer->space;
	uint64_t largest = 0, total = 0;

	for (size_t i = 0; i < space->count; i++) {
		const struct group *group = space->by_start[i];
		struct free_range range;

		if (!(group->flags & GROUP_DATA) || group->read_only)
			continue;
		/* nobody looks for a range in a group that has less than is wanted */
		if (group->free.total < size)
			total = total < group->free.total ? group->free.total : total;
		else if (free_map_largest(&group->free, &range) && range.size > largest)
			largest = range.size;
	}
	return largest ? largest : total;
}

/* btrfs_add_reserved_bytes() */
static void note_reserved(struct bm_writer *writer, uint64_t bytenr, uint64_t size)
{
	struct group *group = group_of(writer->space, bytenr);

	bm_writer_forget_range(writer, bytenr, size);
	group->reserved += size;
	if (group->size_class == CLASS_NONE && has_size_class(group))
		group->size_class = class_of(size);
}

int bm_writer_reserve_in_class(struct bm_writer *writer, uint64_t size, uint64_t hint,
			       uint64_t *bytenr, struct bm_fault *fault)
{
	struct wanted ask = {.kind = GROUP_DATA, .size = size, .hint = hint};
	int ret;

	if (!size || size % writer->sectorsize)
		return bm_writer_errno(fault, NULL, EINVAL);
	/* LOOP_CACHING_WAIT, LOOP_UNSET_SIZE_CLASS */
	ask.classes = 1u << class_of(size);
	ret = search_groups(writer, &ask, bytenr);
	if (ret == 1) {
		ask.classes |= 1u << CLASS_NONE;
		ret = search_groups(writer, &ask, bytenr);
	}
	if (ret < 0)
		return fail_nomem(fault);
	if (!ret)
		note_reserved(writer, *bytenr, size);
	return ret;
}

int bm_writer_set_size_class(struct bm_writer *writer, uint64_t start, uint64_t extent,
			     struct bm_fault *fault)
{
	struct group *group = group_of(writer->space, start);

	if (!group)
		return fail_range(BM_UNMAPPED, start, 0, fault);
	if (has_size_class(group))
		group->size_class = class_of(extent);
	return BM_OK;
}

int bm_writer_reserve_data(struct bm_writer *writer, uint64_t wanted, uint64_t least, uint64_t hint,
			   uint64_t *bytenr, uint64_t *size, struct bm_fault *fault)
{
	struct wanted ask = {.kind = GROUP_DATA, .size = wanted, .hint = hint};

	if (!wanted || !least || least > wanted || (wanted | least) % writer->sectorsize)
		return bm_writer_errno(fault, NULL, EINVAL);
	for (;;) {
		int ret = search_groups(writer, &ask, bytenr);
		uint64_t largest;

		if (ret < 0)
			return fail_nomem(fault);
		if (!ret) {
			note_reserved(writer, *bytenr, ask.size);
			*size = ask.size;
			return BM_OK;
		}
		largest = bm_writer_largest_data(writer, ask.size);
		if (ask.size == least || !largest)
			return bm_writer_errno(fault, NULL, ENOSPC);
		/* btrfs_reserve_extent(): half of it, or as much as there is in one piece */
		ask.size = ask.size / 2 < largest ? ask.size / 2 : largest;
		ask.size -= ask.size % writer->sectorsize;
		if (ask.size < least)
			ask.size = least;
	}
}

/* ------------------------------------------------------------------------ taken, given, pinned -- */

static int give_back(const struct bm_writer *writer, uint64_t start, uint64_t size,
		     struct bm_fault *fault)
{
	struct group *group = group_of_range(writer, start, size, fault);
	int ret;

	if (!group)
		return fault->code;
	ret = free_map_add(&group->free, start, size);
	return ret < 0 ? fail_range(ret, start, size, fault) : BM_OK;
}

int bm_writer_release_data(struct bm_writer *writer, uint64_t bytenr, uint64_t size,
			   struct bm_fault *fault)
{
	struct group *group = group_of(writer->space, bytenr);

	if (group)
		group->reserved -= group->reserved < size ? group->reserved : size;
	return give_back(writer, bytenr, size, fault);
}

int bm_writer_occupy(struct bm_writer *writer, const uint64_t *start, const uint64_t *length,
		     size_t count, int counts_as_used, struct bm_fault *fault)
{
	for (size_t i = 0; i < count; i++) {
		struct group *group = group_of_range(writer, start[i], length[i], fault);
		int ret;

		if (!group)
			return fault->code;
		/* a new chunk leaves the cluster, in another group, alone */
		if (group == writer->space->cluster.group && release_cluster(writer->space) < 0)
			return fail_nomem(fault);
		ret = free_map_take(&group->free, start[i], length[i]);
		if (ret < 0)
			return fail_range(ret, start[i], length[i], fault);
		if (counts_as_used)
			group->used += length[i];
	}
	return BM_OK;
}

int bm_space_pin(struct bm_writer *writer, uint64_t bytenr, uint64_t size, int at_once,
		 struct bm_fault *fault)
{
	struct bm_space *space = writer->space;
	struct free_range *pinned;
	struct group *group;

	if (at_once)
		return give_back(writer, bytenr, size, fault);
	group = group_of_range(writer, bytenr, size, fault);
	if (!group)
		return fault->code;
	pinned = grown(space->pinned, space->pinned_count, &space->pinned_capacity, 256,
		       sizeof(*space->pinned));
	if (!pinned)
		return fail_nomem(fault);
	space->pinned = pinned;
	space->pinned[space->pinned_count++] = (struct free_range){bytenr, size};
	group->pinned += size;
	BM_ASSERT(space->pinned_count <= space->pinned_capacity);
	return BM_OK;
}

int bm_writer_unpin(struct bm_writer *writer, struct bm_fault *fault)
{
	struct bm_space *space = writer->space;

	while (space->pinned_count) {
		const struct free_range *range = &space->pinned[space->pinned_count - 1];

		if (give_back(writer, range->start, range->size, fault) < 0)
			return fault->code;
		space->pinned_count--;
	}
	for (size_t i = 0; i < space->count; i++)
		space->by_start[i]->pinned = 0;
	return BM_OK;
}

int bm_writer_set_read_only(struct bm_writer *writer, uint64_t start, int read_only,
			    struct bm_fault *fault)
{
	struct bm_space *space = writer->space;
	struct group *group = group_of(space, start);

	if (!group)
		return fail_range(BM_UNMAPPED, start, 0, fault);
	if (read_only && space->cluster.group == group) {
		space->from_first = 1;
		if (release_cluster(space) < 0)
			return fail_nomem(fault);
	}
	group->read_only = read_only;
	return BM_OK;
}

int bm_writer_remove_group(struct bm_writer *writer, uint64_t start, struct bm_fault *fault)
{
	struct bm_space *space = writer->space;
	struct group *group = group_of(space, start);
	size_t place, kept = 0;

	if (!group || group->start != start)
		return fail_range(BM_UNMAPPED, start, 0, fault);
	if (group->used || space->cluster.group == group)
		return fail_range(BM_BAD_VALUE, start, group->used, fault);
	/* what is pinned in it is nobody's any more */
	for (size_t i = 0; i < space->pinned_count; i++)
		if (!holds(group, space->pinned[i].start))
			space->pinned[kept++] = space->pinned[i];
	space->pinned_count = kept;
	place = place_above(space, start) - 1;
	memmove(space->by_start + place, space->by_start + place + 1,
		(space->count - place - 1) * sizeof(*space->by_start));
	memmove(space->by_order + group->order, space->by_order + group->order + 1,
		(space->count - group->order - 1) * sizeof(*space->by_order));
	space->count--;
	space->last = 0;
	for (size_t i = group->order; i < space->count; i++)
		space->by_order[i]->order = i;
	free_map_clear(&group->free);
	free(group);
	return BM_OK;
}

/* ------------------------------------------------------------------------------- tree blocks -- */

static void init_header(const struct bm_writer *writer, const struct bm_writer_tree *tree,
			uint8_t *block, uint64_t bytenr, int level)
{
	struct btrfs_header *header = header_of(block);

	BM_ASSERT(level >= 0 && level < BTRFS_MAX_LEVEL);
	memset(header, 0, sizeof(*header));
	memcpy(header->fsid, writer->fsid, sizeof(header->fsid));
	memcpy(header->chunk_tree_uuid, writer->chunk_tree_uuid, sizeof(header->chunk_tree_uuid));
	header->bytenr = bytenr;
	header->flags = BM_HEADER_BACKREF_REV;
	header->generation = writer->transid;
	header->owner = tree->owner;
	header->level = (uint8_t)level;
}

static uint8_t *alloc_block(struct bm_writer *writer, struct bm_writer_tree *tree, int level,
			    const struct bm_key *first, uint64_t hint, uint64_t parent,
			    struct bm_fault *fault)
{
	int is_system = tree->owner == BTRFS_CHUNK_TREE_OBJECTID;
	uint64_t bytenr, physical, contiguous;
	uint8_t *block;

	if (find_block_space(writer, is_system ? GROUP_SYSTEM : GROUP_METADATA, hint, &bytenr,
			     fault) < 0) {
		fault->tree = tree->id;
		return NULL;
	}
	if (bm_image_map(writer->image, bytenr, 0, &physical, &contiguous, fault) < 0)
		return NULL;
	bm_writer_forget_range(writer, bytenr, writer->nodesize);
	block = writer->base + physical;
	init_header(writer, tree, block, bytenr, level);
	if (bm_writer_mark_dirty(writer, bytenr, fault) < 0)
		return NULL;
	if (bm_writer_is_reloc(tree) && !parent)
		parent = bytenr;
	if (tree->owner != TREE_LOG_OBJECTID &&
	    bm_refs_tree(writer, BM_REF_ALLOC, bytenr, parent, tree->owner, tree->owner, level,
			 first, fault) < 0)
		return NULL;
	/* reloc trees always use full backref */
	if (parent &&
	    bm_refs_set_flags(writer, bytenr, BTRFS_BLOCK_FLAG_FULL_BACKREF, level, fault) < 0)
		return NULL;
	tree->bytes_used += writer->nodesize;
	BM_ASSERT(bm_writer_is_new(writer, block) && !block_header(block)->nritems);
	return block;
}

uint8_t *bm_writer_alloc_block(struct bm_writer *writer, struct bm_writer_tree *tree, int level,
			       const struct bm_key *first, uint64_t hint, struct bm_fault *fault)
{
	return alloc_block(writer, tree, level, first, hint, 0, fault);
}

uint8_t *bm_writer_alloc_reloc(struct bm_writer *writer, struct bm_writer_tree *tree, int level,
			       const struct bm_key *first, uint64_t hint, uint64_t parent,
			       struct bm_fault *fault)
{
	BM_ASSERT(bm_writer_is_reloc(tree));
	return alloc_block(writer, tree, level, first, hint, parent, fault);
}

int bm_writer_free_block(struct bm_writer *writer, struct bm_writer_tree *tree,
			 const uint8_t *block, uint64_t parent, int last_ref,
			 struct bm_fault *fault)
{
	const struct btrfs_header *header = block_header(block);
	uint64_t bytenr = header->bytenr;
	int is_log = tree->owner == TREE_LOG_OBJECTID, is_new, is_unwritten;

	tree->bytes_used -= writer->nodesize;
	if (!is_log && bm_refs_tree(writer, BM_REF_DROP, bytenr, parent, tree->owner, header->owner,
				    header->level, NULL, fault) < 0)
		return fault->code;
	if (!last_ref)
		return BM_OK;
	bm_writer_forget_block(writer, bytenr);
	BM_ASSERT(!bm_writer_is_new(writer, block));
	is_new = header->generation == writer->transid;
	is_unwritten = is_new && !(header->flags & BM_HEADER_WRITTEN);
	/* a device never sees it, and the next who gets the place may write to it at once */
	if (is_unwritten)
		memset(bm_writer_writable(writer, block), 0, writer->nodesize);
	/* the reference that waits will pin it when it is run */
	if (!is_log && !(is_new && bm_refs_forget(writer, bytenr)))
		return BM_OK;
	return bm_space_pin(writer, bytenr, writer->nodesize, is_unwritten, fault);
}
