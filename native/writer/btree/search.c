// SPDX-License-Identifier: GPL-2.0-only
/*
 * Searching a tree that is about to change: every block of the path becomes one of the running
 * transaction, and on the way down nodes are split or merged before they have to be.
 *
 * The kernel starts a search again when it needs more locks; what it did until then stays done, so
 * leaving that out changes nothing, but where a snapshot was taken: then it copies the root again.
 */
#include "writer/writer.h"

#include <string.h>

int bm_path_upper_bound(const struct bm_path *path, struct bm_key *bound)
{
	for (int level = 1; level < BTRFS_MAX_LEVEL && path->node[level]; level++) {
		if (path->slot[level] + 1 < block_header(path->node[level])->nritems) {
			*bound = to_key(&node_ptr(path->node[level], path->slot[level] + 1)->key);
			return 1;
		}
	}
	return 0;
}

/* 1 when the root is gone and the search has to start again. */
static int setup_nodes_for_search(struct bm_writer *writer, struct bm_writer_tree *tree,
				  int ins_len, int extend, struct bm_path *path, int level,
				  struct bm_fault *fault)
{
	uint32_t count = block_header(path->node[level])->nritems;

	if (ins_len > 0 || extend == BM_SEARCH_SPLIT) {
		if (bm_node_is_full(writer, path->node[level]))
			return bm_split_node(writer, tree, path, level, fault);
	} else if (ins_len < 0 && count < writer->node_ptrs / 2) {
		if (bm_balance_level(writer, tree, path, level, fault) < 0)
			return fault->code;
		return !path->node[level];
	}
	return BM_OK;
}

static int search_leaf(struct bm_writer *writer, struct bm_writer_tree *tree,
		       const struct bm_key *key, int ins_len, int extend, struct bm_path *path,
		       struct bm_fault *fault)
{
	int found;

	path->slot[0] = bm_bin_search(path->node[0], key, &found);
	/* without a new item (it grows, or this is not wanted) there is no header to make room for */
	if (found && extend == BM_SEARCH_INSERT && ins_len > 0)
		ins_len -= BTRFS_ITEM_SIZE;
	if (ins_len > 0 && bm_leaf_free(writer, path->node[0]) < (uint32_t)ins_len &&
	    bm_split_leaf(writer, tree, key, path, (uint32_t)ins_len, found, fault) < 0)
		return fault->code;
	return found ? 0 : 1;
}

/*
 * Whether the kernel takes the root once more, with the lock to change its first key: an insertion
 * starts with the locks of two levels. Only a tree that copies its blocks each time shows it.
 */
static int locks_again(const struct bm_writer_tree *tree, const struct bm_path *path, int ins_len)
{
	return tree->force_cow && ins_len > 0 && tree->level == 1 && path->slot[1] == 0;
}

int bm_writer_search_slot(struct bm_writer *writer, struct bm_writer_tree *tree,
			  const struct bm_key *key, int ins_len, int extend, struct bm_path *path,
			  struct bm_fault *fault)
{
	const uint8_t *block;
	int found, before, level, ret, restarted = 0;

	COUNT(writer->image, btrfs_search_slot);
	bm_writer_note_changed(writer, tree);
again:
	memset(path->node, 0, sizeof(path->node));
	block = bm_writer_read(writer, tree, tree->bytenr, tree->generation, tree->level, fault);
	for (level = tree->level; block; level--) {
		path->node[level] = block;
		if (bm_writer_cow(writer, tree, path, level, fault) < 0)
			return fault->code;
		if (!level)
			return search_leaf(writer, tree, key, ins_len, extend, path, fault);
		path->slot[level] = bm_bin_search(path->node[level], key, &found);
		before = !found && path->slot[level];
		if (before)
			path->slot[level]--;
		ret = setup_nodes_for_search(writer, tree, ins_len, extend, path, level, fault);
		if (ret < 0)
			return ret;
		if (ret)
			goto again;
		if (level == 1 && !restarted && locks_again(tree, path, ins_len)) {
			restarted = 1;
			goto again;
		}
		if (level == path->lowest_level) {
			/* a node's slot is where the key would go, as in bm_search_slot() */
			path->slot[level] += (uint32_t)before;
			return found ? 0 : 1;
		}
		COUNT(writer->image, read_block_for_search);
		block =
		    bm_writer_read_child(writer, tree, path->node[level], path->slot[level], fault);
	}
	return fault->code;
}

int bm_writer_find(struct bm_writer *writer, const struct bm_writer_tree *tree,
		   const struct bm_key *key, struct bm_path *path, struct bm_fault *fault)
{
	struct bm_root root = {.image = writer->image,
			       .objectid = tree->owner,
			       .bytenr = tree->bytenr,
			       .generation = tree->generation,
			       .level = tree->level};

	return bm_search_slot(&root, key, path, fault);
}
