// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the Python twin of the editing policy stands on: blocks that are made, copied and given
 * back, with their references. The policy itself (btrfs_model/reference/ctree_*.py) is in search.c,
 * leaf.c, node.c and edit.c beside this file.
 */
#include "writer/writer.h"

#include <errno.h>

int bm_writer_is_dirty(const struct bm_writer *writer, uint64_t physical)
{
	uint64_t sector = physical / writer->sectorsize;

	return physical < writer->image->size && writer->dirty_bits[sector / 8] >> sector % 8 & 1;
}

int bm_writer_make_block(struct bm_writer *writer, uint64_t id, int level,
			 const struct bm_key *first, uint64_t hint, uint64_t *bytenr,
			 struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	const uint8_t *block;

	if (!tree)
		return fault->code;
	if (level < 0 || level >= BTRFS_MAX_LEVEL)
		return bm_fail(fault, (struct bm_fault){.code = BM_BAD_LEVEL,
							.tree = tree->owner,
							.found = (uint64_t)level,
							.wanted = BTRFS_MAX_LEVEL - 1});
	block = bm_writer_alloc_block(writer, tree, level, first, hint, fault);
	if (!block)
		return fault->code;
	*bytenr = block_header(block)->bytenr;
	return BM_OK;
}

/* A block that the running transaction may write to. */
static const uint8_t *own_block(struct bm_writer *writer, struct bm_writer_tree *tree,
				uint64_t bytenr, struct bm_fault *fault)
{
	const uint8_t *block = bm_writer_read(writer, tree, bytenr, 0, -1, fault);

	if (block && !bm_writer_is_new(writer, block)) {
		bm_writer_errno(fault, tree, EROFS);
		return NULL;
	}
	return block;
}

int bm_writer_drop_block(struct bm_writer *writer, uint64_t id, uint64_t bytenr,
			 struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	const uint8_t *block = tree ? own_block(writer, tree, bytenr, fault) : NULL;

	return block ? bm_writer_free_block(writer, tree, block, 0, 1, fault) : fault->code;
}

int bm_writer_own_root(struct bm_writer *writer, uint64_t id, struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	struct bm_path path = {0};

	if (!tree)
		return fault->code;
	bm_writer_note_changed(writer, tree);
	path.node[tree->level] =
	    bm_writer_read(writer, tree, tree->bytenr, tree->generation, tree->level, fault);
	if (!path.node[tree->level])
		return fault->code;
	return bm_writer_cow(writer, tree, &path, tree->level, fault);
}

int bm_writer_own_child(struct bm_writer *writer, uint64_t id, uint64_t parent, uint32_t slot,
			uint64_t *bytenr, struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	const uint8_t *node = tree ? own_block(writer, tree, parent, fault) : NULL;
	const uint8_t *child;

	if (!node)
		return fault->code;
	if (!block_header(node)->level || slot >= block_header(node)->nritems)
		return bm_writer_errno(fault, tree, EINVAL);
	child = bm_writer_cow_child(writer, tree, bm_writer_writable(writer, node), slot, fault);
	if (!child)
		return fault->code;
	BM_ASSERT(bm_writer_is_new(writer, child));
	*bytenr = block_header(child)->bytenr;
	return BM_OK;
}

int bm_writer_point(struct bm_writer *writer, uint64_t id, uint64_t parent, uint32_t slot,
		    uint64_t bytenr, uint64_t generation, struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, id, fault);
	const uint8_t *node = tree ? own_block(writer, tree, parent, fault) : NULL;
	struct btrfs_key_ptr *ptr;

	if (!node)
		return fault->code;
	if (!block_header(node)->level || slot >= block_header(node)->nritems)
		return bm_writer_errno(fault, tree, EINVAL);
	writer->structure++;
	ptr = ptr_of(bm_writer_writable(writer, node), slot);
	ptr->blockptr = bytenr;
	ptr->generation = generation;
	BM_ASSERT(bm_writer_is_new(writer, node) && bm_node_is_sound(writer, node));
	return BM_OK;
}
