// SPDX-License-Identifier: GPL-2.0-only
/*
 * FIEMAP before 6.1: the walk over extent maps (extent_io.c, inode.c and extent_map.c of 5.10).
 *
 * An extent map is what the kernel remembers of a file extent item. The search for an item puts
 * its map beside those that are there already, and neighbours that follow on each other in the file
 * and on disk become one. So an answer may depend on what was asked before: sharing is checked for
 * the extent at which the merged map begins, and a map that began before the range of a call is
 * reported whole.
 */
#include "fiemap/fiemap.h"
#include "image/pool.h"

#include <stdlib.h>
#include <string.h>

#define EXTENT_MAP_LAST_BYTE ((uint64_t)-4)
#define EXTENT_MAP_HOLE ((uint64_t)-3)
#define EXTENT_MAP_INLINE ((uint64_t)-2)

enum { MAP_COMPRESSED = 1, MAP_PREALLOC = 2 };

struct extent_map {
	uint64_t start;
	uint64_t length;
	uint64_t orig_start;  /* where the extent on disk would begin in the file */
	uint64_t block_start; /* on disk, or one of EXTENT_MAP_* */
	int flags;
};

struct bm_extent_maps {
	struct extent_map *maps; /* ascending, without overlap */
	size_t count;
	size_t capacity;
};

struct bm_extent_maps *bm_extent_maps_create(struct bm_fault *fault)
{
	struct bm_extent_maps *maps = calloc(1, sizeof(*maps));

	if (!maps)
		bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	return maps;
}

void bm_extent_maps_destroy(struct bm_extent_maps *maps)
{
	if (maps)
		free(maps->maps);
	free(maps);
}

static uint64_t map_end(const struct extent_map *map)
{
	return map->start + map->length < map->start ? UINT64_MAX : map->start + map->length;
}

/* ------------------------------------------------------------------------- the set of maps -- */

/* Index of the first map that ends after the offset. */
static size_t find_map(const struct bm_extent_maps *maps, uint64_t offset)
{
	size_t low = 0, high = maps->count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (map_end(&maps->maps[mid]) <= offset)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static int mergable_maps(const struct extent_map *prev, const struct extent_map *next)
{
	if ((prev->flags & MAP_COMPRESSED) || map_end(prev) != next->start ||
	    prev->flags != next->flags)
		return 0;
	if (prev->block_start == EXTENT_MAP_HOLE || next->block_start == EXTENT_MAP_HOLE)
		return prev->block_start == next->block_start;
	return next->block_start == prev->block_start + prev->length;
}

static void remove_map(struct bm_extent_maps *maps, size_t at)
{
	maps->count--;
	memmove(&maps->maps[at], &maps->maps[at + 1], (maps->count - at) * sizeof(maps->maps[0]));
}

/* Returns the map that `at` has become part of. */
static struct extent_map *try_merge_map(struct bm_extent_maps *maps, size_t at)
{
	struct extent_map *map = maps->maps;

	if (at > 0 && mergable_maps(&map[at - 1], &map[at])) {
		map[at - 1].length += map[at].length;
		remove_map(maps, at--);
	}
	if (at + 1 < maps->count && mergable_maps(&map[at], &map[at + 1])) {
		map[at].length += map[at + 1].length;
		remove_map(maps, at + 1);
	}
	return &map[at];
}

/*
 * What overlaps maps that are there is cut to fit between them
 * (merge_extent_mapping()). NULL: no memory.
 */
static const struct extent_map *add_extent_mapping(struct bm_extent_maps *maps,
						   struct extent_map map, uint64_t start)
{
	size_t at = find_map(maps, start);
	uint64_t begin = map.start, end = map_end(&map);
	struct extent_map *rows;

	if (at < maps->count && maps->maps[at].start <= start)
		return &maps->maps[at];
	if (at > 0 && map_end(&maps->maps[at - 1]) > begin)
		begin = map_end(&maps->maps[at - 1]);
	if (at < maps->count && maps->maps[at].start < end)
		end = maps->maps[at].start;
	if (map.block_start < EXTENT_MAP_LAST_BYTE && !(map.flags & MAP_COMPRESSED))
		map.block_start += begin - map.start;
	map.start = begin;
	map.length = end - begin;
	rows = grown(maps->maps, maps->count, &maps->capacity, 64, sizeof(*rows));
	if (!rows)
		return NULL;
	maps->maps = rows;
	memmove(&maps->maps[at + 1], &maps->maps[at], (maps->count - at) * sizeof(map));
	maps->maps[at] = map;
	maps->count++;
	return try_merge_map(maps, at);
}

/* -------------------------------------------------------------------- from items to maps -- */

static struct extent_map extent_item_to_extent_map(const struct fiemap_call *call,
						   const struct bm_path *path,
						   const struct btrfs_file_extent_item *fi)
{
	uint64_t start = leaf_item(path->node[0], path->slot[0])->key.offset;
	struct extent_map map = {
	    .start = start,
	    .length = fiemap_file_extent_end(call, path, fi) - start,
	    .orig_start = start,
	    .block_start = EXTENT_MAP_INLINE,
	};

	if (fi->type == BTRFS_FILE_EXTENT_INLINE)
		return map;
	map.orig_start = start - fi->offset;
	map.block_start = EXTENT_MAP_HOLE;
	if (!fi->disk_bytenr)
		return map;
	map.block_start = fi->disk_bytenr;
	if (fi->compression) {
		map.flags = MAP_COMPRESSED;
	} else {
		map.block_start += fi->offset;
		if (fi->type == BTRFS_FILE_EXTENT_PREALLOC)
			map.flags = MAP_PREALLOC;
	}
	return map;
}

/* The item that holds `start`, or else the hole up to the next one, from a search for `start`. */
static int map_from_items(struct fiemap_call *call, uint64_t start, uint64_t length,
			  struct bm_path *path, struct extent_map *map)
{
	struct bm_key key = {
	    .objectid = call->args->ino, .type = BTRFS_EXTENT_DATA_KEY, .offset = start};
	const struct btrfs_file_extent_item *fi;
	int ret = bm_search_slot(call->root, &key, path, call->fault);

	*map = (struct extent_map){start, length, start, EXTENT_MAP_HOLE, 0};
	if (ret < 0)
		return ret;
	if (ret > 0 && path->slot[0]-- == 0)
		return BM_OK;
	ret = fiemap_item(call, path, &fi);
	while (!ret && (!fi || fiemap_file_extent_end(call, path, fi) <= start)) {
		uint64_t next;

		if (++path->slot[0] >= block_header(path->node[0])->nritems) {
			ret = bm_next_leaf(call->root, path, call->fault);
			if (ret)
				return ret < 0 ? ret : BM_OK;
		}
		ret = fiemap_item(call, path, &fi);
		if (ret || !fi)
			return ret;
		next = leaf_item(path->node[0], path->slot[0])->key.offset;
		if (start + length <= next)
			return BM_OK;
		if (start < next) {
			map->length = next - start;
			return BM_OK;
		}
	}
	if (!ret)
		*map = extent_item_to_extent_map(call, path, fi);
	return ret;
}

/* From the maps, or from the tree. */
static int get_extent(struct fiemap_call *call, uint64_t start, uint64_t length,
		      struct extent_map *map)
{
	struct bm_extent_maps *maps = call->args->maps;
	struct bm_path path = {.reada = BM_READA_FORWARD,
			       .restart = search_restarts(call->args->behaviour)};
	const struct extent_map *found;
	size_t at = find_map(maps, start);
	int ret;

	COUNT(call->image, btrfs_get_extent);
	if (at < maps->count && maps->maps[at].start <= start) {
		*map = maps->maps[at];
		return BM_OK;
	}
	ret = map_from_items(call, start, length, &path, map);
	if (ret || map->block_start == EXTENT_MAP_INLINE)
		return ret;
	found = add_extent_mapping(maps, *map, start);
	if (!found)
		return bm_fail(call->fault, (struct bm_fault){.code = BM_NOMEM});
	*map = *found;
	return BM_OK;
}

/* 1 when there is nothing more up to `last`. */
static int get_extent_skip_holes(struct fiemap_call *call, uint64_t offset, uint64_t last,
				 struct extent_map *map)
{
	while (offset < last) {
		int ret =
		    get_extent(call, offset, round_to_sector(call->image, last - offset), map);

		if (ret || map->block_start != EXTENT_MAP_HOLE)
			return ret;
		/* a file of nearly 2^64 bytes: its length wraps around */
		if (map_end(map) <= offset)
			return 1;
		offset = map_end(map);
	}
	return 1;
}

/* ----------------------------------------------------------------------------- the report -- */

/* 1 when no more are wanted. */
static int emit_fiemap_extent(struct fiemap_call *call, const struct bm_fiemap_extent *extent)
{
	struct bm_fiemap_extent *cache = &call->cache;
	int ret = 0;

	COUNT(call->image, emit_fiemap_extent);
	if (call->cached && fiemap_continues(call, extent) &&
	    !((cache->flags ^ extent->flags) & ~(uint32_t)FIEMAP_EXTENT_LAST)) {
		cache->length += extent->length;
		cache->flags |= extent->flags;
	} else {
		if (call->cached) {
			ret = fiemap_fill_next_extent(call, cache);
			call->cached = 0;
			if (ret)
				return ret;
		}
		*cache = *extent;
		call->cached = 1;
	}
	if (cache->flags & FIEMAP_EXTENT_LAST) {
		ret = fiemap_fill_next_extent(call, cache);
		call->cached = 0;
	}
	return ret;
}

/* Where the last extent item begins, and up to where extents are looked for. */
static int find_last(struct fiemap_call *call, uint64_t *last, uint64_t *last_for_get_extent)
{
	struct bm_key key = {
	    .objectid = call->args->ino, .type = BTRFS_EXTENT_DATA_KEY, .offset = UINT64_MAX};
	struct bm_path path = {.restart = search_restarts(call->args->behaviour)};
	const struct btrfs_file_extent_item *fi = NULL;
	int ret = bm_search_slot(call->root, &key, &path, call->fault);

	if (ret >= 0 && path.slot[0] > 0) {
		path.slot[0]--;
		ret = fiemap_item(call, &path, &fi);
	}
	if (ret < 0)
		return ret;
	*last = fi ? leaf_item(path.node[0], path.slot[0])->key.offset : UINT64_MAX;
	*last_for_get_extent = *last + 1;
	if (!fi || *last < call->args->isize) {
		*last = UINT64_MAX;
		*last_for_get_extent = call->args->isize;
	}
	return BM_OK;
}

/* What is to be said of a map from `start` on. */
static int map_to_extent(struct fiemap_call *call, const struct extent_map *map, uint64_t start,
			 struct bm_fiemap_extent *extent)
{
	int ret;

	*extent = (struct bm_fiemap_extent){.logical = start, .length = map_end(map) - start};
	if (map->block_start == EXTENT_MAP_INLINE) {
		extent->flags = FIEMAP_EXTENT_DATA_INLINE | FIEMAP_EXTENT_NOT_ALIGNED;
		return BM_OK;
	}
	extent->physical = map->block_start;
	if (!(map->flags & MAP_COMPRESSED))
		extent->physical += start - map->start;
	/* of a compressed extent that is the wrong address, unless the item shows its beginning */
	ret = is_data_extent_shared(call->share, map->block_start - (map->start - map->orig_start),
				    0);
	if (ret < 0)
		return ret;
	extent->flags = ret ? FIEMAP_EXTENT_SHARED : 0;
	if (map->flags & MAP_COMPRESSED)
		extent->flags |= FIEMAP_EXTENT_ENCODED;
	if (map->flags & MAP_PREALLOC)
		extent->flags |= FIEMAP_EXTENT_UNWRITTEN;
	return BM_OK;
}

int fiemap_by_maps(struct fiemap_call *call)
{
	uint64_t isize = call->args->isize, last, until, offset = 0;
	uint64_t first_sector = call->start - call->start % call->image->sectorsize;
	struct extent_map map;
	int end = 0, ret = find_last(call, &last, &until);

	if (ret)
		return ret;
	ret = get_extent_skip_holes(call, first_sector, until, &map);
	if (ret)
		return ret < 0 ? ret : BM_OK;
	while (!end) {
		struct bm_fiemap_extent extent;
		uint64_t start = map.start > offset ? map.start : offset;

		if (map.start >= call->end || map_end(&map) < offset)
			break;
		offset = map_end(&map);
		end = offset >= call->end;
		ret = map_to_extent(call, &map, start, &extent);
		if (ret)
			return ret;
		if (start >= last || (last == UINT64_MAX && isize <= offset)) {
			extent.flags |= FIEMAP_EXTENT_LAST;
			end = 1;
		}
		ret = get_extent_skip_holes(call, offset, until, &map);
		if (ret < 0)
			return ret;
		if (ret) {
			extent.flags |= FIEMAP_EXTENT_LAST;
			end = 1;
		}
		ret = emit_fiemap_extent(call, &extent);
		if (ret)
			return ret < 0 ? ret : emit_last_fiemap_cache(call);
	}
	return emit_last_fiemap_cache(call);
}
