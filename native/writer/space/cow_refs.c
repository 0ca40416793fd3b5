// SPDX-License-Identifier: GPL-2.0-only
/*
 * Who refers to what a block points at, when the block is copied.
 *
 * A tree refers to what its blocks point at by its own id as long as it owns the blocks. When the
 * owner leaves a shared block behind, the block refers to its children itself, by its address
 * (BTRFS_BLOCK_FLAG_FULL_BACKREF), on behalf of all who still have it.
 */
#include "writer/writer.h"

#include <errno.h>
#include <string.h>

int bm_writer_data_ref_of(const uint8_t *leaf, uint32_t slot, struct bm_data_ref *ref,
			  struct bm_fault *fault)
{
	const struct btrfs_item *item = leaf_item(leaf, slot);
	const struct btrfs_file_extent_item *extent = (const void *)item_data(leaf, slot);

	if (item->key.type != BTRFS_EXTENT_DATA_KEY)
		return 0;
	if (item->size < BTRFS_FILE_EXTENT_INLINE_DATA_START ||
	    (extent->type != BTRFS_FILE_EXTENT_INLINE && item->size < sizeof(*extent)))
		return bm_fail(fault, (struct bm_fault){.code = BM_BAD_ITEM_SIZE,
							.tree = block_header(leaf)->owner,
							.block = block_header(leaf)->bytenr,
							.slot = slot,
							.found = item->size,
							.wanted = sizeof(*extent)});
	if (extent->type == BTRFS_FILE_EXTENT_INLINE || !extent->disk_bytenr)
		return 0;
	ref->bytenr = extent->disk_bytenr;
	ref->num_bytes = extent->disk_num_bytes;
	ref->ino = item->key.objectid;
	ref->offset = item->key.offset - extent->offset;
	return 1;
}

int bm_writer_mod_refs(struct bm_writer *writer, const struct bm_writer_tree *tree,
		       const uint8_t *block, int full_backref, enum bm_ref_action action,
		       struct bm_fault *fault)
{
	const struct btrfs_header *header = block_header(block);
	uint64_t parent = full_backref ? header->bytenr : 0;
	struct bm_data_ref ref = {.parent = parent, .root = header->owner};

	if (!tree->shareable && !header->level)
		return BM_OK;
	for (uint32_t slot = 0; slot < header->nritems; slot++) {
		int ret;

		if (header->level) {
			ret = bm_refs_tree(writer, action, node_ptr(block, slot)->blockptr, parent,
					   header->owner, 0, header->level - 1, NULL, fault);
		} else {
			ret = bm_writer_data_ref_of(block, slot, &ref, fault);
			if (ret > 0)
				ret = bm_refs_data(writer, action, &ref, fault);
		}
		if (ret < 0)
			return ret;
	}
	return BM_OK;
}

/* btrfs_block_can_be_shared() */
static int can_be_shared(const struct bm_writer_tree *tree, const uint8_t *block)
{
	const struct btrfs_header *header = block_header(block);

	return tree->shareable && header->bytenr != tree->bytenr &&
	       (header->generation <= tree->last_snapshot || header->flags & BM_HEADER_RELOC);
}

int bm_writer_update_refs_for_cow(struct bm_writer *writer, struct bm_writer_tree *tree,
				  const uint8_t *old, uint8_t *copy, int *last_ref,
				  struct bm_fault *fault)
{
	const struct btrfs_header *header = block_header(old);
	int is_full, is_reloc = bm_writer_is_reloc(tree);
	uint64_t refs = 1, flags = is_reloc ? BTRFS_BLOCK_FLAG_FULL_BACKREF : 0;

	if (can_be_shared(tree, old) &&
	    bm_writer_extent_info(writer, header->bytenr, &refs, &flags, fault) < 0)
		return fault->code;
	if (!refs)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOT_FOUND,
							.tree = BTRFS_EXTENT_TREE_OBJECTID,
							.block = header->bytenr,
							.found = header->bytenr,
							.wanted = BTRFS_METADATA_ITEM_KEY});
	is_full = (flags & BTRFS_BLOCK_FLAG_FULL_BACKREF) != 0;
	*last_ref = refs == 1;
	if (refs > 1 && (header->owner == tree->owner || is_reloc) && !is_full) {
		if (bm_writer_mod_refs(writer, tree, old, 1, BM_REF_ADD, fault) < 0)
			return fault->code;
		if (is_reloc && (bm_writer_mod_refs(writer, tree, old, 0, BM_REF_DROP, fault) < 0 ||
				 bm_writer_mod_refs(writer, tree, copy, 1, BM_REF_ADD, fault) < 0))
			return fault->code;
		return bm_refs_set_flags(writer, header->bytenr, BTRFS_BLOCK_FLAG_FULL_BACKREF,
					 header->level, fault);
	}
	if (refs > 1 || is_full) {
		if (bm_writer_mod_refs(writer, tree, copy, is_reloc, BM_REF_ADD, fault) < 0)
			return fault->code;
	}
	return refs == 1 && is_full ? bm_writer_mod_refs(writer, tree, old, 1, BM_REF_DROP, fault)
				    : BM_OK;
}

/* ---------------------------------------------------------------------------------- copy_root -- */

/* The root of the tree, COWed before Linux 7.1: what is copied is a block of this transaction. */
static const uint8_t *root_to_copy(struct bm_writer *writer, struct bm_writer_tree *tree,
				   struct bm_fault *fault)
{
	struct bm_path path = {0};

	path.node[tree->level] =
	    bm_writer_read(writer, tree, tree->bytenr, tree->generation, tree->level, fault);
	if (!path.node[tree->level])
		return NULL;
	if (!(writer->behaviour >> BM_TOGGLE_SNAPSHOT_NO_COW & 1) &&
	    bm_writer_cow(writer, tree, &path, tree->level, fault) < 0)
		return NULL;
	return path.node[tree->level];
}

/* btrfs_copy_root(): the copy belongs to `fresh`, whose root it becomes. */
static int copy_block(struct bm_writer *writer, const uint8_t *root, struct bm_writer_tree *fresh,
		      struct bm_fault *fault)
{
	const struct btrfs_header *header = block_header(root);
	int is_reloc = bm_writer_is_reloc(fresh);
	struct bm_key first = {0};
	struct btrfs_header *own;
	uint8_t *copy;

	if (header->nritems)
		first = to_key(block_key(root, 0));
	copy = is_reloc ? bm_writer_alloc_reloc(writer, fresh, header->level, &first,
						header->bytenr, 0, fault)
			: bm_writer_alloc_block(writer, fresh, header->level, &first,
						header->bytenr, fault);
	if (!copy)
		return fault->code;
	own = header_of(copy);
	fresh->bytenr = own->bytenr;
	memcpy(copy, root, writer->nodesize);
	own->bytenr = fresh->bytenr;
	own->generation = writer->transid;
	own->flags &= ~(uint64_t)(BM_HEADER_WRITTEN | BM_HEADER_RELOC);
	if (is_reloc)
		own->flags |= BM_HEADER_RELOC;
	else
		own->owner = fresh->owner;
	memcpy(own->fsid, writer->fsid, sizeof(own->fsid));
	BM_ASSERT(bm_writer_is_new(writer, copy));
	return bm_writer_mod_refs(writer, fresh, copy, is_reloc, BM_REF_ADD, fault);
}

/* The tree that is copied to a new one; NULL with a fault when it is not there, or the other is. */
static struct bm_writer_tree *source_of(struct bm_writer *writer, uint64_t source, uint64_t id,
					struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, source, fault);
	struct bm_fault none;

	if (tree && bm_writer_tree_of(writer, id, &none)) {
		bm_writer_errno(fault, tree, EEXIST);
		return NULL;
	}
	return tree;
}

int bm_writer_copy_root(struct bm_writer *writer, uint64_t source, uint64_t id,
			struct bm_fault *fault)
{
	struct bm_writer_tree *tree = source_of(writer, source, id, fault), fresh;
	const uint8_t *root;

	if (!tree)
		return fault->code;
	/* everything from here on that was there before the snapshot may be shared with it */
	tree->last_snapshot = writer->transid;
	bm_writer_note_changed(writer, tree);
	root = root_to_copy(writer, tree, fault);
	if (!root)
		return fault->code;
	fresh = *tree;
	fresh.id = fresh.owner = id;
	fresh.generation = fresh.origin = writer->transid;
	fresh.force_cow = 0;
	if (copy_block(writer, root, &fresh, fault) < 0)
		return fault->code;
	/* the copied root item says as many bytes as its source */
	fresh.bytes_used = tree->bytes_used;
	tree->force_cow = 1;
	return bm_writer_set_tree(writer, &fresh, fault);
}

int bm_writer_reloc_root(struct bm_writer *writer, uint64_t source, uint64_t id, uint64_t bytenr,
			 struct bm_fault *fault)
{
	struct bm_writer_tree *tree = source_of(writer, source, id, fault), fresh;
	const uint8_t *root;

	if (!tree)
		return fault->code;
	root = bm_writer_read(writer, tree, bytenr, 0, -1, fault);
	if (!root)
		return fault->code;
	tree->last_snapshot = block_header(root)->generation;
	bm_writer_note_changed(writer, tree);
	fresh = *tree;
	fresh.id = id;
	fresh.owner = TREE_RELOC_OBJECTID;
	fresh.generation = fresh.origin = writer->transid;
	fresh.level = block_header(root)->level;
	fresh.force_cow = 0;
	if (copy_block(writer, root, &fresh, fault) < 0)
		return fault->code;
	fresh.bytes_used = tree->bytes_used;
	return bm_writer_set_tree(writer, &fresh, fault);
}

int bm_writer_tree_ref(struct bm_writer *writer, int change, uint64_t bytenr, uint64_t parent,
		       uint64_t root, int level, struct bm_fault *fault)
{
	return bm_refs_tree(writer, change > 0 ? BM_REF_ADD : BM_REF_DROP, bytenr, parent, root, 0,
			    level, NULL, fault);
}
