/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who refers to an extent or tree block: the kernel's backref.c.
 *
 * The extent tree answers with trees and blocks, some of which refer to others; a walk goes up
 * until each is a file, or a root. It is what send finds sources of clones with, what FIEMAP tells
 * shared extents by, and what LOGICAL_INO answers.
 */
#ifndef BTRFS_MODEL_BACKREF_API_H
#define BTRFS_MODEL_BACKREF_API_H

#include <stddef.h>
#include <stdint.h>

#include "base/fault.h"
#include "ondisk.h"
#include "toggles.h"
#include "tree/api.h"

/*
 * All trees of a filesystem, so that the root id of a reference leads to a tree. `roots` may come
 * in any order and are copied; of several with one objectid the last one counts. The tree of roots
 * (1) and the extent tree (2) belong to it, and so do deleted subvolumes that still have a root
 * item: the kernel's walk through commit roots reports them.
 */
struct bm_forest;
struct bm_forest *bm_forest_create(struct bm_image *image, const struct bm_root *roots,
				   size_t count, struct bm_fault *fault);
void bm_forest_destroy(struct bm_forest *forest);
/* NULL: no such root. */
const struct bm_root *bm_forest_root(const struct bm_forest *forest, uint64_t objectid);
/*
 * Say that a subvolume has been opened since mount (by a path, by send ..). Each time a walk comes
 * to one that has not, the kernel searches the tree of roots for it and reads its root node. Tree
 * 5 is always open.
 */
void bm_forest_open(struct bm_forest *forest, uint64_t objectid);
/*
 * A reference that the extent tree has yet to learn of, as the running transaction noted it: a
 * delayed one. `count` is negative where it is dropped.
 */
struct bm_waiting_ref {
	uint64_t bytenr;
	uint64_t value;	 /* tree, or the block that refers to it (SHARED_*) */
	uint64_t ino;	 /* EXTENT_DATA_REF */
	uint64_t offset; /* EXTENT_DATA_REF */
	int64_t count;
	uint8_t type; /* BTRFS_TREE_BLOCK_REF_KEY ... */
	int8_t level; /* of a tree block; -1: data */
};
/* The trees are those of a running transaction, with these references, which are copied. */
int bm_forest_set_waiting(struct bm_forest *forest, const struct bm_waiting_ref *refs, size_t count,
			  struct bm_fault *fault);

/*
 * What sends remember for each other, of one image that nothing changes, without the cache of a cold
 * kernel, of one behaviour and with the same limits. NULL: no memory.
 */
struct bm_known;
struct bm_known *bm_known_create(void);
void bm_known_destroy(struct bm_known *known);

/*
 * A backref walk: struct btrfs_backref_walk_ctx of 6.2 and the parameters of the functions before
 * it, through commit roots, or through a running transaction where the forest is of one. Every
 * callback gets `context` and may be NULL.
 */
struct bm_backref_walk {
	const struct bm_forest *forest;
	uint64_t bytenr;	    /* of the extent */
	uint64_t extent_item_pos;   /* only file extents that show this byte of the extent, */
	int ignore_extent_item_pos; /* unless this is set; compressed ones are always taken */
	uint64_t behaviour;	/* bits 1 << BM_TOGGLE_x: SEARCH_NO_RESTART, SEND_BACKREF_SKIP */
	struct bm_known *known; /* NULL: nothing is remembered */
	void *context;
	/* of every extent item on the way: < 0 is an errno; -ENOENT: as if it had no references */
	int (*check_extent_item)(uint64_t bytenr, const struct btrfs_extent_item *item,
				 void *context);
	/* 1: leave this reference out */
	int (*skip_data_ref)(uint64_t root, uint64_t ino, uint64_t offset, void *context);
	/* 1 and the roots that reach a leaf, when they are known; valid until the next call */
	int (*cache_lookup)(uint64_t leaf, void *context, const uint64_t **roots, size_t *count);
	/* < 0 as for `iterate` */
	int (*cache_store)(uint64_t leaf, const uint64_t *roots, size_t count, void *context);
	/*
	 * > 0 ends the walk (BTRFS_ITERATE_EXTENT_INODES_STOP), < 0 is the code of a fault, which it
	 * has written where the walk's own go
	 */
	int (*iterate)(uint64_t ino, uint64_t offset, uint64_t num_bytes, uint64_t root,
		       void *context);
};

/*
 * iterate_extent_inodes(): hand each file extent item that refers to the data extent to `iterate`.
 * An errno of check_extent_item comes back as BM_ERRNO with fault->found. Of an image that contradicts
 * itself the fault names the block or item: BM_BAD_LEVEL (a block is not on the level that led to
 * it), BM_LOOP (a block is above itself or on two levels: block = referred to, found = parent),
 * BM_NOT_FOUND (a tree block without extent item: found = address), BM_BAD_VALUE.
 */
int bm_iterate_extent_inodes(const struct bm_backref_walk *walk, struct bm_fault *fault);

/*
 * The same as an array: each reference that `iterate` would get. `walk` must have no callbacks. The
 * rows belong to the caller, who gives them back with bm_inode_refs_free().
 */
struct bm_inode_ref {
	uint64_t ino;
	uint64_t offset;
	uint64_t num_bytes;
	uint64_t root;
};
struct bm_inode_refs {
	struct bm_inode_ref *rows;
	size_t count;
	size_t capacity;
};
int bm_collect_inode_refs(const struct bm_backref_walk *walk, struct bm_inode_refs *refs,
			  struct bm_fault *fault);
void bm_inode_refs_free(struct bm_inode_refs *refs);

/*
 * btrfs_find_all_leafs(): addresses of the leaves with file extent items of the data extent;
 * btrfs_find_all_roots_safe(): the trees that reach the extent or tree block. Both give as many as
 * there is room for, in the kernel's order, and return how many there are.
 */
int64_t bm_find_all_leafs(const struct bm_backref_walk *walk, uint64_t *leafs, size_t capacity,
			  struct bm_fault *fault);
int64_t bm_find_all_roots(const struct bm_backref_walk *walk, uint64_t *roots, size_t capacity,
			  struct bm_fault *fault);

/*
 * extent_from_logical(): the extent that holds an address; BM_ERRNO with ENOENT when none does.
 * *flags is BTRFS_EXTENT_FLAG_DATA or _TREE_BLOCK alone; of `behaviour` SEARCH_NO_RESTART counts.
 */
int bm_extent_from_logical(const struct bm_forest *forest, uint64_t logical, uint64_t behaviour,
			   struct bm_key *found, uint64_t *flags, uint64_t *refs,
			   struct bm_fault *fault);

/*
 * What extents count for, by the subvolumes that reach them (btrfs_qgroup_account_extents()): the
 * bytes of all extents together whose set of subvolumes was number `before` and is number `now`.
 * Those of which it did not change are left out. Set i is ids[first[i]] .. ids[first[i + 1] - 1],
 * ascending; number 0 is the empty one.
 */
struct bm_account_row {
	uint32_t before;
	uint32_t now;
	uint64_t bytes;
};
struct bm_account {
	struct bm_account_row *rows;
	size_t row_count;
	size_t row_capacity;
	uint64_t *ids;
	size_t *first;
	size_t set_count;
};
/* `before` NULL: nothing was there. The account belongs to the caller: bm_account_free(). */
int bm_account_extents(const struct bm_forest *before, const struct bm_forest *now,
		       const uint64_t *bytenr, const uint64_t *num_bytes, size_t count,
		       struct bm_account *account, struct bm_fault *fault);
void bm_account_free(struct bm_account *account);

#endif
