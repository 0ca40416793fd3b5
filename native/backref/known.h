/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What sends of one image remember for each other; see known.c. Not part of the interface.
 */
#ifndef BTRFS_MODEL_KNOWN_H
#define BTRFS_MODEL_KNOWN_H

#include "backref/backref.h"

/* Of two leaves: how many items behind a slot of each are the same, see bm_compare_run(). */
struct known_run {
	uint16_t low_slot, high_slot; /* of the leaf with the lower address, and of the other */
	uint16_t count;
};
struct known_runs {
	size_t count;
	struct known_run rows[];
};
/* What is known of two leaves, the one with the lower address first; NULL: nothing. */
const struct known_runs *known_runs(const struct bm_known *known, uint64_t low, uint64_t high);
void known_add_runs(struct bm_known *known, uint64_t low, uint64_t high,
		    const struct known_run *rows, size_t count);

/* Memory of a walk that ended; NULL: there is none. */
struct walk *known_take_walk(struct bm_known *known);
void known_keep_walk(struct bm_known *known, struct walk *walk);

/* Searches for an inode that end as they did before: of no more work than one search. */
enum known_search {
	KNOWN_NO_CAPABILITIES = 1,
	KNOWN_OPENED = 2,
};

struct known_inode {
	const uint8_t *item;
	uint64_t generation;
	uint32_t nlink;
	uint32_t exists;	 /* 0: there is no such inode, and no item */
	const uint8_t *ref_leaf; /* with the item of its first name; NULL: not known */
	uint32_t ref_slot;
	uint32_t searched; /* enum known_search */
	uint64_t leads_to; /* inode of the entry of that name; 0: not known */
};
/* NULL: it is not known. */
struct known_inode *known_inode(const struct bm_known *known, const struct bm_root *root,
				uint64_t ino);
/* The work of searches in a tree, where all blocks are in memory: they go down level by level. */
static inline void count_searches(const struct bm_root *root, uint64_t times)
{
	COUNT_N(root->image, btrfs_search_slot, times);
	COUNT_N(root->image, read_block_for_search, times * (uint64_t)root->level);
}

static inline void count_search(const struct bm_root *root)
{
	count_searches(root, 1);
}

void known_add_inode(struct bm_known *known, const struct bm_root *root, uint64_t ino,
		     const uint8_t *item);

struct known_leaf;
/* NULL: nothing is known of a leaf. */
const struct known_leaf *known_leaf(const struct bm_known *known, uint64_t leaf);
/* The trees that reach it, in the kernel's order. */
void known_leaf_roots(const struct known_leaf *leaf, const uint64_t **roots, size_t *count);
/* Count the work of the walk that told them. */
void known_leaf_work(const struct known_leaf *leaf, const struct bm_forest *forest);
/* A walk that tells them begins, comes to a tree, ends, and is remembered. */
void known_begin(struct bm_known *known, struct bm_image *image);
int known_visit(struct bm_known *known, const struct bm_forest *forest, uint64_t id, int restart,
		const struct bm_root **root, struct bm_fault *fault);
void known_end(struct bm_known *known, struct bm_image *image);
void known_add_leaf(struct bm_known *known, uint64_t leaf, const uint64_t *roots, size_t count);

/* Work that was done: which, and how often. */
struct known_work {
	uint32_t counter;
	uint32_t times;
};

/*
 * What happened on the way to the leaves that refer to a data extent, and after how much work: the
 * extent item was seen, a tree was come to, an element was found in a leaf.
 */
enum known_kind { KNOWN_ITEM, KNOWN_TREE, KNOWN_ELEM, KNOWN_END };
struct known_step {
	enum known_kind kind;
	uint32_t work_count;
	uint64_t at;		/* the tree, or the leaf */
	struct inode_elem elem; /* `next` is not set */
};
struct known_refs {
	uint64_t leaf;
	struct inode_elem *elems;
	const struct known_leaf *known; /* NULL: not looked up yet */
};
/* Whether a reference was left out. */
struct known_asked {
	uint64_t root, ino, offset;
	uint64_t skip;
};
struct known_extent {
	const struct btrfs_extent_item *item;
	int stopped; /* the item ended it */
	size_t step_count, ref_count, asked_count;
	struct known_asked *asked;
	struct known_refs *refs; /* the leaves in the end; what is looked up of them is set */
	struct known_work *work; /* of the steps */
	struct known_step steps[];
};

/* NULL: the walk is not known, or now leaves other references out. */
const struct known_extent *known_extent(const struct bm_known *known,
					const struct bm_backref_walk *ask);
/* Such a walk begins, which counts nothing; what happens; it ends and, unless it failed, is remembered. */
void known_begin_extent(struct bm_known *known, struct bm_image *image);
void known_skip(struct bm_known *known, const struct known_asked *asked);
void known_item(struct bm_known *known, const struct btrfs_extent_item *item, int stopped);
int known_tree(struct bm_known *known, const struct bm_forest *forest, uint64_t id, int restart,
	       const struct bm_root **root, struct bm_fault *fault);
void known_elem(struct bm_known *known, uint64_t leaf, const struct inode_elem *elem);
const struct known_extent *known_end_extent(struct bm_known *known, const struct walk *walk,
					    int failed);

#endif
