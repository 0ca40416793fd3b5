// SPDX-License-Identifier: GPL-2.0-only
/*
 * Changing items by key: each function is a search for changes and one change, like its model in
 * the kernel. What can be refused is refused before anything is changed, except that the blocks of
 * the path may have been copied.
 */
#include "writer.h"

#include <errno.h>
#include <string.h>

static uint8_t *payload(const struct bm_writer *writer, const struct bm_path *path)
{
	return bm_writer_writable(writer, item_data(path->node[0], path->slot[0]));
}

static uint32_t payload_size(const struct bm_path *path)
{
	return leaf_item(path->node[0], path->slot[0])->size;
}

/* The item with exactly this key, which is there: its path may be written to. */
static int find_item(struct bm_writer *writer, struct bm_writer_tree *tree,
		     const struct bm_key *key, struct bm_path *path, struct bm_fault *fault)
{
	int ret = bm_writer_search(writer, tree, key, 0, BM_SEARCH_INSERT, path, fault);

	return ret == 1 ? bm_writer_errno(fault, tree, ENOENT) : ret;
}

/* A look at what is there, which the kernel does not take: it is not counted. */
static int look(struct bm_writer *writer, const struct bm_writer_tree *tree,
		const struct bm_key *key, struct bm_path *path, struct bm_fault *fault)
{
	uint64_t *work = writer->image->work;
	int ret;

	writer->image->work = writer->image->own_work;
	ret = bm_writer_find(writer, tree, key, path, fault);
	writer->image->work = work;
	return ret;
}

/* Whether the key is there, without touching anything. */
static int must_exist(struct bm_writer *writer, const struct bm_writer_tree *tree,
		      const struct bm_key *key, struct bm_path *path, struct bm_fault *fault)
{
	int ret = look(writer, tree, key, path, fault);

	return ret == 1 ? bm_writer_errno(fault, tree, ENOENT) : ret;
}

static int compare(const struct bm_key *a, const struct bm_key *b)
{
	return compare_keys(a->objectid, a->type, a->offset, b);
}

/* ------------------------------------------------------------------------------- insertion -- */

/* Several items side by side: their keys ascend, and no item lies between them. */
static int check_batch(struct bm_writer *writer, const struct bm_writer_tree *tree,
		       const struct bm_key *keys, size_t count, struct bm_fault *fault)
{
	struct bm_path path = {0};
	struct bm_key bound;
	int ret;

	for (size_t i = 1; i < count; i++)
		if (compare(&keys[i - 1], &keys[i]) >= 0)
			return bm_writer_errno(fault, tree, EINVAL);
	ret = look(writer, tree, keys, &path, fault);
	if (ret < 0)
		return ret;
	if (!ret)
		return BM_OK; /* EEXIST, where the kernel says so */
	if (path.slot[0] < block_header(path.node[0])->nritems)
		bound = to_key(&leaf_item(path.node[0], path.slot[0])->key);
	else if (!bm_path_upper_bound(&path, &bound))
		return BM_OK;
	if (compare(&keys[count - 1], &bound) >= 0)
		return bm_writer_errno(fault, tree, EINVAL);
	return BM_OK;
}

int bm_writer_insert(struct bm_writer *writer, uint64_t id, const struct bm_key *keys,
		     const uint32_t *sizes, size_t count, const uint8_t *data,
		     struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	struct bm_path path = {0};
	uint64_t total = 0;
	int ret;

	if (!tree)
		return fault->code;
	if (!count)
		return BM_OK;
	for (size_t i = 0; i < count; i++) {
		total += (uint64_t)sizes[i] + BTRFS_ITEM_SIZE;
		if (total > writer->leaf_size)
			return bm_writer_errno(fault, tree, EOVERFLOW);
	}
	if (count > 1 && check_batch(writer, tree, keys, count, fault) < 0)
		return fault->code;
	ret = bm_writer_search(writer, tree, keys, (int)total, BM_SEARCH_INSERT, &path, fault);
	if (ret <= 0)
		return ret < 0 ? ret : bm_writer_errno(fault, tree, EEXIST);
	if (bm_leaf_insert(writer, &path, keys, sizes, count, fault) < 0)
		return fault->code;
	for (size_t i = 0; i < count; i++, path.slot[0]++) {
		memcpy(payload(writer, &path), data, sizes[i]);
		data += sizes[i];
	}
	return BM_OK;
}

/*
 * The leaf of the last insertion, as long as a search for the next key would end there too and
 * would change nothing on its way.
 */
struct run {
	struct bm_path path;
	struct bm_key bound; /* keys of the leaf are less, if `bounded` */
	int bounded;
	int leftmost; /* there is no leaf before: any lower key belongs here as well */
	int usable;
};

static void start_run(const struct bm_writer *writer, struct run *run)
{
	const struct bm_path *path = &run->path;

	run->usable = run->leftmost = 1;
	for (int level = 1; level < BTRFS_MAX_LEVEL && path->node[level]; level++) {
		if (block_header(path->node[level])->nritems >= writer->node_ptrs - 3)
			run->usable = 0;
		if (path->slot[level])
			run->leftmost = 0;
	}
	run->bounded = bm_path_upper_bound(path, &run->bound);
}

/* Whether the search for `key` with room for `size` bytes may be left out. */
static int run_goes_on(const struct bm_writer *writer, const struct run *run,
		       const struct bm_key *key, uint32_t size)
{
	const uint8_t *leaf = run->path.node[0];

	return run->usable && bm_leaf_free(writer, leaf) >= size &&
	       (!run->bounded || compare(key, &run->bound) < 0) &&
	       (run->leftmost || compare_disk_key(&leaf_item(leaf, 0)->key, key) < 0);
}

/* The place for an item: 1, or 0 when the key is there. */
static int place_in_run(struct bm_writer *writer, struct bm_writer_tree *tree, struct run *run,
			const struct bm_key *key, uint32_t size, struct bm_fault *fault)
{
	int found;

	if (!run_goes_on(writer, run, key, size)) {
		int ret = bm_writer_search(writer, tree, key, (int)size, BM_SEARCH_INSERT,
					   &run->path, fault);

		if (ret > 0)
			start_run(writer, run);
		return ret;
	}
	/* the work of the search that is left out */
	COUNT(writer->image, btrfs_search_slot);
	COUNT_N(writer->image, read_block_for_search, (uint64_t)tree->level);
	run->path.slot[0] = bm_bin_search(run->path.node[0], key, &found);
	return !found;
}

int bm_writer_insert_each(struct bm_writer *writer, uint64_t id, const struct bm_key *keys,
			  const uint32_t *sizes, size_t count, const uint8_t *data,
			  struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	struct run run = {.usable = 0};

	if (!tree)
		return fault->code;
	for (size_t i = 0; i < count; i++) {
		int ret;

		if (sizes[i] > writer->leaf_size - BTRFS_ITEM_SIZE)
			return bm_writer_errno(fault, tree, EOVERFLOW);
		ret = place_in_run(writer, tree, &run, &keys[i], sizes[i] + BTRFS_ITEM_SIZE, fault);
		if (ret <= 0)
			return ret < 0 ? ret : bm_writer_errno(fault, tree, EEXIST);
		if (bm_leaf_insert(writer, &run.path, &keys[i], &sizes[i], 1, fault) < 0)
			return fault->code;
		memcpy(payload(writer, &run.path), data, sizes[i]);
		data += sizes[i];
		if (tree->force_cow)
			run.usable = 0;
	}
	return BM_OK;
}

/* ---------------------------------------------------------------------------------- one item -- */

int bm_writer_update(struct bm_writer *writer, uint64_t id, const struct bm_key *key,
		     uint32_t offset, const uint8_t *data, uint32_t size, struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	struct bm_path path = {0};

	if (!tree || find_item(writer, tree, key, &path, fault) < 0)
		return fault->code;
	if (offset > payload_size(&path) || size > payload_size(&path) - offset)
		return bm_writer_errno(fault, tree, EINVAL);
	memcpy(payload(writer, &path) + offset, data, size);
	return BM_OK;
}

int bm_writer_extend(struct bm_writer *writer, uint64_t id, const struct bm_key *key,
		     const uint8_t *data, uint32_t size, struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	struct bm_path path = {0};
	uint32_t before;

	if (!tree || must_exist(writer, tree, key, &path, fault) < 0)
		return fault->code;
	before = payload_size(&path);
	if ((uint64_t)before + size + BTRFS_ITEM_SIZE > writer->leaf_size)
		return bm_writer_errno(fault, tree, EOVERFLOW);
	if (bm_writer_search(writer, tree, key, (int)size, BM_SEARCH_EXTEND, &path, fault) < 0)
		return fault->code;
	bm_leaf_extend(writer, &path, size);
	memcpy(payload(writer, &path) + before, data, size);
	return BM_OK;
}

int bm_writer_truncate(struct bm_writer *writer, uint64_t id, const struct bm_key *key,
		       uint32_t new_size, int from_end, struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	struct bm_path path = {0};

	if (!tree || find_item(writer, tree, key, &path, fault) < 0)
		return fault->code;
	if (new_size > payload_size(&path))
		return bm_writer_errno(fault, tree, EINVAL);
	bm_leaf_truncate(writer, &path, new_size, from_end);
	return BM_OK;
}

/* Whether `key` sorts between the neighbours of the item of the path; BM_ERRNO when it does not. */
static int check_between(struct bm_writer *writer, const struct bm_writer_tree *tree,
			 const struct bm_path *path, const struct bm_key *key,
			 struct bm_fault *fault)
{
	const struct btrfs_disk_key *before = NULL;
	struct bm_path left = *path;
	struct bm_root root;
	struct bm_key bound;

	if (path->slot[0] + 1 < block_header(path->node[0])->nritems) {
		bound = to_key(&leaf_item(path->node[0], path->slot[0] + 1)->key);
		if (compare(key, &bound) >= 0)
			return bm_writer_errno(fault, tree, EINVAL);
	} else if (bm_path_upper_bound(path, &bound) && compare(key, &bound) >= 0) {
		return bm_writer_errno(fault, tree, EINVAL);
	}
	if (path->slot[0]) {
		before = &leaf_item(path->node[0], path->slot[0] - 1)->key;
	} else {
		int ret;

		if (bm_writer_root(writer, tree->id, &root, fault) < 0)
			return fault->code;
		ret = bm_prev_leaf(&root, &left, fault);
		if (ret < 0)
			return ret;
		if (!ret)
			before = &leaf_item(left.node[0], left.slot[0])->key;
	}
	if (before && compare_disk_key(before, key) >= 0)
		return bm_writer_errno(fault, tree, EINVAL);
	return BM_OK;
}

int bm_writer_set_key(struct bm_writer *writer, uint64_t id, const struct bm_key *from,
		      const struct bm_key *to, struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	struct bm_path path = {0};
	uint8_t *leaf;

	if (!tree || find_item(writer, tree, from, &path, fault) < 0 ||
	    check_between(writer, tree, &path, to, fault) < 0)
		return fault->code;
	leaf = bm_writer_writable(writer, path.node[0]);
	item_of(leaf, path.slot[0])->key = to_disk_key(to);
	if (!path.slot[0])
		bm_node_fix_low_keys(&path, to, 1);
	return BM_OK;
}

/* setup_leaf_for_split(): the item, in a leaf that has room for another like it. */
static int room_for_twin(struct bm_writer *writer, struct bm_writer_tree *tree,
			 const struct bm_key *key, struct bm_path *path, struct bm_fault *fault)
{
	uint32_t size;

	if (find_item(writer, tree, key, path, fault) < 0)
		return fault->code;
	size = payload_size(path) + BTRFS_ITEM_SIZE;
	if (bm_leaf_free(writer, path->node[0]) >= size)
		return BM_OK;
	if (bm_writer_search(writer, tree, key, 0, BM_SEARCH_SPLIT, path, fault) < 0)
		return fault->code;
	return bm_leaf_split(writer, tree, key, path, size, 1, fault);
}

int bm_writer_duplicate(struct bm_writer *writer, uint64_t id, const struct bm_key *from,
			const struct bm_key *to, struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	struct bm_path path = {0};
	const uint8_t *source;
	uint32_t size;

	if (!tree || must_exist(writer, tree, from, &path, fault) < 0)
		return fault->code;
	if (compare(from, to) >= 0)
		return bm_writer_errno(fault, tree, EINVAL);
	if (path.slot[0] + 1 < block_header(path.node[0])->nritems) {
		if (compare_disk_key(&leaf_item(path.node[0], path.slot[0] + 1)->key, to) <= 0)
			return bm_writer_errno(fault, tree, EINVAL);
	} else {
		struct bm_key bound;

		if (bm_path_upper_bound(&path, &bound) && compare(to, &bound) >= 0)
			return bm_writer_errno(fault, tree, EINVAL);
	}
	if (room_for_twin(writer, tree, from, &path, fault) < 0)
		return fault->code;
	size = payload_size(&path);
	path.slot[0]++;
	if (bm_leaf_insert(writer, &path, to, &size, 1, fault) < 0)
		return fault->code;
	source = item_data(path.node[0], path.slot[0] - 1);
	memcpy(payload(writer, &path), source, size);
	return BM_OK;
}

/* -------------------------------------------------------------------------------- deletion -- */

/* How many items from path->slot[0] on have keys <= max. */
static uint32_t run_forward(const struct bm_path *path, const struct bm_key *max)
{
	int found;
	uint32_t end = bm_bin_search(path->node[0], max, &found) + (uint32_t)found;

	return end > path->slot[0] ? end - path->slot[0] : 0;
}

/*
 * The first items of the range that one leaf holds, as btrfs_drop_extents() finds them: 1, with
 * the path at the first of *count; 0 when there are no more.
 */
static int first_run(struct bm_writer *writer, struct bm_writer_tree *tree,
		     const struct bm_key *min, const struct bm_key *max, struct bm_path *path,
		     uint32_t *count, struct bm_fault *fault)
{
	struct bm_key key;
	int ret = bm_writer_search(writer, tree, min, -1, BM_SEARCH_INSERT, path, fault);

	if (ret < 0)
		return ret;
	if (path->slot[0] >= block_header(path->node[0])->nritems) {
		if (!bm_path_upper_bound(path, &key) || compare(&key, max) > 0)
			return 0;
		if (bm_writer_search(writer, tree, &key, -1, BM_SEARCH_INSERT, path, fault) < 0)
			return fault->code;
	}
	*count = run_forward(path, max);
	return *count != 0;
}

/* The last ones, as btrfs_truncate_inode_items() goes from the end to the start. */
static int last_run(struct bm_writer *writer, struct bm_writer_tree *tree, const struct bm_key *min,
		    const struct bm_key *max, struct bm_path *path, uint32_t *count,
		    struct bm_fault *fault)
{
	uint32_t end, start;
	int found, ret = bm_writer_search(writer, tree, max, -1, BM_SEARCH_INSERT, path, fault);

	if (ret < 0)
		return ret;
	end = path->slot[0] + (ret ? 0 : 1);
	start = bm_bin_search(path->node[0], min, &found);
	if (start >= end)
		return 0;
	path->slot[0] = start;
	*count = end - start;
	return 1;
}

/*
 * Whether items of the range may follow those that are about to be deleted, and from which key on
 * they are sought. A leaf that has none of them is not searched for: it would be copied.
 */
static int more_follow(const struct bm_path *path, uint32_t count, int backward, struct bm_key *min,
		       const struct bm_key *max)
{
	const uint8_t *leaf = path->node[0];
	struct bm_key bound;

	if (backward)
		return !path->slot[0] && compare_disk_key(&leaf_item(leaf, 0)->key, min) > 0;
	if (path->slot[0] + count < block_header(leaf)->nritems ||
	    !bm_path_upper_bound(path, &bound) || compare(&bound, max) > 0)
		return 0;
	*min = bound;
	return 1;
}

int64_t bm_writer_delete(struct bm_writer *writer, uint64_t id, const struct bm_key *min,
			 const struct bm_key *max, int backward, struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	struct bm_path path = {0};
	struct bm_key from = *min;
	int64_t deleted = 0;
	uint32_t count = 0;
	int ret, more;

	if (!tree)
		return fault->code;
	if (compare(min, max) > 0)
		return 0;
	do {
		ret = backward ? last_run(writer, tree, &from, max, &path, &count, fault)
			       : first_run(writer, tree, &from, max, &path, &count, fault);
		if (ret <= 0)
			return ret < 0 ? ret : deleted;
		more = more_follow(&path, count, backward, &from, max);
		if (bm_leaf_delete(writer, tree, &path, path.slot[0], count, fault) < 0)
			return fault->code;
		deleted += count;
	} while (more);
	return deleted;
}

/* ------------------------------------------------------------------------------- replacing -- */

/* Delete from `key` to `last`: 1, with the path where the last ones were, or 0: it is gone. */
static int drop_extents(struct bm_writer *writer, struct bm_writer_tree *tree,
			const struct bm_key *key, const struct bm_key *last, struct bm_path *path,
			struct bm_fault *fault)
{
	struct bm_key from = *key;
	const uint8_t *leaf = NULL;
	uint32_t count = 0;
	int ret, more;

	do {
		ret = first_run(writer, tree, &from, last, path, &count, fault);
		if (ret <= 0)
			return ret;
		more = more_follow(path, count, 0, &from, last);
		leaf = path->node[0];
		if (bm_leaf_delete(writer, tree, path, path->slot[0], count, fault) < 0)
			return fault->code;
	} while (more);
	return block_header(leaf)->nritems || !path->node[1];
}

/* Where a new extent would go without further ado: 1, or 0: that is the end of the leaf. */
static int place_for_extent(struct bm_writer *writer, struct bm_writer_tree *tree,
			    const struct bm_key *key, struct bm_path *path, struct bm_fault *fault)
{
	int ret = bm_writer_search(writer, tree, key, -1, BM_SEARCH_INSERT, path, fault);

	if (ret <= 0)
		return ret < 0 ? ret : bm_writer_errno(fault, tree, EEXIST);
	/* there the kernel looks at the next leaf and lets go of this one */
	return path->slot[0] < block_header(path->node[0])->nritems;
}

int bm_writer_insert_extent(struct bm_writer *writer, uint64_t id, const struct bm_key *key,
			    const struct bm_key *last, const uint8_t *data, uint32_t size,
			    struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	struct bm_path path = {0};
	int ret;

	if (!tree)
		return fault->code;
	if ((uint64_t)size + BTRFS_ITEM_SIZE > writer->leaf_size)
		return bm_writer_errno(fault, tree, EOVERFLOW);
	ret = last ? drop_extents(writer, tree, key, last, &path, fault)
		   : place_for_extent(writer, tree, key, &path, fault);
	if (ret < 0)
		return ret;
	if (!ret || bm_leaf_free(writer, path.node[0]) < size + BTRFS_ITEM_SIZE)
		return bm_writer_insert(writer, id, key, &size, 1, data, fault);
	if (bm_leaf_insert(writer, &path, key, &size, 1, fault) < 0)
		return fault->code;
	memcpy(payload(writer, &path), data, size);
	return BM_OK;
}
