// SPDX-License-Identifier: GPL-2.0-only
/*
 * Searching and walking b-trees: the functions of the kernel's ctree.c that read.
 *
 * A search descends from the root: at each node the last key <= the one sought is followed. Moving
 * to the next leaf is, in the kernel, a second search for the last key of the present leaf and one
 * step from there, so that is how it is counted; the descent itself is only carried out where a
 * cache of extent buffers is being modelled, because only there it has an effect.
 */
#include "image/internal.h"

#include <string.h>

enum { AHEAD_OF_LOOKUP = 4 }; /* children: as long as memory takes */

/* Without a branch: which way a search goes, no processor guesses. */
static uint32_t is_less(const uint8_t *disk, const struct bm_key *key)
{
	const struct btrfs_disk_key *at = (const struct btrfs_disk_key *)disk;
	uint32_t type =
	    (at->type < key->type) | ((at->type == key->type) & (at->offset < key->offset));

	return (at->objectid < key->objectid) | ((at->objectid == key->objectid) & type);
}

uint32_t bm_bin_search(const uint8_t *block, const struct bm_key *key, int *found)
{
	uint32_t slot = 0, left = block_header(block)->nritems;
	size_t stride = block_header(block)->level ? BTRFS_KEY_PTR_SIZE : BTRFS_ITEM_SIZE;
	const uint8_t *keys = block + BTRFS_HEADER_SIZE;

	*found = 0;
	if (!left)
		return 0;
	while (left > 1) {
		uint32_t half = left / 2;

		slot += is_less(keys + (slot + half - 1) * stride, key) ? half : 0;
		left -= half;
	}
	slot += is_less(keys + slot * stride, key);
	*found = slot < block_header(block)->nritems &&
		 compare_disk_key((const struct btrfs_disk_key *)(keys + slot * stride), key) == 0;
	return slot;
}

/*
 * bm_bin_search() in a leaf where the key is most likely near the slot `from`: away from there in steps
 * that double, until it is between two slots.
 */
static uint32_t search_around(const uint8_t *leaf, uint32_t from, const struct bm_key *key,
			      int *found)
{
	const uint8_t *keys = leaf + BTRFS_HEADER_SIZE;
	uint32_t low = 0, high = block_header(leaf)->nritems, step = 1;

	/* keys before `low` are less, the one at `high` is not */
	if (from < high && is_less(keys + from * BTRFS_ITEM_SIZE, key)) {
		for (low = from + 1; low < high; step *= 2) {
			uint32_t next = high - low < step ? high - 1 : low + step - 1;

			if (!is_less(keys + next * BTRFS_ITEM_SIZE, key)) {
				high = next;
				break;
			}
			low = next + 1;
		}
	} else {
		for (high = from < high ? from : high; low < high; step *= 2) {
			uint32_t before = high < step ? 0 : high - step;

			if (is_less(keys + before * BTRFS_ITEM_SIZE, key)) {
				low = before + 1;
				break;
			}
			high = before;
		}
	}
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (is_less(keys + middle * BTRFS_ITEM_SIZE, key))
			low = middle + 1;
		else
			high = middle;
	}
	*found = low < block_header(leaf)->nritems &&
		 compare_disk_key(&leaf_item(leaf, low)->key, key) == 0;
	return low;
}

/* The read of the child at `slot`. */
static struct bm_read read_of_child(const uint8_t *node, uint32_t slot, enum bm_read_by by,
				    int ahead)
{
	const struct btrfs_key_ptr *ptr = node_ptr(node, slot);

	return (struct bm_read){.logical = ptr->blockptr,
				.generation = ptr->generation,
				.level = (uint8_t)(block_header(node)->level - 1),
				.by = (uint8_t)by,
				.ahead = (uint8_t)ahead};
}

/* btrfs_readahead_node_child() */
static int readahead_node_child(struct bm_image *image, const uint8_t *node, uint32_t slot,
				enum bm_read_by by, struct bm_fault *fault)
{
	COUNT(image, btrfs_readahead_node_child);
	return bm_cache_submit(image, read_of_child(node, slot, by, 1), fault);
}

/*
 * reada_for_search() for BM_READA_FORWARD_ALWAYS: the next siblings of the child at `slot`, wherever
 * they lie. At the next leaf nearly all of them are asked for again; that they are there is known.
 */
static int reada_always(struct bm_image *image, const uint8_t *node, uint32_t slot,
			struct bm_fault *fault)
{
	const struct bm_readahead *ahead = &image->readahead;
	int level = block_header(node)->level;
	struct bm_asked *asked = &image->cache->asked[level];
	uint64_t limit = level > 1 ? ahead->always_nodes : ahead->always_leaves;
	uint64_t count = block_header(node)->nritems - 1 - slot;
	uint32_t next = slot + 1, end;

	/* until more than the limit is asked for, or one sibling more than that many is looked at */
	if (count > limit / image->nodesize)
		count = limit / image->nodesize + 1;
	if (count > ahead->siblings)
		count = ahead->siblings + 1;
	end = next + (uint32_t)count;
	COUNT_N(image, btrfs_readahead_node_child, count);
	if (asked->node != node || next < asked->first || next > asked->end)
		*asked = (struct bm_asked){node, next, next};
	for (; asked->end < end; asked->end++) {
		if (asked->end + AHEAD_OF_LOOKUP < block_header(node)->nritems)
			bm_cache_prefetch(image,
					  node_ptr(node, asked->end + AHEAD_OF_LOOKUP)->blockptr);
		if (bm_cache_submit(image,
				    read_of_child(node, asked->end, BM_READ_BY_reada_for_search, 1),
				    fault) < 0)
			return BM_NOMEM;
	}
	return BM_OK;
}

/*
 * reada_for_search(): read ahead the siblings of the child at `slot`.
 *
 * BM_READA_BACK and BM_READA_FORWARD act on leaves alone, and take only siblings near the child.
 */
static int reada_for_search(struct bm_image *image, const struct bm_path *path, int level,
			    uint32_t slot, uint64_t objectid, struct bm_fault *fault)
{
	const uint8_t *node = path->node[level];
	const struct bm_readahead *ahead = &image->readahead;
	uint64_t nread = 0, nscan = 0, target;

	COUNT(image, reada_for_search);
	if (!node)
		return BM_OK;
	if (path->reada == BM_READA_FORWARD_ALWAYS)
		return reada_always(image, node, slot, fault);
	target = node_ptr(node, slot)->blockptr;
	if (level != 1 || bm_cache_holds(image, target))
		return BM_OK;
	do {
		const struct btrfs_key_ptr *ptr;
		uint64_t distance;

		if (path->reada == BM_READA_BACK) {
			if (slot-- == 0)
				break;
		} else if (++slot >= block_header(node)->nritems) {
			break;
		}
		ptr = node_ptr(node, slot);
		if (path->reada == BM_READA_BACK && objectid && ptr->key.objectid != objectid)
			break;
		distance = ptr->blockptr > target ? ptr->blockptr - target : target - ptr->blockptr;
		if (distance <= ahead->distance) {
			if (readahead_node_child(image, node, slot, BM_READ_BY_reada_for_search,
						 fault) < 0)
				return BM_NOMEM;
			nread += image->nodesize;
		}
		nscan++;
	} while (nread <= ahead->near && nscan <= ahead->siblings);
	return BM_OK;
}

static const uint8_t *block_of_root(const struct bm_root *root, struct bm_fault *fault)
{
	struct bm_expect expect = {
	    .tree = root->objectid, .generation = root->generation, .level = root->level};

	return bm_image_block(root->image, root->bytenr, &expect, fault);
}

static const uint8_t *block_of_child(const struct bm_root *root, const uint8_t *node, uint32_t slot,
				     struct bm_fault *fault)
{
	const struct btrfs_key_ptr *ptr = node_ptr(node, slot);
	struct bm_expect expect = {.tree = root->objectid,
				   .generation = ptr->generation,
				   .level = block_header(node)->level - 1};
	const uint8_t *child = bm_image_block(root->image, ptr->blockptr, &expect, fault);
	struct bm_key wanted = to_key(&ptr->key);

	if (!child)
		return NULL;
	/* btrfs_verify_level_key(): a leaf or node that starts elsewhere is not this child */
	if (!block_header(child)->nritems || compare_disk_key(block_key(child, 0), &wanted) != 0) {
		bm_fail(fault, (struct bm_fault){.code = BM_BAD_FIRST_KEY,
						 .slot = slot,
						 .tree = root->objectid,
						 .block = ptr->blockptr});
		return NULL;
	}
	return child;
}

int bm_check_last_key(const struct bm_root *root, const uint8_t **node, const uint32_t *slot,
		      const uint8_t *block, struct bm_fault *fault)
{
	const struct btrfs_header *header = block_header(block);
	struct bm_key last;

	if (!header->nritems)
		return BM_OK;
	last = to_key(block_key(block, header->nritems - 1));
	for (int level = header->level + 1; level < BTRFS_MAX_LEVEL && node[level]; level++) {
		uint32_t next = slot[level] + 1;

		if (next < block_header(node[level])->nritems &&
		    compare_disk_key(&node_ptr(node[level], next)->key, &last) <= 0)
			return bm_fail(fault,
				       (struct bm_fault){.code = BM_BAD_LAST_KEY,
							 .slot = slot[level],
							 .tree = root->objectid,
							 .block = block_header(node[level])->bytenr,
							 .found = header->bytenr});
	}
	return BM_OK;
}

const uint8_t *bm_read_block_for_search(const struct bm_root *root, struct bm_path *path, int level,
					uint64_t objectid, enum bm_read_by by, int *restart,
					struct bm_fault *fault)
{
	struct bm_image *image = root->image;
	const uint8_t *node = path->node[level];
	uint32_t slot = path->slot[level];

	COUNT(image, read_block_for_search);
	*restart = 0;
	if (image->cache) {
		int cached = bm_cache_holds(image, node_ptr(node, slot)->blockptr);
		int always = path->reada == BM_READA_FORWARD_ALWAYS && !path->reada_missing;

		if (always || (!cached && path->reada != BM_READA_NONE)) {
			if (reada_for_search(image, path, level, slot, objectid, fault) < 0)
				return NULL;
		}
		if (bm_cache_submit(image, read_of_child(node, slot, by, 0), fault) < 0)
			return NULL;
		if (!cached) {
			COUNT(image, read_tree_block);
			*restart = path->restart;
		}
	}
	return block_of_child(root, node, slot, fault);
}

const uint8_t *bm_read_node_slot(const struct bm_root *root, const uint8_t *node, uint32_t slot,
				 uint64_t newer_than, struct bm_fault *fault)
{
	struct bm_image *image = root->image;
	const struct bm_readahead *ahead = &image->readahead;
	int level = block_header(node)->level;
	uint64_t limit = level == 1 ? ahead->compare_leaves : ahead->compare_nodes, nread = 0;

	COUNT(image, read_tree_block);
	if (image->cache) {
		struct bm_read read = read_of_child(node, slot, BM_READ_BY_btrfs_read_node_slot, 0);

		if (bm_cache_submit(image, read, fault) < 0)
			return NULL;
		for (uint32_t next = slot + 1; next < block_header(node)->nritems && nread < limit;
		     next++) {
			if (node_ptr(node, next)->generation <= newer_than)
				continue;
			if (readahead_node_child(image, node, next, BM_READ_BY_tree_move_down,
						 fault) < 0)
				return NULL;
			nread += image->nodesize;
		}
	}
	return block_of_child(root, node, slot, fault);
}

static struct bm_read read_of_root(const struct bm_root *root)
{
	return (struct bm_read){.logical = root->bytenr,
				.generation = root->generation,
				.level = (uint8_t)root->level,
				.by = BM_READ_BY_read_tree_block};
}

static int is_before(const struct bm_key *a, const struct bm_key *b)
{
	return compare_keys(a->objectid, a->type, a->offset, b) < 0;
}

static struct bm_near_leaf *leaf_near(struct bm_near *near, const struct bm_key *key)
{
	const uint32_t count = sizeof(near->leaves) / sizeof(near->leaves[0]);

	/* most likely the same one again */
	for (uint32_t i = 0; i < count; i++) {
		uint32_t at = (near->hit + i) % count;
		struct bm_near_leaf *leaf = &near->leaves[at];

		if (is_before(key, &leaf->behind) && !is_before(key, &leaf->first)) {
			near->hit = at;
			return leaf;
		}
	}
	return NULL;
}

/* The path of a search, and between which keys each search takes it. */
static void remember_leaf(struct bm_near *near, const struct bm_path *path)
{
	struct bm_near_leaf *leaf =
	    &near->leaves[near->hit =
			      near->next++ % (sizeof(near->leaves) / sizeof(near->leaves[0]))];

	/* no key is before `behind` of an empty leaf */
	*leaf = (struct bm_near_leaf){0};
	if (!block_header(path->node[0])->nritems)
		return;
	memcpy(leaf->node, path->node, sizeof(leaf->node));
	memcpy(leaf->slot, path->slot, sizeof(leaf->slot));
	leaf->last = path->slot[0];
	leaf->first = to_key(&leaf_item(path->node[0], 0)->key);
	leaf->behind = (struct bm_key){UINT64_MAX, UINT64_MAX, UINT8_MAX};
	for (int level = 1; level < BTRFS_MAX_LEVEL && path->node[level]; level++) {
		uint32_t next = path->slot[level] + 1;

		if (next < block_header(path->node[level])->nritems &&
		    compare_disk_key(block_key(path->node[level], next), &leaf->behind) < 0)
			leaf->behind = to_key(block_key(path->node[level], next));
	}
}

int bm_search_slot(const struct bm_root *root, const struct bm_key *key, struct bm_path *path,
		   struct bm_fault *fault)
{
	struct bm_image *image = root->image;
	/* a search that reads, or ends above the leaves, takes its own way */
	struct bm_near *near = image->cache || path->lowest_level ? NULL : root->near;
	struct bm_near_leaf *leaf = near ? leaf_near(near, key) : NULL;
	const uint8_t *block;
	int found = 0, restart, level;

	COUNT(image, btrfs_search_slot);
	if (leaf) {
		COUNT_N(image, read_block_for_search, (uint64_t)root->level);
		memcpy(path->node, leaf->node, sizeof(path->node));
		memcpy(path->slot, leaf->slot, sizeof(path->slot));
		path->slot[0] = leaf->last = search_around(path->node[0], leaf->last, key, &found);
		return !found;
	}
again:
	memset(path->node, 0, sizeof(path->node));
	block = block_of_root(root, fault);
	if (!block)
		return fault->code;
	if (image->cache && bm_cache_submit(image, read_of_root(root), fault) < 0)
		return BM_NOMEM;
	for (;;) {
		uint32_t slot = bm_bin_search(block, key, &found);

		level = block_header(block)->level;
		path->node[level] = block;
		path->slot[level] = slot;
		if (level == 0 || level == path->lowest_level) {
			if (near)
				remember_leaf(near, path);
			return found ? 0 : 1;
		}
		if (!found && slot > 0)
			path->slot[level] = --slot;
		block = bm_read_block_for_search(root, path, level, key->objectid,
						 BM_READ_BY_btrfs_search_slot, &restart, fault);
		if (!block)
			return fault->code;
		if (restart)
			goto again;
	}
}

/* Whether a search for the last key of the leaf goes down the path that is there, all in memory. */
static int leads_back(const struct bm_root *root, const struct bm_path *path,
		      const struct bm_key *last)
{
	int top = root->level;

	if (path->lowest_level || top < 0 || top >= BTRFS_MAX_LEVEL - 1 || path->node[top + 1] ||
	    !path->node[top] || block_header(path->node[top])->bytenr != root->bytenr ||
	    !bm_cache_holds(root->image, root->bytenr))
		return 0;
	for (int level = top; level > 0; level--) {
		const uint8_t *node = path->node[level], *child = path->node[level - 1];
		uint32_t slot = path->slot[level], nritems = block_header(node)->nritems;

		if (!child || slot >= nritems ||
		    node_ptr(node, slot)->blockptr != block_header(child)->bytenr ||
		    (slot + 1 < nritems &&
		     compare_disk_key(&node_ptr(node, slot + 1)->key, last) <= 0) ||
		    !bm_cache_holds(root->image, node_ptr(node, slot)->blockptr))
			return 0;
	}
	return 1;
}

/* What a search down that path counts and reads ahead. */
static int search_back(const struct bm_root *root, struct bm_path *path, uint64_t objectid,
		       struct bm_fault *fault)
{
	struct bm_image *image = root->image;
	int always = path->reada == BM_READA_FORWARD_ALWAYS && !path->reada_missing;

	COUNT(image, btrfs_search_slot);
	COUNT_N(image, read_block_for_search, (uint64_t)root->level);
	if (bm_cache_submit(image, read_of_root(root), fault) < 0)
		return BM_NOMEM;
	for (int level = root->level; level > 0; level--) {
		uint32_t slot = path->slot[level];
		struct bm_read read =
		    read_of_child(path->node[level], slot, BM_READ_BY_btrfs_search_slot, 0);

		if ((always && reada_for_search(image, path, level, slot, objectid, fault) < 0) ||
		    bm_cache_submit(image, read, fault) < 0)
			return BM_NOMEM;
	}
	path->slot[0] = block_header(path->node[0])->nritems - 1;
	return BM_OK;
}

int bm_next_leaf(const struct bm_root *root, struct bm_path *path, struct bm_fault *fault)
{
	struct bm_image *image = root->image;
	uint32_t nritems = block_header(path->node[0])->nritems;
	const uint8_t *block;
	struct bm_key last;
	int level, restart;

	COUNT(image, btrfs_next_old_leaf);
	if (!nritems)
		return 1;
	if (bm_poll(fault) < 0 ||
	    bm_check_last_key(root, path->node, path->slot, path->node[0], fault) < 0)
		return fault->code;
	last = to_key(&leaf_item(path->node[0], nritems - 1)->key);
again:
	if (image->cache) {
		int ret = leads_back(root, path, &last)
			      ? search_back(root, path, last.objectid, fault)
			      : bm_search_slot(root, &last, path, fault);

		if (ret < 0)
			return ret;
	} else {
		COUNT(image, btrfs_search_slot);
		COUNT_N(image, read_block_for_search, (uint64_t)root->level);
	}
	for (level = 1; level < BTRFS_MAX_LEVEL && path->node[level]; level++)
		if (path->slot[level] + 1 < block_header(path->node[level])->nritems)
			break;
	if (level == BTRFS_MAX_LEVEL || !path->node[level])
		return 1;
	path->slot[level]++;
	for (;;) {
		block = bm_read_block_for_search(root, path, level, last.objectid,
						 BM_READ_BY_btrfs_next_old_leaf, &restart, fault);
		if (!block)
			return fault->code;
		if (restart)
			goto again;
		level--;
		path->node[level] = block;
		path->slot[level] = 0;
		if (!level)
			return 0;
	}
}

int bm_prev_leaf(const struct bm_root *root, struct bm_path *path, struct bm_fault *fault)
{
	const uint8_t *block;
	int level;

	for (level = 1; level < BTRFS_MAX_LEVEL && path->node[level]; level++)
		if (path->slot[level] > 0)
			break;
	if (level == BTRFS_MAX_LEVEL || !path->node[level])
		return 1;
	path->slot[level]--;
	for (;;) {
		block = block_of_child(root, path->node[level], path->slot[level], fault);
		if (!block)
			return fault->code;
		level--;
		path->node[level] = block;
		/* a block that a node points at is never empty: block_of_child() saw its first key */
		path->slot[level] = block_header(block)->nritems - 1;
		if (!level)
			return bm_check_last_key(root, path->node, path->slot, block, fault);
	}
}

int bm_search_slot_for_read(const struct bm_root *root, const struct bm_key *key, int find_higher,
			    struct bm_path *path, struct bm_fault *fault)
{
	int ret;

	COUNT(root->image, btrfs_search_slot_for_read);
	ret = bm_search_slot(root, key, path, fault);
	if (ret <= 0)
		return ret;
	if (find_higher) {
		if (path->slot[0] < block_header(path->node[0])->nritems)
			return 0;
		return bm_next_leaf(root, path, fault);
	}
	if (path->slot[0] > 0) {
		path->slot[0]--;
		return 0;
	}
	return bm_prev_leaf(root, path, fault);
}

int bm_has_keys(const struct bm_root *root, const struct bm_key *keys, size_t count, uint8_t *there,
		struct bm_fault *fault)
{
	for (size_t i = 0; i < count; i++) {
		struct bm_path path = {0};
		int ret = bm_poll(fault);

		if (!ret)
			ret = bm_search_slot_for_read(root, &keys[i], 1, &path, fault);
		if (ret < 0)
			return ret;
		there[i] = !ret &&
			   !compare_disk_key(&leaf_item(path.node[0], path.slot[0])->key, &keys[i]);
	}
	return BM_OK;
}

/* ----------------------------------------------------------------------------------- scans -- */

/* To the leaf that holds the first key >= min; 1 when the tree has none. */
static int scan_start(const struct bm_root *root, const struct bm_key *min, struct bm_path *path,
		      struct bm_fault *fault)
{
	int ret;

	memset(path, 0, sizeof(*path));
	ret = bm_search_slot(root, min, path, fault);
	if (ret < 0)
		return ret;
	if (path->slot[0] >= block_header(path->node[0])->nritems)
		return bm_next_leaf(root, path, fault);
	return 0;
}

/* Whether the leaf of `path` starts beyond `max`. */
static int past(const struct bm_path *path, const struct bm_key *max)
{
	return compare_disk_key(&leaf_item(path->node[0], path->slot[0])->key, max) > 0;
}

int64_t bm_scan_bound(const struct bm_root *root, const struct bm_key *min,
		      const struct bm_key *max, struct bm_fault *fault)
{
	struct bm_image *image = root->image;
	uint64_t *work = image->work;
	struct bm_path path;
	int64_t total = 0;
	int ret;

	/* finding out how much memory the scan needs is not the work that is being counted */
	image->work = image->ignored;
	for (ret = scan_start(root, min, &path, fault); ret == 0;
	     ret = bm_next_leaf(root, &path, fault)) {
		if (past(&path, max))
			break;
		total += block_header(path.node[0])->nritems;
	}
	image->work = work;
	return ret < 0 ? ret : total;
}

int64_t bm_scan(const struct bm_root *root, const struct bm_key *min, const struct bm_key *max,
		const struct bm_columns *columns, size_t capacity, struct bm_fault *fault)
{
	struct bm_image *image = root->image;
	struct bm_path path;
	size_t row = 0;
	int ret;

	for (ret = scan_start(root, min, &path, fault); ret == 0;
	     ret = bm_next_leaf(root, &path, fault)) {
		const uint8_t *leaf = path.node[0];
		uint32_t end = block_header(leaf)->nritems, slot = path.slot[0];
		uint64_t data = (uint64_t)(leaf - image->blocks) + BTRFS_HEADER_SIZE;
		uint64_t logical = block_header(leaf)->bytenr;
		int last_leaf = compare_disk_key(&leaf_item(leaf, end - 1)->key, max) > 0;

		COUNT(image, leaves_visited);
		if (last_leaf) {
			int found;

			end = bm_bin_search(leaf, max, &found);
			end += (uint32_t)found;
		}
		if (end > slot && end - slot > capacity - row)
			return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
		for (; slot < end; slot++, row++) {
			const struct btrfs_item *item = leaf_item(leaf, slot);

			columns->objectid[row] = item->key.objectid;
			columns->type[row] = item->key.type;
			columns->offset[row] = item->key.offset;
			columns->block[row] = logical;
			columns->slot[row] = (uint16_t)slot;
			columns->position[row] = data + item->offset;
			columns->size[row] = item->size;
		}
		if (last_leaf)
			break;
	}
	COUNT_N(image, items_visited, row);
	return ret < 0 ? ret : (int64_t)row;
}

int64_t bm_visit_leaves(const struct bm_root *root, const struct bm_key *min,
			const struct bm_key *max, int32_t reada, struct bm_fault *fault)
{
	struct bm_path path = {.reada = reada};
	int64_t count = 0;
	int ret = bm_search_slot_for_read(root, min, 1, &path, fault);

	while (!ret) {
		uint32_t nritems = block_header(path.node[0])->nritems;

		count++;
		if (compare_disk_key(&leaf_item(path.node[0], nritems - 1)->key, max) > 0)
			break;
		ret = bm_next_leaf(root, &path, fault);
	}
	return ret < 0 ? ret : count;
}

static void describe_block(struct bm_block *out, const uint8_t *block, const uint8_t *parent,
			   uint32_t parent_slot, uint32_t nodesize)
{
	const struct btrfs_header *header = block_header(block);
	uint32_t entry = header->level ? BTRFS_KEY_PTR_SIZE : BTRFS_ITEM_SIZE;

	*out = (struct bm_block){
	    .logical = header->bytenr,
	    .generation = header->generation,
	    .owner = header->owner,
	    .flags = header->flags,
	    .parent = parent ? block_header(parent)->bytenr : 0,
	    .parent_slot = parent_slot,
	    .nritems = header->nritems,
	    .used = header->nritems * entry,
	    .level = header->level,
	};
	if (!header->nritems)
		return;
	out->first = to_key(block_key(block, 0));
	out->last = to_key(block_key(block, header->nritems - 1));
	if (!header->level)
		out->used +=
		    nodesize - BTRFS_HEADER_SIZE - leaf_item(block, header->nritems - 1)->offset;
}

int bm_describe_blocks(struct bm_image *image, const uint64_t *addresses, size_t count,
		       struct bm_block *blocks, struct bm_fault *fault)
{
	static const struct bm_expect any = {.level = -1};

	for (size_t i = 0; i < count; i++) {
		const uint8_t *block = bm_image_block(image, addresses[i], &any, fault);

		if (!block || bm_poll(fault) < 0)
			return fault->code;
		describe_block(&blocks[i], block, NULL, 0, image->nodesize);
	}
	return BM_OK;
}

int64_t bm_walk_blocks(const struct bm_root *root, int min_level, struct bm_block *blocks,
		       size_t capacity, struct bm_fault *fault)
{
	struct bm_image *image = root->image;
	struct bm_path path = {0};
	const uint8_t *block = block_of_root(root, fault), *parent = NULL;
	int level = root->level;
	size_t count = 0, leaves = 0;

	if (!block)
		return fault->code;
	if (level < min_level)
		return 0;
	for (;;) {
		leaves += !block_header(block)->level;
		if (count < capacity)
			describe_block(&blocks[count], block, parent,
				       parent ? path.slot[level + 1] : 0, image->nodesize);
		count++;
		path.node[level] = block;
		path.slot[level] = 0;
		if (level <= min_level) {
			do {
				if (++level > root->level)
					goto end;
			} while (++path.slot[level] >= block_header(path.node[level])->nritems);
		}
		parent = path.node[level];
		block = block_of_child(root, parent, path.slot[level], fault);
		if (!block || bm_poll(fault) < 0 ||
		    bm_check_last_key(root, path.node, path.slot, block, fault) < 0)
			return fault->code;
		level--;
	}
end:
	if (count <= capacity) {
		COUNT_N(image, leaves_visited, leaves);
		COUNT_N(image, nodes_visited, count - leaves);
	}
	return (int64_t)count;
}
