/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What writer/space/refs.c asks of writer/space/extent.c: changes of the extent tree. Not part of the interface.
 */
#ifndef BTRFS_MODEL_WRITER_REFS_H
#define BTRFS_MODEL_WRITER_REFS_H

#include "writer/writer.h"

/* References of one kind that an extent gets or loses. */
struct bm_extent_ref {
	uint64_t bytenr;
	uint64_t num_bytes;
	uint8_t type;	      /* BTRFS_TREE_BLOCK_REF_KEY ... */
	int8_t level;	      /* of a tree block; -1: data */
	uint32_t count;	      /* 1 for tree blocks */
	uint64_t value;	      /* root, or the block that refers to it (SHARED_*) */
	uint64_t ino;	      /* EXTENT_DATA_REF */
	uint64_t offset;      /* EXTENT_DATA_REF */
	uint64_t owning_root; /* who allocated the extent, 0 where that is not known */
};

/* alloc_reserved_file_extent(), alloc_reserved_tree_block() (`first` is the block's first key) */
int bm_extent_insert(struct bm_writer *writer, const struct bm_extent_ref *ref, uint64_t flags,
		     const struct bm_key *first, struct bm_fault *fault);
/* __btrfs_inc_extent_ref() and __btrfs_free_extent(); `flags` are set in the item. */
int bm_extent_add(struct bm_writer *writer, const struct bm_extent_ref *ref, uint64_t flags,
		  struct bm_fault *fault);
int bm_extent_drop(struct bm_writer *writer, const struct bm_extent_ref *ref, uint64_t flags,
		   struct bm_fault *fault);
/* run_delayed_extent_op() */
int bm_extent_set_flags(struct bm_writer *writer, uint64_t bytenr, int level, uint64_t flags,
			struct bm_fault *fault);
/* References and flags that the extent tree has; both 0 where it knows no such extent. */
int bm_extent_lookup(struct bm_writer *writer, uint64_t bytenr, uint64_t *refs, uint64_t *flags,
		     struct bm_fault *fault);

#endif
