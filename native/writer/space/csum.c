// SPDX-License-Identifier: GPL-2.0-only
/*
 * The csum tree: items of (EXTENT_CSUM EXTENT_CSUM bytenr), each the checksums of sectors that
 * follow one another. New checksums go into the item that ends where they begin, as many as fit;
 * what is left gets an item of its own.
 */
#include "writer/writer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define EXTENT_CSUM_OBJECTID ((uint64_t)-10)
#define PAGE_BYTES 4096u

/* One call of btrfs_csum_file_blocks() or btrfs_del_csums(). */
struct csums {
	struct bm_writer *writer;
	struct bm_writer_tree *tree;
	struct bm_fault *fault;
	struct bm_path path;
	uint32_t size;	    /* of a checksum */
	uint32_t max_items; /* MAX_CSUM_ITEMS() */
	uint64_t bytenr;
	uint64_t end;
};

static uint32_t csum_size(int csum_type)
{
	switch (csum_type) {
	case BTRFS_CSUM_TYPE_CRC32:
		return 4;
	case BTRFS_CSUM_TYPE_XXHASH:
		return 8;
	default:
		return BTRFS_CSUM_SIZE;
	}
}

static int start_csums(struct csums *csums, struct bm_writer *writer, uint64_t tree,
		       uint64_t bytenr, uint64_t length, struct bm_fault *fault)
{
	*csums = (struct csums){.writer = writer, .fault = fault, .bytenr = bytenr};
	csums->tree = bm_writer_tree_of(writer, tree, fault);
	if (!csums->tree)
		return fault->code;
	if ((bytenr | length) % writer->sectorsize || length > UINT64_MAX - bytenr)
		return bm_writer_errno(fault, csums->tree, EINVAL);
	csums->end = bytenr + length;
	csums->size = csum_size(writer->image->csum_type);
	csums->max_items = (writer->leaf_size - BTRFS_ITEM_SIZE * 2) / csums->size - 1;
	if (csums->max_items > PAGE_BYTES)
		csums->max_items = PAGE_BYTES;
	return BM_OK;
}

static struct bm_key csum_key(uint64_t bytenr)
{
	return (struct bm_key){
	    .objectid = EXTENT_CSUM_OBJECTID, .type = BTRFS_EXTENT_CSUM_KEY, .offset = bytenr};
}

static int is_csum(const struct bm_key *key)
{
	return key->objectid == EXTENT_CSUM_OBJECTID && key->type == BTRFS_EXTENT_CSUM_KEY;
}

static struct bm_key key_here(const struct csums *csums)
{
	return to_key(&leaf_item(csums->path.node[0], csums->path.slot[0])->key);
}

/* Number of checksums in the item of the path. */
static uint32_t count_here(const struct csums *csums)
{
	return leaf_item(csums->path.node[0], csums->path.slot[0])->size / csums->size;
}

/* Sectors from one address to another, at most `limit`. */
static uint64_t sectors(const struct csums *csums, uint64_t from, uint64_t to, uint64_t limit)
{
	uint64_t count = (to - from) / csums->writer->sectorsize;

	return count < limit ? count : limit;
}

static int search(struct csums *csums, const struct bm_key *key, int ins_len, int how)
{
	return bm_writer_search_slot(csums->writer, csums->tree, key, ins_len, how, &csums->path,
				     csums->fault);
}

/* ------------------------------------------------------------------------------------ inserting -- */

/* find_next_csum_offset(): where the item behind the path begins; UINT64_MAX: there is none. */
static uint64_t next_csum(const struct csums *csums)
{
	const struct bm_path *path = &csums->path;
	struct bm_key key;

	if (path->slot[0] + 1 < block_header(path->node[0])->nritems)
		key = to_key(&leaf_item(path->node[0], path->slot[0] + 1)->key);
	else if (!bm_path_upper_bound(path, &key))
		return UINT64_MAX;
	return is_csum(&key) ? key.offset : UINT64_MAX;
}

/* What btrfs_lookup_csum() finds at an address. */
enum found {
	FOUND_ITEM, /* the path's item has a checksum for it */
	FOUND_END,  /* the path's item ends there */
	FOUND_NONE, /* neither */
};

/* *index: which checksum of the item it is or would be. */
static int lookup_csum(struct csums *csums, uint64_t *index)
{
	struct bm_key key = csum_key(csums->bytenr), found;
	int ret = search(csums, &key, 0, BM_SEARCH_INSERT);

	*index = 0;
	if (ret <= 0)
		return ret < 0 ? ret : FOUND_ITEM;
	if (!csums->path.slot[0])
		return FOUND_NONE;
	csums->path.slot[0]--;
	found = key_here(csums);
	if (!is_csum(&found))
		return FOUND_NONE;
	*index = (csums->bytenr - found.offset) / csums->writer->sectorsize;
	if (*index > count_here(csums))
		return FOUND_NONE;
	return *index == count_here(csums) ? FOUND_END : FOUND_ITEM;
}

/*
 * Let the item that ends at the address grow by as many checksums as fit. 1: it cannot. In a log,
 * which may have checksums further on, not past the next item.
 */
static int extend_item(struct csums *csums, uint64_t *index)
{
	struct bm_key key = csum_key(csums->bytenr), found;
	uint64_t more = sectors(csums, csums->bytenr, csums->end, csums->max_items), room;
	int ret;

	if (count_here(csums) >= csums->max_items)
		return 1;
	if (bm_leaf_free(csums->writer, csums->path.node[0]) < csums->size) {
		ret = search(csums, &key, (int)csums->size, BM_SEARCH_EXTEND);
		if (ret < 0)
			return ret;
		if (ret && !csums->path.slot[0])
			return 1;
		if (ret)
			csums->path.slot[0]--;
	}
	found = key_here(csums);
	*index = (csums->bytenr - found.offset) / csums->writer->sectorsize;
	if (!is_csum(&found) || *index >= csums->max_items || *index != count_here(csums))
		return 1;
	if (csums->tree->owner == TREE_LOG_OBJECTID) {
		if (csums->path.slot[0] + 1 >= block_header(csums->path.node[0])->nritems)
			return 1;
		more = sectors(csums, csums->bytenr, next_csum(csums), more);
	}
	if (more > csums->max_items - *index)
		more = csums->max_items - *index;
	room = bm_leaf_free(csums->writer, csums->path.node[0]) / csums->size;
	if (more > room)
		more = room;
	bm_extend_item(csums->writer, &csums->path, (uint32_t)(more * csums->size));
	return BM_OK;
}

/* A new item: for one checksum behind a full item, otherwise for all up to the next item. */
static int insert_item(struct csums *csums, uint64_t limit)
{
	struct bm_key key = csum_key(csums->bytenr);
	uint32_t size = (uint32_t)(limit ? limit : 1) * csums->size;
	int ret = search(csums, &key, (int)(size + BTRFS_ITEM_SIZE), BM_SEARCH_INSERT);

	if (ret <= 0)
		return ret < 0 ? ret : bm_writer_errno(csums->fault, csums->tree, EEXIST);
	return bm_setup_items_for_insert(csums->writer, &csums->path, &key, &size, 1, csums->fault);
}

/* Make the path's item hold a checksum for the address: the one at *index. */
static int make_room(struct csums *csums, uint64_t *index)
{
	int found = lookup_csum(csums, index), ret;
	uint64_t limit = 1;

	if (found < 0 || found == FOUND_ITEM)
		return found;
	if (found == FOUND_NONE) {
		limit = sectors(csums, csums->bytenr, csums->end, csums->max_items);
		limit = sectors(csums, csums->bytenr, next_csum(csums), limit);
	} else {
		ret = extend_item(csums, index);
		if (ret <= 0)
			return ret;
		/* a log's item that is the last of its leaf does not grow */
		if (csums->tree->owner == TREE_LOG_OBJECTID && *index < csums->max_items) {
			limit = sectors(csums, csums->bytenr, csums->end, csums->max_items);
			limit = sectors(csums, csums->bytenr, next_csum(csums), limit);
		}
	}
	*index = 0;
	return insert_item(csums, limit);
}

int bm_writer_insert_csums(struct bm_writer *writer, uint64_t tree, uint64_t bytenr,
			   const uint8_t *sums, size_t count, struct bm_fault *fault)
{
	struct csums csums;

	if (count > UINT64_MAX / writer->sectorsize)
		return bm_writer_errno(fault, NULL, EINVAL);
	if (start_csums(&csums, writer, tree, bytenr, count * writer->sectorsize, fault) < 0)
		return fault->code;
	while (csums.bytenr < csums.end) {
		uint64_t index, fits;
		uint8_t *data;

		if (make_room(&csums, &index) < 0)
			return fault->code;
		data =
		    bm_writer_writable(writer, item_data(csums.path.node[0], csums.path.slot[0]));
		fits = sectors(&csums, csums.bytenr, csums.end, count_here(&csums) - index);
		if (!fits)
			return bm_writer_errno(fault, csums.tree, EUCLEAN);
		BM_ASSERT(bm_path_is_sound(writer, csums.tree, &csums.path) &&
			  index + fits <= count_here(&csums));
		memcpy(data + index * csums.size, sums, fits * csums.size);
		sums += fits * csums.size;
		csums.bytenr += fits * writer->sectorsize;
	}
	return BM_OK;
}

/* ------------------------------------------------------------------------------------- deleting -- */

/* btrfs_split_item(): the item of the path keeps `keep` checksums, the rest gets a key of its own. */
static int split_item(struct csums *csums, uint32_t keep)
{
	struct bm_writer *writer = csums->writer;
	struct bm_key old = key_here(csums), key = csum_key(csums->bytenr);
	uint32_t rest = (count_here(csums) - keep) * csums->size;
	uint8_t *tail = malloc(rest);
	int ret;

	if (!tail)
		return bm_fail(csums->fault, (struct bm_fault){.code = BM_NOMEM});
	if (bm_leaf_free(writer, csums->path.node[0]) < BTRFS_ITEM_SIZE) {
		ret = search(csums, &old, BTRFS_ITEM_SIZE, BM_SEARCH_SPLIT);
		if (ret) {
			free(tail);
			return ret < 0 ? ret : bm_writer_errno(csums->fault, csums->tree, EUCLEAN);
		}
	}
	memcpy(tail,
	       item_data(csums->path.node[0], csums->path.slot[0]) + (size_t)keep * csums->size,
	       rest);
	bm_truncate_item(writer, &csums->path, keep * csums->size, 0);
	csums->path.slot[0]++;
	ret = bm_setup_items_for_insert(writer, &csums->path, &key, &rest, 1, csums->fault);
	if (!ret)
		memcpy(
		    bm_writer_writable(writer, item_data(csums->path.node[0], csums->path.slot[0])),
		    tail, rest);
	free(tail);
	BM_ASSERT(ret || bm_path_is_sound(writer, csums->tree, &csums->path));
	return ret;
}

/* The item of the path starts inside the range and ends behind it: its start is cut off. */
static int cut_start(struct csums *csums, uint64_t item_end)
{
	struct bm_writer *writer = csums->writer;
	struct bm_key key = csum_key(csums->end);
	uint32_t keep = (uint32_t)((item_end - csums->end) / writer->sectorsize);
	uint8_t *leaf = bm_writer_writable(writer, csums->path.node[0]);

	/* in a damaged tree, where items overlap: btrfs_set_item_key_safe() refuses */
	if (next_csum(csums) <= csums->end)
		return bm_fail(csums->fault, (struct bm_fault){.code = BM_BAD_KEY_ORDER,
							       .tree = csums->tree->owner,
							       .block = block_header(leaf)->bytenr,
							       .slot = csums->path.slot[0]});
	bm_truncate_item(writer, &csums->path, keep * csums->size, 1);
	item_of(leaf, csums->path.slot[0])->key = to_disk_key(&key);
	if (!csums->path.slot[0] && bm_fixup_low_keys(&csums->path, &key, 1, csums->fault) < 0)
		return csums->fault->code;
	BM_ASSERT(bm_path_is_sound(writer, csums->tree, &csums->path) &&
		  bm_leaf_is_sound(writer, leaf));
	return BM_OK;
}

/* Delete the item of the path, and those before it in the leaf that lie in the range. */
static int delete_items(struct csums *csums, uint64_t *lowest)
{
	uint32_t slot = csums->path.slot[0], count = 1;

	*lowest = key_here(csums).offset;
	while (slot > 0) {
		struct bm_key before = to_key(&leaf_item(csums->path.node[0], slot - 1)->key);

		if (!is_csum(&before) || before.offset < csums->bytenr)
			break;
		*lowest = before.offset;
		slot--;
		count++;
	}
	csums->path.slot[0] = slot;
	return bm_del_items(csums->writer, csums->tree, &csums->path, slot, count, csums->fault);
}

/* The last item that reaches into the range; 1: there is none (any more). */
static int delete_last(struct csums *csums)
{
	struct bm_key key = csum_key(csums->end - 1);
	uint64_t item_end, lowest;
	int ret = search(csums, &key, -1, BM_SEARCH_INSERT);

	if (ret < 0)
		return ret;
	if (ret) {
		if (!csums->path.slot[0])
			return 1;
		csums->path.slot[0]--;
	}
	key = key_here(csums);
	item_end = key.offset + (uint64_t)count_here(csums) * csums->writer->sectorsize;
	if (!is_csum(&key) || item_end <= csums->bytenr)
		return 1;
	if (key.offset >= csums->bytenr && item_end <= csums->end) {
		if (delete_items(csums, &lowest) < 0)
			return csums->fault->code;
		return lowest == csums->bytenr;
	}
	if (key.offset >= csums->bytenr)
		return cut_start(csums, item_end);
	ret = (int)((csums->bytenr - key.offset) / csums->writer->sectorsize);
	if (item_end > csums->end)
		return split_item(csums, (uint32_t)ret);
	bm_truncate_item(csums->writer, &csums->path, (uint32_t)ret * csums->size, 0);
	return 1;
}

int bm_writer_delete_csums(struct bm_writer *writer, uint64_t tree, uint64_t bytenr,
			   uint64_t length, struct bm_fault *fault)
{
	struct csums csums;
	int ret = start_csums(&csums, writer, tree, bytenr, length, fault);

	while (!ret && length)
		ret = delete_last(&csums);
	return ret < 0 ? ret : BM_OK;
}
