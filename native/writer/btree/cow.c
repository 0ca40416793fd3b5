// SPDX-License-Identifier: GPL-2.0-only
/*
 * Copy on write: a block of the running transaction takes the place of an older one.
 */
#include "writer/writer.h"

#include <string.h>

/* Copies are allocated from the start of the GiB that the old block lies in. */
#define HINT_UNIT (1ULL << 30)

/* btrfs_force_cow_block(); without a parent the block is the root. */
static uint8_t *force_cow_block(struct bm_writer *writer, struct bm_writer_tree *tree,
				const uint8_t *old, uint8_t *parent, uint32_t parent_slot,
				struct bm_fault *fault)
{
	const struct btrfs_header *header = block_header(old);
	uint64_t parent_start =
	    bm_writer_is_reloc(tree) && parent ? block_header(parent)->bytenr : 0;
	uint64_t hint = header->bytenr / HINT_UNIT * HINT_UNIT;
	struct bm_key first = {0};
	struct btrfs_header *new;
	uint8_t *copy;
	uint64_t bytenr;
	int last_ref = 1;

	writer->structure++;
	if (header->nritems)
		first = to_key(block_key(old, 0));
	copy = bm_writer_is_reloc(tree)
		   ? bm_writer_alloc_reloc(writer, tree, header->level, &first, hint, parent_start,
					   fault)
		   : bm_writer_alloc_block(writer, tree, header->level, &first, hint, fault);
	if (!copy)
		return NULL;
	/* btrfs_init_new_buffer(): the extent tree does not know of the block that is there */
	if (copy < old + writer->nodesize && old < copy + writer->nodesize) {
		bm_fail(fault, (struct bm_fault){.code = BM_BAD_VALUE,
						 .tree = BTRFS_EXTENT_TREE_OBJECTID,
						 .found = block_header(copy)->bytenr});
		return NULL;
	}
	new = header_of(copy);
	bytenr = new->bytenr;
	memcpy(copy, old, writer->nodesize);
	new->bytenr = bytenr;
	new->generation = writer->transid;
	new->flags &= ~(uint64_t)(BM_HEADER_WRITTEN | BM_HEADER_RELOC);
	new->flags |= BM_HEADER_BACKREF_REV;
	if (bm_writer_is_reloc(tree))
		new->flags |= BM_HEADER_RELOC; /* the owner stays who it was */
	else
		new->owner = tree->owner;
	memcpy(new->fsid, writer->fsid, sizeof(new->fsid));
	if (bm_writer_update_refs_for_cow(writer, tree, old, copy, &last_ref, fault) < 0)
		return NULL;
	if (parent) {
		ptr_of(parent, parent_slot)->blockptr = bytenr;
		ptr_of(parent, parent_slot)->generation = writer->transid;
	} else {
		bm_writer_set_root(writer, tree, copy);
	}
	if (bm_writer_is_reloc(tree) && !parent)
		parent_start = header->bytenr;
	if (bm_writer_free_block(writer, tree, old, parent_start, last_ref, fault) < 0)
		return NULL;
	BM_ASSERT(bm_writer_is_new(writer, copy));
	return copy;
}

int bm_writer_cow(struct bm_writer *writer, struct bm_writer_tree *tree, struct bm_path *path,
		  int level, struct bm_fault *fault)
{
	const uint8_t *old = path->node[level];
	const uint8_t *parent = level + 1 < BTRFS_MAX_LEVEL ? path->node[level + 1] : NULL;
	uint8_t *copy;

	if (bm_writer_is_ours(writer, tree, old))
		return BM_OK;
	copy =
	    force_cow_block(writer, tree, old, parent ? bm_writer_writable(writer, parent) : NULL,
			    parent ? path->slot[level + 1] : 0, fault);
	if (!copy)
		return fault->code;
	path->node[level] = copy;
	BM_ASSERT(parent ? node_ptr(parent, path->slot[level + 1])->blockptr ==
			       block_header(copy)->bytenr
			 : bm_writer_is_root(tree, copy));
	return BM_OK;
}

uint8_t *bm_writer_cow_child(struct bm_writer *writer, struct bm_writer_tree *tree, uint8_t *parent,
			     uint32_t slot, struct bm_fault *fault)
{
	const uint8_t *child = bm_writer_read_child(writer, tree, parent, slot, fault);

	BM_ASSERT(bm_writer_is_new(writer, parent));
	if (!child)
		return NULL;
	if (bm_writer_is_ours(writer, tree, child))
		return bm_writer_writable(writer, child);
	return force_cow_block(writer, tree, child, parent, slot, fault);
}
