// SPDX-License-Identifier: GPL-2.0-only
/*
 * btrfs_drop_snapshot(): a tree gives back all that it refers to.
 *
 * Blocks that only this tree has are freed from the leaves up. Of a block that others have too only
 * the reference goes; if the tree is the block's owner, what the owner's references held must be
 * held by the blocks themselves first (UPDATE_BACKREF), or the others would lose it.
 */
#include "writer/writer.h"

#include <errno.h>
#include <string.h>

/* struct walk_control */
struct drop {
	struct bm_writer *writer;
	struct bm_writer_tree *tree;
	struct bm_fault *fault;
	const uint8_t *node[BTRFS_MAX_LEVEL];
	uint32_t slot[BTRFS_MAX_LEVEL];
	uint64_t refs[BTRFS_MAX_LEVEL];
	uint64_t flags[BTRFS_MAX_LEVEL];
	int level;
	int updating;	  /* stage UPDATE_BACKREF */
	int shared_level; /* where it began */
	int top;	  /* level of the root, or of a parent that stays */
	int last;	  /* level of the block with which all is done */
};

static int is_full(const struct drop *drop, int level)
{
	return (drop->flags[level] & BTRFS_BLOCK_FLAG_FULL_BACKREF) != 0;
}

static int fail_block(struct drop *drop, uint64_t bytenr, uint64_t found, uint64_t wanted)
{
	return bm_fail(drop->fault, (struct bm_fault){.code = BM_BAD_OWNER,
						      .tree = drop->tree->id,
						      .block = bytenr,
						      .found = found,
						      .wanted = wanted});
}

/* How many have the block at this level; a block of a log has nobody else. */
static int lookup(struct drop *drop, uint64_t bytenr, int level)
{
	if (drop->tree->owner == TREE_LOG_OBJECTID) {
		drop->refs[level] = 1;
		drop->flags[level] = 0;
		return BM_OK;
	}
	if (bm_writer_extent_info(drop->writer, bytenr, &drop->refs[level], &drop->flags[level],
				  drop->fault) < 0)
		return drop->fault->code;
	if (!drop->refs[level])
		return bm_fail(drop->fault, (struct bm_fault){.code = BM_NOT_FOUND,
							      .tree = BTRFS_EXTENT_TREE_OBJECTID,
							      .block = bytenr,
							      .found = bytenr,
							      .wanted = BTRFS_METADATA_ITEM_KEY});
	return BM_OK;
}

/* The block that a reference of the tree's to a block at `level` is held by; 0: by the tree. */
static int parent_of(struct drop *drop, int level, uint64_t *parent)
{
	/* the root refers to itself */
	int holder = level == drop->top ? level : level + 1;
	const struct btrfs_header *header = block_header(drop->node[holder]);

	*parent = is_full(drop, holder) ? header->bytenr : 0;
	if (!*parent && header->owner != drop->tree->owner)
		return fail_block(drop, header->bytenr, header->owner, drop->tree->owner);
	return BM_OK;
}

/* walk_down_proc(): 1: nothing below this block is to be done. */
static int enter_block(struct drop *drop, int known)
{
	const uint8_t *block = drop->node[drop->level];
	const struct btrfs_header *header = block_header(block);

	if (drop->updating && header->owner != drop->tree->owner)
		return 1;
	if (!known &&
	    (drop->updating ? !is_full(drop, drop->level) : drop->refs[drop->level] != 1) &&
	    lookup(drop, header->bytenr, drop->level) < 0)
		return drop->fault->code;
	if (!drop->updating)
		return drop->refs[drop->level] > 1;
	if (is_full(drop, drop->level))
		return 0;
	if (bm_writer_mod_refs(drop->writer, drop->tree, block, 1, BM_REF_ADD, drop->fault) < 0 ||
	    bm_writer_mod_refs(drop->writer, drop->tree, block, 0, BM_REF_DROP, drop->fault) < 0 ||
	    bm_refs_set_flags(drop->writer, header->bytenr, BTRFS_BLOCK_FLAG_FULL_BACKREF,
			      header->level, drop->fault) < 0)
		return drop->fault->code;
	drop->flags[drop->level] |= BTRFS_BLOCK_FLAG_FULL_BACKREF;
	return 0;
}

/*
 * visit_node_for_delete(): whether the child is left to others as it is. Either its leaf holds its
 * own references, or nothing below it is the tree's, which was made as a snapshot later.
 */
static int is_skipped(const struct drop *drop, int level, uint64_t generation)
{
	if (level == 0 && is_full(drop, 0) && (drop->updating || drop->refs[0] > 1))
		return 1;
	return drop->refs[level] > 1 && !drop->updating &&
	       (bm_writer_is_reloc(drop->tree) || generation <= drop->tree->origin);
}

/* do_walk_down(): 1: the child is not descended into. */
static int enter_child(struct drop *drop)
{
	int level = drop->level - 1;
	const uint8_t *node = drop->node[drop->level];
	const struct btrfs_key_ptr *ptr = node_ptr(node, drop->slot[drop->level]);
	uint64_t parent;

	if (drop->updating && ptr->generation <= drop->tree->origin)
		return 1;
	if (lookup(drop, ptr->blockptr, level) < 0)
		return drop->fault->code;
	if (is_skipped(drop, level, ptr->generation)) {
		drop->refs[level] = drop->flags[level] = 0;
		if (drop->updating)
			return 1;
		parent = is_full(drop, drop->level) ? block_header(node)->bytenr : 0;
		if (bm_quota_trace_subtree(drop->writer, drop->tree, node, drop->slot[drop->level],
					   drop->fault) < 0 ||
		    bm_refs_tree(drop->writer, BM_REF_DROP, ptr->blockptr, parent,
				 drop->tree->owner, 0, level, NULL, drop->fault) < 0)
			return drop->fault->code;
		return 1;
	}
	if (!drop->updating && drop->refs[level] > 1) {
		drop->updating = 1;
		drop->shared_level = level;
	}
	drop->node[level] = bm_writer_read_child(drop->writer, drop->tree, node,
						 drop->slot[drop->level], drop->fault);
	if (!drop->node[level])
		return drop->fault->code;
	drop->slot[level] = 0;
	drop->level = level;
	return 0;
}

/* walk_down_tree() */
static int walk_down(struct drop *drop)
{
	int known = 0;

	for (;;) {
		const struct btrfs_header *header = block_header(drop->node[drop->level]);
		int ret = enter_block(drop, known);

		if (ret || !drop->level)
			return ret < 0 ? ret : BM_OK;
		do {
			if (drop->slot[drop->level] >= header->nritems)
				return BM_OK;
			ret = enter_child(drop);
			if (ret > 0)
				drop->slot[drop->level]++;
		} while (ret > 0);
		if (ret < 0)
			return ret;
		known = 1;
	}
}

/* walk_up_proc(): 1: the walk goes down here once more. */
static int leave_block(struct drop *drop)
{
	int level = drop->level;
	const uint8_t *block = drop->node[level];
	uint64_t parent;

	if (drop->updating) {
		if (level < drop->shared_level)
			return 0;
		drop->updating = 0;
		drop->slot[level] = 0;
		if (lookup(drop, block_header(block)->bytenr, level) < 0)
			return drop->fault->code;
		if (drop->refs[level] == 1)
			return 1;
	}
	if (!level && drop->refs[level] == 1 &&
	    bm_writer_mod_refs(drop->writer, drop->tree, block, is_full(drop, level), BM_REF_DROP,
			       drop->fault) < 0)
		return drop->fault->code;
	if (parent_of(drop, level, &parent) < 0)
		return drop->fault->code;
	return bm_writer_free_block(drop->writer, drop->tree, block, parent, drop->refs[level] == 1,
				    drop->fault);
}

/* walk_up_tree(): 1: all is done. */
static int walk_up(struct drop *drop)
{
	drop->slot[drop->level] = block_header(drop->node[drop->level])->nritems;
	for (; drop->level <= drop->last; drop->level++) {
		int level = drop->level, ret;

		if (drop->slot[level] + 1 < block_header(drop->node[level])->nritems) {
			drop->slot[level]++;
			return 0;
		}
		ret = leave_block(drop);
		if (ret)
			return ret < 0 ? ret : 0;
		drop->refs[level] = drop->flags[level] = 0;
	}
	return 1;
}

int bm_writer_drop_tree(struct bm_writer *writer, uint64_t id, struct bm_fault *fault)
{
	struct drop drop = {.writer = writer, .fault = fault};
	int ret = 0;

	drop.tree = bm_writer_tree_of(writer, id, fault);
	if (!drop.tree)
		return fault->code;
	drop.level = drop.top = drop.last = drop.tree->level;
	drop.node[drop.level] = bm_writer_read(writer, drop.tree, drop.tree->bytenr,
					       drop.tree->generation, drop.level, fault);
	if (!drop.node[drop.level])
		return fault->code;
	while (!ret) {
		ret = walk_down(&drop);
		if (!ret)
			ret = walk_up(&drop);
	}
	if (ret < 0)
		return ret;
	bm_writer_forget_tree(writer, id);
	return BM_OK;
}

int bm_writer_drop_subtree(struct bm_writer *writer, uint64_t id, uint64_t bytenr, uint64_t parent,
			   struct bm_fault *fault)
{
	struct drop drop = {.writer = writer, .fault = fault};
	const uint8_t *node, *above;
	int ret = 0;

	drop.tree = bm_writer_tree_of(writer, id, fault);
	above = drop.tree ? bm_writer_read(writer, drop.tree, parent, 0, -1, fault) : NULL;
	if (above && !block_header(above)->level)
		return bm_writer_errno(fault, drop.tree, EINVAL);
	node = above ? bm_writer_read(writer, drop.tree, bytenr, 0, block_header(above)->level - 1,
				      fault)
		     : NULL;
	if (!node)
		return fault->code;
	drop.level = drop.last = block_header(node)->level;
	drop.top = drop.level + 1;
	drop.node[drop.top] = above;
	drop.slot[drop.top] = block_header(above)->nritems;
	drop.refs[drop.top] = 1;
	drop.flags[drop.top] = BTRFS_BLOCK_FLAG_FULL_BACKREF;
	drop.node[drop.level] = node;
	while (!ret) {
		ret = walk_down(&drop);
		if (!ret)
			ret = walk_up(&drop);
	}
	return ret < 0 ? ret : BM_OK;
}
