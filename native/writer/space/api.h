/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The space of a filesystem that is being changed: block groups, references, checksums.
 *
 * Python asks for room for data and says which extents files refer to; tree blocks take theirs by
 * themselves. References wait, as the kernel's delayed references do, and are run in its order,
 * which is what decides where the blocks of the extent tree come to lie. These have no twin in
 * Python.
 */
#ifndef BTRFS_MODEL_WRITER_SPACE_API_H
#define BTRFS_MODEL_WRITER_SPACE_API_H

#include <stddef.h>
#include <stdint.h>

#include "backref/api.h"
#include "base/fault.h"
#include "writer/api.h"

/* A block group: `length` bytes at `start`, all free at first. Its chunk must be in the image. */
int bm_writer_add_group(struct bm_writer *writer, uint64_t start, uint64_t length, uint64_t flags,
			struct bm_fault *fault);
/* btrfs_inc_block_group_ro(), btrfs_dec_block_group_ro(): whether anything is allocated in it. */
int bm_writer_set_read_only(struct bm_writer *writer, uint64_t start, int read_only,
			    struct bm_fault *fault);
/* btrfs_remove_block_group(): an empty group is no more. */
int bm_writer_remove_group(struct bm_writer *writer, uint64_t start, struct bm_fault *fault);
/* btrfs_inc_extent_ref() (change > 0), btrfs_free_extent() of a tree block: by root, or by parent. */
int bm_writer_tree_ref(struct bm_writer *writer, int change, uint64_t bytenr, uint64_t parent,
		       uint64_t root, int level, struct bm_fault *fault);
/* Take ranges (that an extent tree holds, or superblocks lie in) from the free space. */
int bm_writer_occupy(struct bm_writer *writer, const uint64_t *start, const uint64_t *length,
		     size_t count, int counts_as_used, struct bm_fault *fault);
struct bm_writer_group {
	uint64_t start;
	uint64_t length;
	uint64_t flags;
	uint64_t used;	      /* block_group_item.used */
	uint64_t free;	      /* that can be allocated now; the rest is used, pinned or reserved */
	uint64_t pinned;      /* freed in the running transaction: free after its commit */
	uint64_t commit_used; /* what its item says */
};
int64_t bm_writer_groups(const struct bm_writer *writer, struct bm_writer_group *groups,
			 size_t capacity);
/* The item of the group at `start` says now that `used` bytes are. */
int bm_writer_set_commit_used(struct bm_writer *writer, uint64_t start, uint64_t used,
			      struct bm_fault *fault);
/* What decides whether there is room (struct btrfs_space_info and the reserves of a filesystem). */
struct bm_space_info {
	/* of all groups of one kind together */
	uint64_t flags; /* of the last of them */
	uint64_t total;
	uint64_t free;
	uint64_t pinned;
	/* of all there is */
	uint64_t stale_groups; /* whose items do not say what is used */
	uint64_t refs;	       /* references that wait */
	uint64_t losing;       /* extents of data that have fewer after them */
	uint64_t dirty;	     /* bytes of tree blocks that the transaction made and did not write */
	uint64_t trees;	     /* how many of the trees that every commit changes there are */
	uint64_t tree_bytes; /* and the bytes of their blocks */
	uint64_t has_free_space_tree;
};
/* `kind`: a flag that all groups of the kind have. Returns whether `info` said something else. */
int bm_writer_space_info(const struct bm_writer *writer, uint64_t kind, struct bm_space_info *info);
/*
 * btrfs_reserve_extent() for data: up to `wanted` bytes, halved down to `least` where free space is
 * in pieces; BM_ERRNO with ENOSPC when there is none (then the caller adds a chunk and asks again).
 */
int bm_writer_reserve_data(struct bm_writer *writer, uint64_t wanted, uint64_t least, uint64_t hint,
			   uint64_t *bytenr, uint64_t *size, struct bm_fault *fault);
/*
 * What find_free_extent() remembers of a search for `size` bytes that failed (max_extent_size): the
 * largest free range of the groups of data that have as much, else the most that one of them has.
 */
uint64_t bm_writer_largest_data(const struct bm_writer *writer, uint64_t size);
/*
 * The same for all of `size`, only in groups for extents of its size class, or for none yet; 1 where
 * there is no room in those.
 */
int bm_writer_reserve_in_class(struct bm_writer *writer, uint64_t size, uint64_t hint,
			       uint64_t *bytenr, struct bm_fault *fault);
/* The data group at `start` is for extents as large as `extent`. */
int bm_writer_set_size_class(struct bm_writer *writer, uint64_t start, uint64_t extent,
			     struct bm_fault *fault);
/* Give back what was reserved and never became an extent. */
int bm_writer_release_data(struct bm_writer *writer, uint64_t bytenr, uint64_t size,
			   struct bm_fault *fault);

/* A reference of a file extent item, waiting to be run. `parent` 0: by root, inode and offset. */
struct bm_data_ref {
	uint64_t bytenr;
	uint64_t num_bytes;
	uint64_t parent;
	uint64_t root;
	uint64_t ino;
	uint64_t offset; /* of the extent's first byte in the file */
};
/* btrfs_alloc_reserved_file_extent(): a reserved range becomes an extent with one reference. */
int bm_writer_alloc_data_ref(struct bm_writer *writer, const struct bm_data_ref *refs, size_t count,
			     struct bm_fault *fault);
/* btrfs_inc_extent_ref(), btrfs_free_extent(). */
int bm_writer_inc_data_ref(struct bm_writer *writer, const struct bm_data_ref *refs, size_t count,
			   struct bm_fault *fault);
int bm_writer_drop_data_ref(struct bm_writer *writer, const struct bm_data_ref *refs, size_t count,
			    struct bm_fault *fault);
/* References and flags of an extent or block, those that wait included. */
int bm_writer_extent_info(struct bm_writer *writer, uint64_t bytenr, uint64_t *refs,
			  uint64_t *flags, struct bm_fault *fault);
/* btrfs_run_delayed_refs(): all that wait, in the kernel's order; returns how many heads. */
int64_t bm_writer_run_refs(struct bm_writer *writer, struct bm_fault *fault);
/* The same for the next `most` heads. */
int64_t bm_writer_run_some_refs(struct bm_writer *writer, int64_t most, struct bm_fault *fault);
int64_t bm_writer_waiting_refs(const struct bm_writer *writer);
/* Give as many of the references that wait as there is room for; returns how many there are. */
int64_t bm_writer_list_refs(const struct bm_writer *writer, struct bm_waiting_ref *refs,
			    size_t capacity);
/*
 * Quotas: with FULL the extents are remembered whose references from subvolumes change, with SIMPLE
 * what was allocated and freed of extents since transaction `enable_gen`. A tree that is dropped and
 * shares a subtree whose root is on `drop_subtree_threshold` or above makes them inconsistent.
 */
enum bm_quota_mode { BM_QUOTA_OFF, BM_QUOTA_FULL, BM_QUOTA_SIMPLE };
void bm_writer_set_quota(struct bm_writer *writer, int mode, uint64_t enable_gen,
			 int drop_subtree_threshold);
/* Whether quotas became inconsistent so since this was asked last. */
int bm_writer_quota_inconsistent(struct bm_writer *writer);
/* How many extents are remembered; give them, ascending, and forget them. */
int64_t bm_writer_traced(const struct bm_writer *writer);
void bm_writer_take_traced(struct bm_writer *writer, uint64_t *bytenr, uint64_t *num_bytes);
/* What subvolumes allocated less what they freed; how many did, which are forgotten if they fit. */
struct bm_quota_delta {
	uint64_t root;
	int64_t bytes;
};
int64_t bm_writer_take_deltas(struct bm_writer *writer, struct bm_quota_delta *deltas,
			      size_t capacity);

/* btrfs_csum_file_blocks(): checksums of sectors from `bytenr` on, into the csum tree (7). */
int bm_writer_insert_csums(struct bm_writer *writer, uint64_t tree, uint64_t bytenr,
			   const uint8_t *sums, size_t sectors, struct bm_fault *fault);
/* btrfs_del_csums(): what a freed data extent had; run_refs does it by itself. */
int bm_writer_delete_csums(struct bm_writer *writer, uint64_t tree, uint64_t bytenr,
			   uint64_t length, struct bm_fault *fault);
/* add_block_group_free_space(): the free space tree learns of a new block group. */
int bm_writer_free_space_group(struct bm_writer *writer, uint64_t start, struct bm_fault *fault);

#endif
