// SPDX-License-Identifier: GPL-2.0-only
/*
 * The roots of a filesystem by their objectid, for references that name a tree.
 *
 * The kernel finds a subvolume's root in memory only when the subvolume has been opened since
 * mount; a backref walk that comes to another one searches the tree of roots and reads the root
 * node, each time anew (btrfs_get_fs_root_commit_root()). bm_forest_open() tells which are open.
 */
#include "backref/backref.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct tree {
	struct bm_root root;
	size_t order; /* in which it was given */
	int open;
};

struct bm_forest {
	struct bm_image *image;
	struct bm_waiting_ref *waiting; /* ascending; NULL: no transaction runs */
	size_t waiting_count;
	const struct bm_root *root_tree; /* NULL: it is not among them */
	size_t count;
	struct tree trees[];
};

static int compare_trees(const void *left, const void *right)
{
	const struct tree *a = left, *b = right;

	if (a->root.objectid != b->root.objectid)
		return a->root.objectid < b->root.objectid ? -1 : 1;
	return a->order < b->order ? -1 : a->order > b->order;
}

static struct tree *find_tree(const struct bm_forest *forest, uint64_t objectid)
{
	size_t low = 0, high = forest->count;

	while (low < high) {
		size_t mid = low + (high - low) / 2;
		const struct tree *tree = &forest->trees[mid];

		if (tree->root.objectid == objectid)
			return (struct tree *)tree;
		if (tree->root.objectid < objectid)
			low = mid + 1;
		else
			high = mid;
	}
	return NULL;
}

struct bm_forest *bm_forest_create(struct bm_image *image, const struct bm_root *roots,
				   size_t count, struct bm_fault *fault)
{
	struct bm_forest *forest = malloc(sizeof(*forest) + count * sizeof(forest->trees[0]));
	size_t i, kept = 0;

	if (!forest) {
		bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
		return NULL;
	}
	forest->image = image;
	forest->waiting = NULL;
	forest->waiting_count = 0;
	for (i = 0; i < count; i++)
		forest->trees[i] = (struct tree){.root = roots[i], .order = i};
	qsort(forest->trees, count, sizeof(forest->trees[0]), compare_trees);
	/* of several with one objectid the last one given */
	for (i = 0; i < count; i++) {
		if (kept && forest->trees[kept - 1].root.objectid == forest->trees[i].root.objectid)
			kept--;
		forest->trees[kept++] = forest->trees[i];
	}
	forest->count = kept;
	for (i = 0; i < kept; i++)
		forest->trees[i].open = forest->trees[i].root.objectid < BTRFS_FIRST_FREE_OBJECTID;
	forest->root_tree = bm_forest_root(forest, BTRFS_ROOT_TREE_OBJECTID);
	if (find_tree(forest, BTRFS_EXTENT_TREE_OBJECTID))
		return forest;
	bm_fail(fault, (struct bm_fault){.code = BM_NOT_FOUND,
					 .tree = BTRFS_ROOT_TREE_OBJECTID,
					 .found = BTRFS_EXTENT_TREE_OBJECTID,
					 .wanted = BTRFS_ROOT_ITEM_KEY});
	free(forest);
	return NULL;
}

void bm_forest_destroy(struct bm_forest *forest)
{
	if (forest)
		free(forest->waiting);
	free(forest);
}

struct bm_image *bm_forest_image(const struct bm_forest *forest)
{
	return forest->image;
}

const struct bm_root *bm_forest_root(const struct bm_forest *forest, uint64_t objectid)
{
	const struct tree *tree = find_tree(forest, objectid);

	return tree ? &tree->root : NULL;
}

void bm_forest_open(struct bm_forest *forest, uint64_t objectid)
{
	struct tree *tree = find_tree(forest, objectid);

	if (tree)
		tree->open = 1;
}

static int compare_numbers(uint64_t a, uint64_t b)
{
	return a < b ? -1 : a > b;
}

/* Of an extent as comp_refs() has them: by type and content. */
static int compare_waiting(const void *left, const void *right)
{
	const struct bm_waiting_ref *a = left, *b = right;
	int order = compare_numbers(a->bytenr, b->bytenr);

	if (!order)
		order = compare_numbers(a->type, b->type);
	if (!order)
		order = compare_numbers(a->value, b->value);
	if (!order)
		order = compare_numbers(a->ino, b->ino);
	return order ? order : compare_numbers(a->offset, b->offset);
}

int bm_forest_set_waiting(struct bm_forest *forest, const struct bm_waiting_ref *refs, size_t count,
			  struct bm_fault *fault)
{
	struct bm_waiting_ref *copy = malloc((count + 1) * sizeof(*copy));

	if (!copy)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	if (count)
		memcpy(copy, refs, count * sizeof(*copy));
	qsort(copy, count, sizeof(*copy), compare_waiting);
	free(forest->waiting);
	forest->waiting = copy;
	forest->waiting_count = count;
	return BM_OK;
}

int forest_is_running(const struct bm_forest *forest)
{
	return forest->waiting != NULL;
}

const struct bm_waiting_ref *forest_waiting(const struct bm_forest *forest, uint64_t bytenr,
					    size_t *count)
{
	size_t low = 0, high = forest->waiting_count, end;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (forest->waiting[mid].bytenr < bytenr)
			low = mid + 1;
		else
			high = mid;
	}
	for (end = low; end < forest->waiting_count && forest->waiting[end].bytenr == bytenr;)
		end++;
	*count = end - low;
	return *count ? &forest->waiting[low] : NULL;
}

int get_fs_root_commit_root(const struct bm_forest *forest, uint64_t objectid, int restart,
			    const struct bm_root **ret, struct bm_fault *fault)
{
	const struct bm_root *root_tree = forest->root_tree;
	const struct tree *tree = find_tree(forest, objectid);
	struct bm_key key = {.objectid = objectid, .type = BTRFS_ROOT_ITEM_KEY, .offset = -1};
	struct bm_path path = {.restart = restart};
	int found;

	*ret = tree ? &tree->root : NULL;
	if (!root_tree || (tree && tree->open))
		return BM_OK;
	found = bm_search_slot(root_tree, &key, &path, fault);
	if (found < 0)
		return found;
	if (tree && !read_tree_block(forest->image, tree->root.bytenr, tree->root.generation,
				     tree->root.level, objectid, fault))
		return fault->code;
	return BM_OK;
}

void count_fs_root_commit_root(const struct bm_forest *forest, uint64_t objectid, uint64_t times,
			       uint32_t *place)
{
	const struct bm_root *root_tree = forest->root_tree;
	const struct tree *tree = &forest->trees[*place];

	if (*place >= forest->count || tree->root.objectid != objectid) {
		tree = find_tree(forest, objectid);
		if (tree)
			*place = (uint32_t)(tree - forest->trees);
	}
	if (!root_tree || (tree && tree->open))
		return;
	COUNT_N(forest->image, btrfs_search_slot, times);
	COUNT_N(forest->image, read_block_for_search, times * (uint64_t)root_tree->level);
	if (tree)
		COUNT_N(forest->image, read_tree_block, times);
}

/* ----------------------------------------------------------------- the extent at an address -- */

/* btrfs_previous_extent_item(): back to the extent item before the path; 1 when there is none. */
static int previous_extent_item(const struct bm_root *root, struct bm_path *path,
				struct bm_fault *fault)
{
	COUNT(root->image, btrfs_previous_extent_item);
	for (;;) {
		const struct btrfs_disk_key *key;

		if (path->slot[0] == 0) {
			int ret = bm_prev_leaf(root, path, fault);

			if (ret)
				return ret;
		} else {
			path->slot[0]--;
		}
		key = &leaf_item(path->node[0], path->slot[0])->key;
		if (key->type == BTRFS_EXTENT_ITEM_KEY || key->type == BTRFS_METADATA_ITEM_KEY)
			return 0;
	}
}

static int fail_extent(int code, const struct bm_path *path, uint64_t found, uint64_t wanted,
		       struct bm_fault *fault)
{
	return bm_fail(fault, (struct bm_fault){.code = code,
						.tree = BTRFS_EXTENT_TREE_OBJECTID,
						.block = block_header(path->node[0])->bytenr,
						.slot = path->slot[0],
						.found = found,
						.wanted = wanted});
}

int bm_extent_from_logical(const struct bm_forest *forest, uint64_t logical, uint64_t behaviour,
			   struct bm_key *found, uint64_t *flags, uint64_t *refs,
			   struct bm_fault *fault)
{
	const struct bm_root *root = bm_forest_root(forest, BTRFS_EXTENT_TREE_OBJECTID);
	struct bm_key key = {
	    .objectid = logical, .type = BTRFS_METADATA_ITEM_KEY, .offset = UINT64_MAX};
	struct bm_path path = {.restart = search_restarts(behaviour)};
	const struct btrfs_extent_item *ei;
	const struct btrfs_item *item;
	uint64_t length;
	int ret;

	COUNT(forest->image, extent_from_logical);
	ret = bm_search_slot(root, &key, &path, fault);
	if (ret >= 0)
		ret = previous_extent_item(root, &path, fault);
	if (ret < 0)
		return ret;
	if (ret)
		return bm_fail(fault, (struct bm_fault){.code = BM_ERRNO, .found = ENOENT});
	item = leaf_item(path.node[0], path.slot[0]);
	ei = (const void *)item_data(path.node[0], path.slot[0]);
	*found = to_key(&item->key);
	length = found->type == BTRFS_METADATA_ITEM_KEY ? forest->image->nodesize : found->offset;
	if (found->objectid > logical || logical - found->objectid >= length)
		return bm_fail(fault, (struct bm_fault){.code = BM_ERRNO, .found = ENOENT});
	if (item->size < sizeof(*ei))
		return fail_extent(BM_BAD_ITEM_SIZE, &path, item->size, sizeof(*ei), fault);
	if (ei->flags & BTRFS_EXTENT_FLAG_TREE_BLOCK)
		*flags = BTRFS_EXTENT_FLAG_TREE_BLOCK;
	else if (ei->flags & BTRFS_EXTENT_FLAG_DATA)
		*flags = BTRFS_EXTENT_FLAG_DATA;
	else
		return fail_extent(BM_BAD_VALUE, &path, ei->flags, 0, fault);
	*refs = ei->refs;
	return BM_OK;
}
