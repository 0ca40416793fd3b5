// SPDX-License-Identifier: GPL-2.0-only
/*
 * Changing items by key: each function is a search for changes and one change, like its model in
 * the kernel. What can be refused is refused before anything is changed, except that the blocks of
 * the path may have been copied.
 */
#include "writer/writer.h"

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
	int ret = bm_writer_search_slot(writer, tree, key, 0, BM_SEARCH_INSERT, path, fault);

	return ret == 1 ? bm_writer_errno(fault, tree, ENOENT) : ret;
}

/* A look at what is there, which the kernel does not take: it is not counted. */
static int look(struct bm_writer *writer, const struct bm_writer_tree *tree,
		const struct bm_key *key, struct bm_path *path, struct bm_fault *fault)
{
	uint64_t *work = writer->image->work;
	int ret;

	writer->image->work = writer->image->ignored;
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

/* The key in a slot of the leaf, or the bound of the leaf; 0: there is none. */
static int next_key(const struct bm_path *path, uint32_t slot, struct bm_key *key)
{
	if (slot >= block_header(path->node[0])->nritems)
		return bm_path_upper_bound(path, key);
	*key = to_key(&leaf_item(path->node[0], slot)->key);
	return 1;
}

/* ------------------------------------------------------------------------------- insertion -- */

/* Items of a batch: each fits into a leaf and so do all, and their keys ascend. */
static int check_batch(const struct bm_writer *writer, const struct bm_writer_tree *tree,
		       const struct bm_key *keys, const uint32_t *sizes, size_t count,
		       uint32_t *total, struct bm_fault *fault)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < count; i++) {
		sum += (uint64_t)sizes[i] + BTRFS_ITEM_SIZE;
		if (sum > writer->leaf_size)
			return bm_writer_errno(fault, tree, EOVERFLOW);
	}
	for (size_t i = 1; i < count; i++)
		if (compare(&keys[i - 1], &keys[i]) >= 0)
			return bm_writer_errno(fault, tree, EINVAL);
	*total = (uint32_t)sum;
	return BM_OK;
}

/* Whether `key` sorts before what is in a slot of the leaf, or else begins the next leaf. */
static int is_before_next(const struct bm_path *path, uint32_t slot, const struct bm_key *key)
{
	struct bm_key next;

	return !next_key(path, slot, &next) || compare(key, &next) < 0;
}

/* The search of an insertion of `count` items that no finger leads to. */
static int search_place(struct bm_writer *writer, struct bm_writer_tree *tree,
			const struct bm_key *keys, size_t count, uint32_t total,
			struct bm_path *path, struct bm_fault *fault)
{
	if (count > 1) {
		int ret = look(writer, tree, keys, path, fault);

		if (ret < 0)
			return ret;
		if (ret && !is_before_next(path, path->slot[0], &keys[count - 1]))
			return bm_writer_errno(fault, tree, EINVAL);
		if (ret && bm_path_is_ready(writer, tree, path, total)) {
			bm_finger_count(writer, tree);
			return ret;
		}
	}
	return bm_writer_search_slot(writer, tree, keys, (int)total, BM_SEARCH_INSERT, path, fault);
}

int bm_writer_insert_near(struct bm_writer *writer, struct bm_writer_tree *tree,
			  struct bm_fingers *fingers, const struct bm_key *keys,
			  const uint32_t *sizes, size_t count, const uint8_t *data,
			  struct bm_fault *fault)
{
	struct bm_finger *finger;
	struct bm_path *path;
	uint32_t total = 0;
	int found, ret;

	if (check_batch(writer, tree, keys, sizes, count, &total, fault) < 0)
		return fault->code;
	finger = bm_finger_at(writer, tree, fingers, keys, total, &found);
	if (finger) {
		path = &finger->path;
		if (!found && count > 1 && !is_before_next(path, path->slot[0], &keys[count - 1]))
			return bm_writer_errno(fault, tree, EINVAL);
	} else {
		finger = bm_finger_next(fingers);
		path = &finger->path;
		ret = search_place(writer, tree, keys, count, total, path, fault);
		if (ret < 0)
			return ret;
		found = !ret;
	}
	if (found)
		return bm_writer_errno(fault, tree, EEXIST);
	ret = fingers->loose ? bm_setup_items_loose(writer, path, keys, sizes, count, fault)
			     : bm_setup_items_for_insert(writer, path, keys, sizes, count, fault);
	if (ret < 0)
		return ret;
	for (size_t i = 0; i < count; i++, path->slot[0]++) {
		memcpy(payload(writer, path), data, sizes[i]);
		data += sizes[i];
	}
	BM_ASSERT(bm_path_is_sound(writer, tree, path));
	bm_finger_keep(writer, tree, finger);
	return BM_OK;
}

int bm_writer_insert(struct bm_writer *writer, uint64_t id, const struct bm_key *keys,
		     const uint32_t *sizes, size_t count, const uint8_t *data,
		     struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	struct bm_fingers fingers = {0};

	if (!tree)
		return fault->code;
	if (!count)
		return BM_OK;
	return bm_writer_insert_near(writer, tree, &fingers, keys, sizes, count, data, fault);
}

int bm_writer_insert_each(struct bm_writer *writer, uint64_t id, const struct bm_key *keys,
			  const uint32_t *sizes, size_t count, const uint8_t *data,
			  struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	struct bm_fingers fingers = {0};

	if (!tree)
		return fault->code;
	for (size_t i = 0; i < count; i++) {
		if (bm_writer_insert_near(writer, tree, &fingers, &keys[i], &sizes[i], 1, data,
					  fault) < 0)
			return fault->code;
		data += sizes[i];
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
	if (bm_is_log(path.node[0]) && size == payload_size(&path))
		bm_count_copied(writer, 1, BTRFS_ITEM_SIZE + size);
	BM_ASSERT(bm_path_is_sound(writer, tree, &path));
	memcpy(payload(writer, &path) + offset, data, size);
	return BM_OK;
}

int bm_writer_update_near(struct bm_writer *writer, struct bm_writer_tree *tree,
			  struct bm_fingers *fingers, const struct bm_key *key, const uint8_t *data,
			  uint32_t size, struct bm_fault *fault)
{
	int found;
	struct bm_finger *finger = bm_finger_at(writer, tree, fingers, key, 0, &found);

	if (!finger) {
		finger = bm_finger_next(fingers);
		if (find_item(writer, tree, key, &finger->path, fault) < 0)
			return fault->code;
		bm_finger_keep(writer, tree, finger);
	} else if (!found) {
		return bm_writer_errno(fault, tree, ENOENT);
	}
	if (size > payload_size(&finger->path))
		return bm_writer_errno(fault, tree, EINVAL);
	BM_ASSERT(bm_path_is_sound(writer, tree, &finger->path));
	memcpy(payload(writer, &finger->path), data, size);
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
	if (bm_writer_search_slot(writer, tree, key, (int)size, BM_SEARCH_EXTEND, &path, fault) < 0)
		return fault->code;
	bm_extend_item(writer, &path, size);
	BM_ASSERT(bm_path_is_sound(writer, tree, &path) && payload_size(&path) == before + size);
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
	bm_truncate_item(writer, &path, new_size, from_end);
	return BM_OK;
}

/* The key of the item before the path; 1: there is none. */
static int last_key_before(struct bm_writer *writer, const struct bm_writer_tree *tree,
			   const struct bm_path *path, struct bm_key *key, struct bm_fault *fault)
{
	struct bm_path left = *path;
	struct bm_root root;
	int ret = 0;

	if (left.slot[0])
		left.slot[0]--;
	else if (bm_writer_root(writer, tree->id, &root, fault) < 0)
		ret = fault->code;
	else
		ret = bm_prev_leaf(&root, &left, fault);
	if (!ret)
		*key = to_key(&leaf_item(left.node[0], left.slot[0])->key);
	return ret;
}

/* Whether `key` sorts between the neighbours of the item of the path; BM_ERRNO when it does not. */
static int check_between(struct bm_writer *writer, const struct bm_writer_tree *tree,
			 const struct bm_path *path, const struct bm_key *key,
			 struct bm_fault *fault)
{
	struct bm_key before = {0};
	int ret = last_key_before(writer, tree, path, &before, fault);

	if (ret < 0)
		return ret;
	if (!is_before_next(path, path->slot[0] + 1, key) || (!ret && compare(&before, key) >= 0))
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
	if (!path.slot[0] && bm_fixup_low_keys(&path, to, 1, fault) < 0)
		return fault->code;
	BM_ASSERT(bm_path_is_sound(writer, tree, &path) && bm_leaf_is_sound(writer, leaf));
	return BM_OK;
}

/* The item, in a leaf that has room for another like it. */
static int setup_leaf_for_split(struct bm_writer *writer, struct bm_writer_tree *tree,
				const struct bm_key *key, struct bm_path *path,
				struct bm_fault *fault)
{
	uint32_t size;

	if (find_item(writer, tree, key, path, fault) < 0)
		return fault->code;
	size = payload_size(path) + BTRFS_ITEM_SIZE;
	if (bm_leaf_free(writer, path->node[0]) >= size)
		return BM_OK;
	if (bm_writer_search_slot(writer, tree, key, 0, BM_SEARCH_SPLIT, path, fault) < 0)
		return fault->code;
	return bm_split_leaf(writer, tree, key, path, size, 1, fault);
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
	if (compare(from, to) >= 0 || !is_before_next(&path, path.slot[0] + 1, to))
		return bm_writer_errno(fault, tree, EINVAL);
	if (setup_leaf_for_split(writer, tree, from, &path, fault) < 0)
		return fault->code;
	size = payload_size(&path);
	path.slot[0]++;
	if (bm_setup_items_for_insert(writer, &path, to, &size, 1, fault) < 0)
		return fault->code;
	source = item_data(path.node[0], path.slot[0] - 1);
	BM_ASSERT(bm_path_is_sound(writer, tree, &path));
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
	int ret = bm_writer_search_slot(writer, tree, min, -1, BM_SEARCH_INSERT, path, fault);

	if (ret < 0)
		return ret;
	if (path->slot[0] >= block_header(path->node[0])->nritems) {
		if (!bm_path_upper_bound(path, &key) || compare(&key, max) > 0)
			return 0;
		if (bm_writer_search_slot(writer, tree, &key, -1, BM_SEARCH_INSERT, path, fault) <
		    0)
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
	int found,
	    ret = bm_writer_search_slot(writer, tree, max, -1, BM_SEARCH_INSERT, path, fault);

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
		if (bm_del_items(writer, tree, &path, path.slot[0], count, fault) < 0)
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
		if (bm_del_items(writer, tree, path, path->slot[0], count, fault) < 0)
			return fault->code;
	} while (more);
	return block_header(leaf)->nritems || !path->node[1];
}

/* Where a new extent would go without further ado: 1, or 0: that is the end of the leaf. */
static int place_for_extent(struct bm_writer *writer, struct bm_writer_tree *tree,
			    const struct bm_key *key, struct bm_path *path, struct bm_fault *fault)
{
	int ret = bm_writer_search_slot(writer, tree, key, -1, BM_SEARCH_INSERT, path, fault);

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
	if (bm_setup_items_for_insert(writer, &path, key, &size, 1, fault) < 0)
		return fault->code;
	BM_ASSERT(bm_path_is_sound(writer, tree, &path));
	memcpy(payload(writer, &path), data, size);
	return BM_OK;
}
