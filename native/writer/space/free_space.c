// SPDX-License-Identifier: GPL-2.0-only
/*
 * The free space tree (fs/btrfs/free-space-tree.c). A block group has a FREE_SPACE_INFO item and
 * behind it its free ranges: a FREE_SPACE_EXTENT for each or, once those would take more room, a
 * FREE_SPACE_BITMAP for every 2048 sectors, in which a set bit is a free sector.
 *
 * Extents never touch: what becomes free is joined with its neighbours.
 */
#include "writer/writer.h"

#include <stdlib.h>
#include <string.h>

enum {
	TREE = BTRFS_FREE_SPACE_TREE_OBJECTID,
	USING_BITMAPS = 1,
	BITMAP_SIZE = 256,
	BITMAP_BITS = BITMAP_SIZE * 8,
};

/* A block group as the tree has it. */
struct group {
	uint64_t start;
	uint64_t length;
	uint64_t end;
	struct btrfs_free_space_info info;
};

static struct bm_key key_of(uint64_t objectid, uint8_t type, uint64_t offset)
{
	return (struct bm_key){.objectid = objectid, .type = type, .offset = offset};
}

static struct bm_key info_key(const struct group *group)
{
	return key_of(group->start, BTRFS_FREE_SPACE_INFO_KEY, group->length);
}

static int bad(struct bm_fault *fault, uint64_t found, uint64_t wanted)
{
	return bm_fail(fault,
		       (struct bm_fault){
			   .code = BM_BAD_VALUE, .tree = TREE, .found = found, .wanted = wanted});
}

static uint64_t bitmap_range(const struct bm_writer *writer)
{
	return (uint64_t)BITMAP_BITS * writer->sectorsize;
}

/* ----------------------------------------------------------------------------------- items -- */

/* btrfs_search_prev_slot(): the last item whose key is not greater; its key and its payload. */
static int previous_item(struct bm_writer *writer, const struct bm_key *key, struct bm_key *found,
			 const uint8_t **data, uint32_t *size, struct bm_fault *fault)
{
	struct bm_path path = {0};
	struct bm_root root;
	int ret;

	if (bm_writer_root(writer, TREE, &root, fault) < 0)
		return fault->code;
	ret = bm_search_slot_for_read(&root, key, 0, &path, fault);
	if (ret < 0)
		return ret;
	if (ret)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOT_FOUND,
							.tree = TREE,
							.found = key->objectid,
							.wanted = BTRFS_FREE_SPACE_INFO_KEY});
	*found = to_key(&leaf_item(path.node[0], path.slot[0])->key);
	*data = item_data(path.node[0], path.slot[0]);
	*size = leaf_item(path.node[0], path.slot[0])->size;
	return BM_OK;
}

static int insert_item(struct bm_writer *writer, const struct bm_key *key, const void *data,
		       uint32_t size, struct bm_fault *fault)
{
	return bm_writer_insert(writer, TREE, key, &size, 1, data, fault);
}

static int delete_item(struct bm_writer *writer, const struct bm_key *key, struct bm_fault *fault)
{
	int64_t ret = bm_writer_delete(writer, TREE, key, key, 0, fault);

	return ret < 0 ? (int)ret : BM_OK;
}

/* The block group that holds [start, start + size), and its info item. */
static int find_group(struct bm_writer *writer, uint64_t start, uint64_t size, struct group *group,
		      struct bm_fault *fault)
{
	struct bm_writer_group range;
	struct bm_key key, found;
	const uint8_t *data;
	uint32_t item_size;

	if (bm_space_group_of(writer, start, &range, fault) < 0)
		return fault->code;
	group->start = range.start;
	group->length = range.length;
	group->end = range.start + range.length;
	if (!size || size > group->end - start || (start | size) % writer->sectorsize)
		return bad(fault, start, size);
	key = info_key(group);
	if (previous_item(writer, &key, &found, &data, &item_size, fault) < 0)
		return fault->code;
	if (compare_keys(key.objectid, key.type, key.offset, &found))
		return bm_fail(fault, (struct bm_fault){.code = BM_NOT_FOUND,
							.tree = TREE,
							.found = group->start,
							.wanted = BTRFS_FREE_SPACE_INFO_KEY});
	if (item_size < sizeof(group->info))
		return bm_fail(fault, (struct bm_fault){.code = BM_BAD_ITEM_SIZE,
							.tree = TREE,
							.found = item_size,
							.wanted = sizeof(group->info)});
	memcpy(&group->info, data, sizeof(group->info));
	return BM_OK;
}

static int write_info(struct bm_writer *writer, const struct group *group, struct bm_fault *fault)
{
	struct bm_key key = info_key(group);

	return bm_writer_update(writer, TREE, &key, 0, (const uint8_t *)&group->info,
				sizeof(group->info), fault);
}

/* --------------------------------------------------------------------------------- bitmaps -- */

static int test_bit(const uint8_t *map, uint64_t bit)
{
	return map[bit / 8] >> bit % 8 & 1;
}

static void change_bits(uint8_t *map, uint64_t bit, uint64_t count, int set)
{
	for (uint64_t end = bit + count; bit < end; bit++) {
		uint8_t mask = (uint8_t)(1U << bit % 8);

		map[bit / 8] = set ? map[bit / 8] | mask : map[bit / 8] & (uint8_t)~mask;
	}
}

static uint32_t bitmap_bytes(const struct bm_writer *writer, uint64_t length)
{
	return (uint32_t)((length / writer->sectorsize + 7) / 8);
}

/* The bitmap that holds a sector of the group. */
static int find_bitmap(struct bm_writer *writer, const struct group *group, uint64_t bytenr,
		       struct bm_key *key, const uint8_t **map, struct bm_fault *fault)
{
	struct bm_key last = key_of(bytenr, UINT8_MAX, UINT64_MAX);
	uint32_t size = 0;

	if (previous_item(writer, &last, key, map, &size, fault) < 0)
		return fault->code;
	if (key->type != BTRFS_FREE_SPACE_BITMAP_KEY || key->objectid < group->start ||
	    bytenr - key->objectid >= key->offset || key->offset > bitmap_range(writer) ||
	    (key->objectid | key->offset) % writer->sectorsize ||
	    size != bitmap_bytes(writer, key->offset))
		return bad(fault, key->objectid, bytenr);
	return BM_OK;
}

/* Whether a sector is free; 0 beyond the ends of the group. */
static int sector_is_free(struct bm_writer *writer, const struct group *group, uint64_t bytenr,
			  struct bm_fault *fault)
{
	const uint8_t *map = NULL;
	struct bm_key key = {0};

	if (bytenr < group->start || bytenr >= group->end)
		return 0;
	if (find_bitmap(writer, group, bytenr, &key, &map, fault) < 0)
		return fault->code;
	return test_bit(map, (bytenr - key.objectid) / writer->sectorsize);
}

/* modify_free_space_bitmap(): the change of the number of extents goes to *change. */
static int modify_bitmaps(struct bm_writer *writer, const struct group *group, uint64_t start,
			  uint64_t size, int set, int *change, struct bm_fault *fault)
{
	uint64_t at = start, end = start + size;
	uint8_t map[BITMAP_SIZE];
	int before = sector_is_free(writer, group, start - writer->sectorsize, fault);
	int after;

	if (before < 0)
		return before;
	while (at < end) {
		const uint8_t *old = NULL;
		struct bm_key key = {0};
		uint64_t stop;
		uint32_t bytes;

		if (find_bitmap(writer, group, at, &key, &old, fault) < 0)
			return fault->code;
		stop = key.objectid + key.offset < end ? key.objectid + key.offset : end;
		bytes = bitmap_bytes(writer, key.offset);
		memcpy(map, old, bytes);
		change_bits(map, (at - key.objectid) / writer->sectorsize,
			    (stop - at) / writer->sectorsize, set);
		if (bm_writer_update(writer, TREE, &key, 0, map, bytes, fault) < 0)
			return fault->code;
		at = stop;
	}
	after = sector_is_free(writer, group, end, fault);
	if (after < 0)
		return after;
	/* an extent more, less one for each neighbour that it joins; the reverse when it goes */
	*change = set ? 1 - before - after : before + after - 1;
	return BM_OK;
}

/* ------------------------------------------------------------------------------ conversion -- */

/* set_free_space_tree_thresholds(): at which numbers of extents a group changes its form. */
static void thresholds(const struct bm_writer *writer, const struct group *group, uint64_t *high,
		       uint64_t *low)
{
	uint64_t range = bitmap_range(writer);
	uint64_t bitmaps = (group->length + range - 1) / range;

	*high = bitmaps * (BTRFS_ITEM_SIZE + BITMAP_SIZE) / BTRFS_ITEM_SIZE;
	*low = *high > 100 ? *high - 100 : 0;
}

/* One item of a group into the bits of all of its sectors. */
static int take_item(const struct bm_writer *writer, const struct group *group, uint8_t *bits,
		     const struct bm_key *key, const uint8_t *data, uint32_t size,
		     struct bm_fault *fault)
{
	uint64_t first = (key->objectid - group->start) / writer->sectorsize;
	uint64_t count = key->offset / writer->sectorsize;

	if (!key->offset || key->offset > group->end - key->objectid ||
	    (key->objectid | key->offset) % writer->sectorsize)
		return bad(fault, key->objectid, key->offset);
	if (key->type == BTRFS_FREE_SPACE_EXTENT_KEY) {
		change_bits(bits, first, count, 1);
		return BM_OK;
	}
	if (key->type != BTRFS_FREE_SPACE_BITMAP_KEY || size != (count + 7) / 8)
		return bad(fault, key->type, size);
	for (uint64_t i = 0; i < count; i++)
		change_bits(bits, first + i, 1, test_bit(data, i));
	return BM_OK;
}

/* What the items of a group say, as bits, and how many there are; the items stay. */
static int64_t read_group(struct bm_writer *writer, const struct group *group, uint8_t *bits,
			  struct bm_fault *fault)
{
	struct bm_key first = key_of(group->start, BTRFS_FREE_SPACE_EXTENT_KEY, 0);
	struct bm_path path = {0};
	struct bm_root root;
	int64_t items = 0;
	int ret;

	if (bm_writer_root(writer, TREE, &root, fault) < 0)
		return fault->code;
	ret = bm_search_slot_for_read(&root, &first, 1, &path, fault);
	while (!ret) {
		const uint8_t *leaf = path.node[0];

		for (uint32_t slot = path.slot[0]; slot < block_header(leaf)->nritems; slot++) {
			struct bm_key key = to_key(&leaf_item(leaf, slot)->key);

			if (key.objectid >= group->end)
				return items;
			if (take_item(writer, group, bits, &key, item_data(leaf, slot),
				      leaf_item(leaf, slot)->size, fault) < 0)
				return fault->code;
			items++;
		}
		ret = bm_next_leaf(&root, &path, fault);
	}
	return ret < 0 ? ret : items;
}

/* The next run of set bits from *bit on: its length, 0 when there is none. */
static uint64_t next_run(const uint8_t *bits, uint64_t count, uint64_t *bit)
{
	uint64_t end;

	while (*bit < count && !test_bit(bits, *bit))
		(*bit)++;
	for (end = *bit; end < count && test_bit(bits, end); end++)
		;
	return end - *bit;
}

static uint64_t count_runs(const uint8_t *bits, uint64_t count)
{
	uint64_t runs = 0, bit = 0, length;

	for (; (length = next_run(bits, count, &bit)); bit += length)
		runs++;
	return runs;
}

static int insert_bitmaps(struct bm_writer *writer, const struct group *group, const uint8_t *bits,
			  struct bm_fault *fault)
{
	uint64_t range = bitmap_range(writer);

	for (uint64_t at = group->start; at < group->end; at += range) {
		uint64_t length = group->end - at < range ? group->end - at : range;
		struct bm_key key = key_of(at, BTRFS_FREE_SPACE_BITMAP_KEY, length);

		/* a bitmap is a multiple of bytes long, all but perhaps the last one of a group */
		if (insert_item(writer, &key, bits + (at - group->start) / writer->sectorsize / 8,
				bitmap_bytes(writer, length), fault) < 0)
			return fault->code;
	}
	return BM_OK;
}

static int insert_extents(struct bm_writer *writer, const struct group *group, const uint8_t *bits,
			  struct bm_fault *fault)
{
	uint64_t count = group->length / writer->sectorsize, bit = 0, length;

	for (; (length = next_run(bits, count, &bit)); bit += length) {
		struct bm_key key =
		    key_of(group->start + bit * writer->sectorsize, BTRFS_FREE_SPACE_EXTENT_KEY,
			   length * writer->sectorsize);

		if (insert_item(writer, &key, "", 0, fault) < 0)
			return fault->code;
	}
	return BM_OK;
}

/* convert_free_space_to_bitmaps(), convert_free_space_to_extents(): the other form of a group. */
static int convert(struct bm_writer *writer, struct group *group, struct bm_fault *fault)
{
	struct bm_key first = key_of(group->start, BTRFS_FREE_SPACE_EXTENT_KEY, 0);
	struct bm_key last = key_of(group->end - 1, UINT8_MAX, UINT64_MAX);
	uint64_t sectors = group->length / writer->sectorsize;
	uint8_t *bits = calloc(1, sectors / 8 + 1);
	int ret = bits ? BM_OK : bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});

	if (!ret && read_group(writer, group, bits, fault) < 0)
		ret = fault->code;
	if (!ret && count_runs(bits, sectors) != group->info.extent_count)
		ret = bad(fault, count_runs(bits, sectors), group->info.extent_count);
	if (!ret && bm_writer_delete(writer, TREE, &first, &last, 1, fault) < 0)
		ret = fault->code;
	group->info.flags ^= USING_BITMAPS;
	if (!ret)
		ret = write_info(writer, group, fault);
	if (!ret)
		ret = group->info.flags & USING_BITMAPS
			  ? insert_bitmaps(writer, group, bits, fault)
			  : insert_extents(writer, group, bits, fault);
	free(bits);
	return ret;
}

/* update_free_space_extent_count() */
static int update_count(struct bm_writer *writer, struct group *group, int change,
			struct bm_fault *fault)
{
	uint64_t high, low;

	if (!change)
		return BM_OK;
	if (change < 0 && group->info.extent_count < (uint32_t)-change)
		return bad(fault, group->info.extent_count, (uint64_t)-change);
	group->info.extent_count += (uint32_t)change;
	if (write_info(writer, group, fault) < 0)
		return fault->code;
	thresholds(writer, group, &high, &low);
	if (group->info.flags & USING_BITMAPS ? group->info.extent_count < low
					      : group->info.extent_count > high)
		return convert(writer, group, fault);
	return BM_OK;
}

/* --------------------------------------------------------------------------------- extents -- */

/*
 * Delete the free extent that ends at `at` (`before`) or starts there, if there is one: 1, and its
 * key.
 */
static int take_neighbour(struct bm_writer *writer, const struct group *group, uint64_t at,
			  int before, struct bm_key *found, struct bm_fault *fault)
{
	struct bm_key last = key_of(before ? at - 1 : at, UINT8_MAX, UINT64_MAX);
	const uint8_t *data;
	uint32_t size;

	if (at == (before ? group->start : group->end))
		return 0;
	if (previous_item(writer, &last, found, &data, &size, fault) < 0)
		return fault->code;
	if (found->type != BTRFS_FREE_SPACE_EXTENT_KEY || found->objectid < group->start)
		return 0;
	if ((before ? found->objectid + found->offset : found->objectid) != at)
		return 0;
	return delete_item(writer, found, fault) < 0 ? fault->code : 1;
}

/* add_free_space_extent() */
static int add_extent(struct bm_writer *writer, struct group *group, uint64_t start, uint64_t size,
		      struct bm_fault *fault)
{
	struct bm_key key = key_of(start, BTRFS_FREE_SPACE_EXTENT_KEY, size), found;
	int left, right;

	left = take_neighbour(writer, group, start, 1, &found, fault);
	if (left < 0)
		return left;
	if (left) {
		key.objectid = found.objectid;
		key.offset += found.offset;
	}
	right = take_neighbour(writer, group, start + size, 0, &found, fault);
	if (right < 0)
		return right;
	if (right)
		key.offset += found.offset;
	if (insert_item(writer, &key, "", 0, fault) < 0)
		return fault->code;
	return update_count(writer, group, 1 - left - right, fault);
}

/* remove_free_space_extent() */
static int remove_extent(struct bm_writer *writer, struct group *group, uint64_t start,
			 uint64_t size, struct bm_fault *fault)
{
	struct bm_key last = key_of(start, UINT8_MAX, UINT64_MAX), found, rest;
	uint64_t end = start + size, found_end;
	const uint8_t *data;
	uint32_t item_size;
	int change = -1;

	if (previous_item(writer, &last, &found, &data, &item_size, fault) < 0)
		return fault->code;
	found_end = found.objectid + found.offset;
	if (found.type != BTRFS_FREE_SPACE_EXTENT_KEY || found.objectid < group->start ||
	    end > found_end)
		return bad(fault, found.objectid, start);
	if (delete_item(writer, &found, fault) < 0)
		return fault->code;
	if (found.objectid < start) {
		rest = key_of(found.objectid, BTRFS_FREE_SPACE_EXTENT_KEY, start - found.objectid);
		if (insert_item(writer, &rest, "", 0, fault) < 0)
			return fault->code;
		change++;
	}
	if (end < found_end) {
		rest = key_of(end, BTRFS_FREE_SPACE_EXTENT_KEY, found_end - end);
		if (insert_item(writer, &rest, "", 0, fault) < 0)
			return fault->code;
		change++;
	}
	return update_count(writer, group, change, fault);
}

static int change_space(struct bm_writer *writer, uint64_t start, uint64_t size, int add,
			struct bm_fault *fault)
{
	struct group group;
	int change = 0;

	if (!(writer->features & BM_WRITER_FREE_SPACE_TREE))
		return BM_OK;
	if (find_group(writer, start, size, &group, fault) < 0)
		return fault->code;
	if (!(group.info.flags & USING_BITMAPS))
		return add ? add_extent(writer, &group, start, size, fault)
			   : remove_extent(writer, &group, start, size, fault);
	if (modify_bitmaps(writer, &group, start, size, add, &change, fault) < 0)
		return fault->code;
	return update_count(writer, &group, change, fault);
}

int bm_free_space_add(struct bm_writer *writer, uint64_t start, uint64_t size,
		      struct bm_fault *fault)
{
	return change_space(writer, start, size, 1, fault);
}

int bm_free_space_remove(struct bm_writer *writer, uint64_t start, uint64_t size,
			 struct bm_fault *fault)
{
	return change_space(writer, start, size, 0, fault);
}

int bm_writer_free_space_group(struct bm_writer *writer, uint64_t start, struct bm_fault *fault)
{
	struct btrfs_free_space_info info = {0};
	struct bm_writer_group group;
	struct bm_key key;

	if (!(writer->features & BM_WRITER_FREE_SPACE_TREE))
		return BM_OK;
	if (bm_space_group_of(writer, start, &group, fault) < 0)
		return fault->code;
	key = key_of(group.start, BTRFS_FREE_SPACE_INFO_KEY, group.length);
	if (insert_item(writer, &key, &info, sizeof(info), fault) < 0)
		return fault->code;
	return bm_free_space_add(writer, group.start, group.length, fault);
}
