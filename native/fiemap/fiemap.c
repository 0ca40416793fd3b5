// SPDX-License-Identifier: GPL-2.0-only
/*
 * FIEMAP: where the extents of a file lie and which of them are shared. The calls one after the
 * other, and the walk over file extent items that kernels have since 6.1 (fiemap.c of 6.12);
 * fiemap/maps.c has the one before.
 *
 *   item 1 | item 2 | item 3 ...    each checked for sharing (share.c)
 *      \      /
 *       cache                       what continues the extent before is merged into it
 *         |
 *      entries                      since 6.9: up to 128 are gathered, then the search starts anew
 *         |
 *       result
 */
#include "fiemap/fiemap.h"
#include "image/pool.h"

#include <limits.h>
#include <stdlib.h>

enum {
	FLUSH_CACHE = 2, /* BTRFS_FIEMAP_FLUSH_CACHE: the entries are full */
};

/* --------------------------------------------------------------------------------- shared -- */

int fiemap_item(struct fiemap_call *call, const struct bm_path *path,
		const struct btrfs_file_extent_item **fi)
{
	const uint8_t *leaf = path->node[0];
	const struct btrfs_item *item = leaf_item(leaf, path->slot[0]);
	uint32_t wanted = BTRFS_FILE_EXTENT_INLINE_DATA_START;

	*fi = NULL;
	if (item->key.objectid != call->args->ino || item->key.type != BTRFS_EXTENT_DATA_KEY)
		return BM_OK;
	*fi = (const void *)item_data(leaf, path->slot[0]);
	if (item->size >= wanted && (*fi)->type != BTRFS_FILE_EXTENT_INLINE)
		wanted = sizeof(**fi);
	if (item->size >= wanted)
		return BM_OK;
	return bm_fail(call->fault, (struct bm_fault){.code = BM_BAD_ITEM_SIZE,
						      .tree = call->root->objectid,
						      .block = block_header(leaf)->bytenr,
						      .slot = path->slot[0],
						      .found = item->size,
						      .wanted = wanted});
}

uint64_t fiemap_file_extent_end(const struct fiemap_call *call, const struct bm_path *path,
				const struct btrfs_file_extent_item *fi)
{
	uint64_t start = leaf_item(path->node[0], path->slot[0])->key.offset;

	if (fi->type == BTRFS_FILE_EXTENT_INLINE)
		return round_to_sector(call->image, start + fi->ram_bytes);
	return start + fi->num_bytes;
}

int fiemap_fill_next_extent(struct fiemap_call *call, const struct bm_fiemap_extent *extent)
{
	struct bm_fiemap_result *result = call->result;
	struct bm_fiemap_extent *rows;

	COUNT(call->image, fiemap_fill_next_extent);
	if (call->mapped >= call->args->extents_per_call)
		return 1;
	rows = grown(result->rows, result->count, &result->capacity, 64, sizeof(*rows));
	if (!rows)
		return bm_fail(call->fault, (struct bm_fault){.code = BM_NOMEM});
	result->rows = rows;
	result->rows[result->count] = *extent;
	result->rows[result->count++].call = call->number;
	call->mapped++;
	return call->mapped == call->args->extents_per_call ||
	       (extent->flags & FIEMAP_EXTENT_LAST) != 0;
}

int emit_last_fiemap_cache(struct fiemap_call *call)
{
	int ret = call->cached ? fiemap_fill_next_extent(call, &call->cache) : 0;

	call->cached = 0;
	return ret < 0 ? ret : BM_OK;
}

int fiemap_continues(const struct fiemap_call *call, const struct bm_fiemap_extent *extent)
{
	return call->cache.logical + call->cache.length == extent->logical &&
	       call->cache.physical + call->cache.length == extent->physical;
}

/* ----------------------------------------------------------------------- entries gathered -- */

/* Entries of one round, between a search and the next. */
struct gathered {
	struct bm_fiemap_extent *entries;
	size_t capacity;
	uint32_t count;
	uint32_t mapped; /* of this call, gathered or given out */
	uint64_t next_search_offset;
};

/* That the last one is full was seen when it was gathered. */
static int flush_fiemap_cache(struct fiemap_call *call, struct gathered *gathered)
{
	uint32_t i;

	for (i = 0; i < gathered->count; i++) {
		int ret = fiemap_fill_next_extent(call, &gathered->entries[i]);

		if (ret < 0)
			return ret;
	}
	gathered->count = 0;
	return BM_OK;
}

/* The extent in the cache is complete: 1 when no more are wanted, FLUSH_CACHE: search again. */
static int emit_cached(struct fiemap_call *call, struct gathered *gathered)
{
	const struct bm_fiemap_extent *last;
	struct bm_fiemap_extent *rows;
	int ret;

	if (!fiemap_has(call, BM_TOGGLE_FIEMAP_NO_DEADLOCK)) {
		ret = fiemap_fill_next_extent(call, &call->cache);
		call->cached = 0;
		return ret;
	}
	if (gathered->count == call->args->entries) {
		last = &gathered->entries[gathered->count - 1];
		gathered->next_search_offset = last->logical + last->length;
		call->cached = 0;
		return FLUSH_CACHE;
	}
	rows = grown(gathered->entries, gathered->count, &gathered->capacity, 128, sizeof(*rows));
	if (!rows)
		return bm_fail(call->fault, (struct bm_fault){.code = BM_NOMEM});
	gathered->entries = rows;
	gathered->entries[gathered->count++] = call->cache;
	if (++gathered->mapped == call->args->extents_per_call) {
		call->cached = 0;
		return 1;
	}
	return BM_OK;
}

/*
 * Items of a committed tree do not overlap unless the tree is broken; then
 * they are cut as the kernel cuts those that changed under it.
 */
static int emit_fiemap_extent(struct fiemap_call *call, struct gathered *gathered,
			      struct bm_fiemap_extent extent)
{
	struct bm_fiemap_extent *cache = &call->cache;
	uint64_t cache_end = cache->logical + cache->length;
	int ret;

	COUNT(call->image, emit_fiemap_extent);
	if (!call->cached || (cache_end > extent.logical && extent.logical == cache->logical)) {
		*cache = extent;
		call->cached = 1;
		return BM_OK;
	}
	if (cache_end > extent.logical && extent.logical > cache->logical) {
		cache->length = extent.logical - cache->logical;
	} else if (cache_end > extent.logical) {
		if (extent.logical + extent.length <= cache_end)
			return BM_OK;
		if (!(extent.flags & (FIEMAP_EXTENT_ENCODED | FIEMAP_EXTENT_DELALLOC)))
			extent.physical += cache_end - extent.logical;
		extent.length = extent.logical + extent.length - cache_end;
		extent.logical = cache_end;
	} else if (fiemap_continues(call, &extent) && cache->flags == extent.flags) {
		cache->length += extent.length;
		return BM_OK;
	}
	ret = emit_cached(call, gathered);
	if (ret)
		return ret;
	*cache = extent;
	call->cached = 1;
	return BM_OK;
}

/* --------------------------------------------------------------------- file extent items -- */

/* To the file extent item of the inode before the path; 1: none. */
static int previous_item(struct fiemap_call *call, struct bm_path *path)
{
	for (;;) {
		const struct btrfs_disk_key *key;

		if (path->slot[0] == 0) {
			int ret = bm_prev_leaf(call->root, path, call->fault);

			if (ret)
				return ret;
		} else {
			path->slot[0]--;
		}
		key = &leaf_item(path->node[0], path->slot[0])->key;
		if (key->objectid != call->args->ino || key->type < BTRFS_EXTENT_DATA_KEY)
			return 1;
		if (key->type == BTRFS_EXTENT_DATA_KEY)
			return 0;
	}
}

/* Where the last extent that is not a hole ends. */
static int find_last_extent_offset(struct fiemap_call *call, struct bm_path *path, uint64_t *end)
{
	struct bm_key key = {
	    .objectid = call->args->ino, .type = BTRFS_EXTENT_DATA_KEY, .offset = UINT64_MAX};
	const struct btrfs_file_extent_item *fi;
	int ret = bm_search_slot(call->root, &key, path, call->fault);

	*end = 0;
	if (ret < 0 || path->slot[0] == 0)
		return ret < 0 ? ret : BM_OK;
	path->slot[0]--;
	ret = fiemap_item(call, path, &fi);
	while (!ret && fi && fi->type != BTRFS_FILE_EXTENT_INLINE && !fi->disk_bytenr) {
		ret = previous_item(call, path);
		if (ret)
			return ret < 0 ? ret : BM_OK;
		ret = fiemap_item(call, path, &fi);
	}
	if (!ret && fi)
		*end = fiemap_file_extent_end(call, path, fi);
	return ret;
}

/* To the file extent item at the offset, or the one before; 1: none. */
static int fiemap_search_slot(struct fiemap_call *call, struct bm_path *path, uint64_t offset)
{
	struct bm_key key = {
	    .objectid = call->args->ino, .type = BTRFS_EXTENT_DATA_KEY, .offset = offset};
	int ret = bm_search_slot(call->root, &key, path, call->fault);

	if (ret < 0)
		return ret;
	if (ret > 0 && path->slot[0] > 0) {
		const struct btrfs_disk_key *before =
		    &leaf_item(path->node[0], path->slot[0] - 1)->key;

		if (before->objectid == key.objectid && before->type == key.type)
			path->slot[0]--;
	}
	if (path->slot[0] < block_header(path->node[0])->nritems)
		return 0;
	return bm_next_leaf(call->root, path, call->fault);
}

/* What is known of the file while its items are walked. */
struct progress {
	uint64_t range_start;
	uint64_t range_end;
	uint64_t prev_extent_end;
	int stopped;
};

static int check_shared(struct fiemap_call *call, const struct btrfs_file_extent_item *fi,
			uint32_t *flags)
{
	int ret = is_data_extent_shared(call->share, fi->disk_bytenr, fi->generation);

	if (ret > 0)
		*flags |= FIEMAP_EXTENT_SHARED;
	return ret < 0 ? ret : BM_OK;
}

/* Where what an item shows begins; of a compressed extent where it begins itself. */
static uint64_t first_byte(const struct btrfs_file_extent_item *fi)
{
	return fi->disk_bytenr + (fi->compression ? 0 : fi->offset);
}

/* btrfs_find_delalloc_in_range(): what waits first in [start, end); 0: nothing does. */
static int find_delalloc(const struct fiemap_call *call, uint64_t start, uint64_t end,
			 struct bm_byte_range *found)
{
	const struct bm_byte_range *waits = call->args->delalloc;
	size_t low = 0, high = call->args->delalloc_count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (waits[mid].end <= start)
			low = mid + 1;
		else
			high = mid;
	}
	if (low == call->args->delalloc_count || waits[low].start >= end)
		return 0;
	found->start = waits[low].start > start ? waits[low].start : start;
	found->end = waits[low].end < end ? waits[low].end : end;
	return 1;
}

/*
 * fiemap_process_hole(): report what waits to be written where nothing is yet, and of preallocated
 * space (`item`) the rest.
 */
static int process_hole(struct fiemap_call *call, struct gathered *gathered, uint64_t start,
			uint64_t end, const struct btrfs_file_extent_item *item)
{
	struct bm_fiemap_extent rest = {.flags = FIEMAP_EXTENT_UNWRITTEN};
	struct bm_byte_range waits;
	uint64_t at = start;
	int checked = 0, ret;

	COUNT(call->image, fiemap_process_hole);
	while (at < end) {
		int found = at < call->args->isize && find_delalloc(call, at, end, &waits);

		rest.logical = at;
		rest.length = (found ? waits.start : end) - at;
		if (item && rest.length) {
			ret = checked ? BM_OK : check_shared(call, item, &rest.flags);
			if (ret)
				return ret;
			checked = 1;
			rest.physical = first_byte(item) + (at - start);
			ret = emit_fiemap_extent(call, gathered, rest);
			if (ret)
				return ret;
		}
		if (!found)
			break;
		at = waits.end;
		ret =
		    emit_fiemap_extent(call, gathered,
				       (struct bm_fiemap_extent){.logical = waits.start,
								 .length = waits.end - waits.start,
								 .flags = FIEMAP_EXTENT_DELALLOC |
									  FIEMAP_EXTENT_UNKNOWN});
		if (ret)
			return ret;
	}
	return BM_OK;
}

/* Report one item. */
static int process_item(struct fiemap_call *call, struct gathered *gathered, uint64_t start,
			uint64_t end, const struct btrfs_file_extent_item *fi)
{
	struct bm_fiemap_extent extent = {.logical = start, .length = end - start};
	int ret;

	if (fi->type == BTRFS_FILE_EXTENT_INLINE) {
		extent.flags = FIEMAP_EXTENT_DATA_INLINE | FIEMAP_EXTENT_NOT_ALIGNED;
		if (fi->compression)
			extent.flags |= FIEMAP_EXTENT_ENCODED;
		return emit_fiemap_extent(call, gathered, extent);
	}
	if (!fi->disk_bytenr)
		return process_hole(call, gathered, start, end, NULL);
	if (fi->type == BTRFS_FILE_EXTENT_PREALLOC)
		return process_hole(call, gathered, start, end, fi);
	extent.physical = first_byte(fi);
	if (fi->compression)
		extent.flags = FIEMAP_EXTENT_ENCODED;
	ret = check_shared(call, fi, &extent.flags);
	return ret ? ret : emit_fiemap_extent(call, gathered, extent);
}

/* The item at the path: 1 when the walk is over, FLUSH_CACHE, 0 or a fault. */
static int walk_item(struct fiemap_call *call, struct gathered *gathered, struct progress *at,
		     const struct bm_path *path)
{
	const struct btrfs_file_extent_item *fi;
	uint64_t start, end;
	int ret = fiemap_item(call, path, &fi);

	if (ret || !fi)
		return ret ? ret : 1;
	start = leaf_item(path->node[0], path->slot[0])->key.offset;
	end = fiemap_file_extent_end(call, path, fi);
	if (end <= at->range_start)
		return BM_OK;
	call->share->curr_leaf_bytenr = block_header(path->node[0])->bytenr;
	if (at->prev_extent_end < start) {
		uint64_t hole_end = start < at->range_end ? start : at->range_end;

		ret = process_hole(call, gathered, at->prev_extent_end, hole_end, NULL);
	}
	if (!ret && at->prev_extent_end < start && start >= at->range_end)
		ret = 1;
	if (!ret)
		ret = process_item(call, gathered, start, end, fi);
	if (ret == 1)
		at->stopped = 1;
	if (!ret)
		at->prev_extent_end = end;
	return ret;
}

static int walk_items(struct fiemap_call *call, struct gathered *gathered, struct progress *at,
		      struct bm_path *path)
{
	while (at->prev_extent_end < at->range_end) {
		int ret = walk_item(call, gathered, at, path);

		if (ret)
			return ret == 1 ? BM_OK : ret;
		if (++path->slot[0] < block_header(path->node[0])->nritems)
			continue;
		ret = bm_next_leaf(call->root, path, call->fault);
		if (ret)
			return ret < 0 ? ret : BM_OK;
	}
	return BM_OK;
}

/* From call->start on: one search and the items after it. */
static int walk_range(struct fiemap_call *call, struct gathered *gathered, struct bm_path *path)
{
	uint32_t sectorsize = call->image->sectorsize;
	uint64_t range_start = call->start / sectorsize * sectorsize, last_extent_end;
	struct bm_byte_range waits;
	struct progress at = {
	    .range_start = range_start,
	    .range_end = round_to_sector(call->image, call->end),
	    .prev_extent_end = range_start,
	};
	int ret = find_last_extent_offset(call, path, &last_extent_end);

	if (ret)
		return ret;
	path->reada = BM_READA_FORWARD;
	ret = fiemap_search_slot(call, path, range_start);
	if (!ret)
		ret = walk_items(call, gathered, &at, path);
	if (ret < 0 || ret == FLUSH_CACHE)
		return ret;
	if (!at.stopped && at.prev_extent_end < at.range_end) {
		ret = process_hole(call, gathered, at.prev_extent_end, at.range_end, NULL);
		if (ret < 0 || ret == FLUSH_CACHE)
			return ret;
		at.prev_extent_end = at.range_end;
	}
	if (call->cached && call->cache.logical + call->cache.length >= last_extent_end &&
	    !find_delalloc(call, at.prev_extent_end, call->args->isize, &waits))
		call->cache.flags |= FIEMAP_EXTENT_LAST;
	return BM_OK;
}

static int gather_all(struct fiemap_call *call, struct gathered *gathered)
{
	struct bm_path path = {.restart = search_restarts(call->args->behaviour)};
	int ret;

	for (;;) {
		ret = walk_range(call, gathered, &path);
		if (ret < 0)
			return ret;
		if (ret != FLUSH_CACHE)
			break;
		ret = flush_fiemap_cache(call, gathered);
		if (ret)
			return ret;
		/* an extent that wraps around: the kernel would not come to an end */
		if (gathered->next_search_offset <= call->start)
			return bm_fail(call->fault,
				       (struct bm_fault){.code = BM_LOOP,
							 .tree = call->root->objectid,
							 .found = gathered->next_search_offset});
		call->start = gathered->next_search_offset;
	}
	ret = flush_fiemap_cache(call, gathered);
	return ret ? ret : emit_last_fiemap_cache(call);
}

int fiemap_by_items(struct fiemap_call *call)
{
	struct gathered gathered = {.count = 0};
	int ret = gather_all(call, &gathered);

	free(gathered.entries);
	return ret;
}

/* ---------------------------------------------------------------------------------- calls -- */

static int one_call(struct fiemap_call *call, struct walk *walk)
{
	const struct bm_fiemap_args *args = call->args;
	struct share_context share = {
	    .walk = walk,
	    .root_id = args->subvolume,
	    .inum = args->ino,
	    .last_snapshot = args->last_snapshot,
	    .behaviour = args->behaviour,
	    .prev_extents = calloc(args->prev_extents, sizeof(*share.prev_extents)),
	    .prev_extents_size = args->prev_extents,
	};
	int ret;

	if (!share.prev_extents)
		return bm_fail(call->fault, (struct bm_fault){.code = BM_NOMEM});
	COUNT(call->image, btrfs_fiemap);
	call->share = &share;
	if (fiemap_has(call, BM_TOGGLE_FIEMAP_FILE_EXTENTS))
		ret = fiemap_by_items(call);
	else
		ret = fiemap_by_maps(call);
	free(share.prev_extents);
	return ret;
}

/* The calls that a program makes: the next one starts where the last extent ended. */
static int all_calls(struct fiemap_call *call, struct walk *walk, uint64_t start, uint64_t end)
{
	for (call->number = 0; start < end; call->number++) {
		const struct bm_fiemap_extent *last;
		int ret;

		call->start = start;
		call->end = end;
		call->mapped = 0;
		call->cached = 0;
		ret = one_call(call, walk);
		if (ret)
			return ret;
		call->result->calls++;
		if (!call->mapped)
			return BM_OK;
		last = &call->result->rows[call->result->count - 1];
		if ((last->flags & FIEMAP_EXTENT_LAST) || last->logical + last->length <= start)
			return BM_OK;
		start = last->logical + last->length;
	}
	return BM_OK;
}

int bm_fiemap(const struct bm_fiemap_args *args, struct bm_fiemap_result *result,
	      struct bm_fault *fault)
{
	struct bm_backref_walk ask = {.forest = args->forest, .behaviour = args->behaviour};
	struct fiemap_call call = {
	    .args = args,
	    .root = bm_forest_root(args->forest, args->subvolume),
	    .image = bm_forest_image(args->forest),
	    .result = result,
	    .fault = fault,
	};
	uint64_t end = LLONG_MAX;
	struct walk *walk;
	int ret;

	*result = (struct bm_fiemap_result){0};
	if (!call.root)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOT_FOUND,
							.tree = BTRFS_ROOT_TREE_OBJECTID,
							.found = args->subvolume,
							.wanted = BTRFS_ROOT_ITEM_KEY});
	walk = walk_create(&ask, fault);
	if (!walk)
		return BM_NOMEM;
	if (args->start < end && args->length < end - args->start)
		end = args->start + args->length;
	ret = all_calls(&call, walk, args->start, end);
	walk_destroy(walk);
	return ret;
}

void bm_fiemap_result_free(struct bm_fiemap_result *result)
{
	free(result->rows);
	*result = (struct bm_fiemap_result){0};
}
