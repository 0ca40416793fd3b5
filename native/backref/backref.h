/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a backref walk gathers on its way: memory that is given back as a whole, lists of addresses
 * without duplicates, and the trees of preliminary references. Not part of the interface.
 */
#ifndef BTRFS_MODEL_BACKREF_H
#define BTRFS_MODEL_BACKREF_H

#include "image/internal.h"

/* ---------------------------------------------------------------------------------- forest -- */

/* What bm_search_slot() takes as `restart` under a behaviour. */
static inline int search_restarts(uint64_t behaviour)
{
	return !(behaviour & (1ull << BM_TOGGLE_SEARCH_NO_RESTART));
}

struct bm_image *bm_forest_image(const struct bm_forest *forest);
/* Whether the trees are those of a running transaction. */
int forest_is_running(const struct bm_forest *forest);
/* The references of an extent that wait, in the kernel's order; NULL: none does. */
const struct bm_waiting_ref *forest_waiting(const struct bm_forest *forest, uint64_t bytenr,
					    size_t *count);
/* btrfs_get_fs_root_commit_root(): *ret is NULL when there is no such root. */
int get_fs_root_commit_root(const struct bm_forest *forest, uint64_t objectid, int restart,
			    const struct bm_root **ret, struct bm_fault *fault);
/*
 * The work of that, so many times, where all blocks are in memory and were verified. *place is where
 * the root was in such a forest before, and is now.
 */
void count_fs_root_commit_root(const struct bm_forest *forest, uint64_t objectid, uint64_t times,
			       uint32_t *place);
/* read_tree_block(): a block that no search came to; generation 0 and level -1: any. */
const uint8_t *read_tree_block(struct bm_image *image, uint64_t bytenr, uint64_t generation,
			       int level, uint64_t tree, struct bm_fault *fault);

/* ----------------------------------------------------------------------------------- arena -- */

struct arena_block;

/*
 * Memory of one walk. It is handed out in order and given back in the reverse order, down to a
 * mark; the first bytes come with the arena itself, so a short walk allocates nothing.
 */
struct arena {
	struct arena_block *newest; /* NULL: still in `first` */
	size_t used;		    /* of the newest block */
	_Alignas(16) unsigned char first[8192];
};

struct arena_mark {
	struct arena_block *newest;
	size_t used;
};

void arena_init(struct arena *arena);
/* Memory that is not cleared, aligned for any type; NULL when there is none. */
void *arena_alloc(struct arena *arena, size_t size);
struct arena_mark arena_mark(const struct arena *arena);
void arena_release(struct arena *arena, struct arena_mark mark);
void arena_destroy(struct arena *arena);

/* ----------------------------------------------------------------------------------- ulist -- */

/* struct extent_inode_elem of the kernel: one file extent item that refers to a data extent. */
struct inode_elem {
	uint64_t inum;
	uint64_t offset;
	uint64_t num_bytes;
	struct inode_elem *next;
};

/* Put `tail` behind `list`, which may be empty; returns the whole list. */
struct inode_elem *inode_elems_append(struct inode_elem *list, struct inode_elem *tail);

struct ulist_node {
	uint64_t val;
	struct inode_elem *elems;
	struct ulist_node *next;
	int level; /* of the tree block at address `val`, as far as the reference says */
};

/* Numbers without duplicates, in the order in which they were added; ulist.c of the kernel. */
struct ulist {
	struct ulist_node *head;
	struct ulist_node *tail;
	struct ulist_node **table; /* open addressing, once there are many */
	size_t capacity;	   /* of the table: a power of two, or 0 */
	size_t count;
};

/* ulist_add_merge(): *node is the one with this value; 1 when it is new, 0 or BM_NOMEM. */
int ulist_add_merge(struct ulist *list, struct arena *arena, uint64_t val, struct ulist_node **node,
		    struct bm_image *image);

/* ---------------------------------------------------------------- preliminary references -- */

/*
 * A reference as it was found: `parent` is the address of the tree block that refers (direct), or
 * 0 and the block has to be found by searching `key` in `root_id` (indirect). `level` is that of
 * the referring block, `wanted` the address that is referred to.
 */
struct prelim_ref {
	struct prelim_ref *up, *left, *right;
	int red;
	int level;
	uint64_t root_id;
	struct bm_key key;
	uint64_t parent;
	uint64_t wanted;
	int64_t count;
	struct inode_elem *elems;
};

/*
 * References in descending order of (level, root_id, key type, objectid, offset, parent). The tree
 * is the kernel's, a red-black tree in which larger elements stand to the left; nothing is added
 * once reading has begun, so nothing has to be erased either.
 */
struct preftree {
	struct prelim_ref *root;
};

/*
 * prelim_ref_insert(): a reference that is there already takes over count and inodes of `ref`.
 * Returns the one that is in the tree then.
 */
struct prelim_ref *prelim_ref_insert(struct preftree *tree, struct prelim_ref *ref,
				     struct bm_image *image);
struct prelim_ref *prelim_first(const struct preftree *tree);
struct prelim_ref *prelim_next(const struct prelim_ref *ref);
/* Whether a data reference by the leaf at `parent` is among the direct ones. */
int is_shared_data_backref(const struct preftree *direct, uint64_t parent, struct bm_image *image);

/* ------------------------------------------------------------------------------------ walk -- */

enum { STOP = 5 }; /* BTRFS_ITERATE_EXTENT_INODES_STOP; 1 is what a search returns */

/* Answers that end find_parent_nodes() early; below all of enum bm_code, so they pass as faults. */
enum {
	BACKREF_FOUND_SHARED = -1000,
	BACKREF_FOUND_NOT_SHARED = -1001,
};

/* struct share_check of the kernel: whether one data extent of a file is shared. */
struct share_check {
	struct share_context *context;
	uint64_t data_bytenr;
	uint64_t data_extent_gen;
	int share_count;	/* references with a positive count */
	int drops_wait;		/* one that the extent tree has may be dropped already */
	int64_t self_ref_count; /* file extent items of the inode that are known to refer to it */
};

struct walk {
	const struct bm_backref_walk *ask;
	const struct bm_forest *forest;
	struct bm_image *image;
	const struct bm_root *extent_root;
	struct bm_fault *fault;
	uint64_t bytenr; /* whose references are sought */
	int level;	 /* of the tree block at bytenr; -1: a data extent */
	int want_inodes; /* !skip_inode_ref_list */
	int restart;
	struct bm_known *known;	 /* that of `ask`, which may be gone in the end */
	struct bm_known *record; /* of the walk to roots that goes on; NULL: it is not remembered */
	struct bm_known *steps;	 /* of that to leaves */
	struct ulist refs;	 /* parents found, with the inode elements of leaves */
	struct ulist roots;	 /* trees of which a root node was found */
	int want_roots;
	struct arena lists;  /* of lists and inode elements */
	struct arena prelim; /* of the preliminary references of one find_parent_nodes() */
	struct preftree direct, indirect, missing_keys;
	struct share_check *share; /* NULL: all references are wanted */
	/* through a running transaction: btrfs_search_old_slot() does not call btrfs_search_slot() */
	int transaction;
};

struct walk *walk_create(const struct bm_backref_walk *ask, struct bm_fault *fault);
void walk_destroy(struct walk *walk);
/* One step upwards from walk->bytenr, into walk->refs and walk->roots. */
int find_parent_nodes(struct walk *walk);
/* A step that ended with ENOENT only found nothing: the walk goes on with what there is. */
int tolerate_enoent(struct walk *walk, int ret);

/* A fault in the item in `slot` of a leaf of the extent tree, or of a file's tree. */
int backref_fail_at(struct walk *walk, int code, const uint8_t *leaf, uint32_t slot, uint64_t found,
		    uint64_t wanted);
int backref_fail_nomem(struct walk *walk);
/* What check_extent_item returned that stops the walk: STOP, or its errno as a fault. */
int backref_stopped(struct walk *walk, int ret);
/* btrfs_next_old_item(): 1 when there is none. */
int backref_next_item(const struct bm_root *root, struct bm_path *path, struct bm_fault *fault);
/* All references that the extent tree has for walk->bytenr, into the three trees. */
int backref_collect_refs(struct walk *walk);

/* ------------------------------------------------------------------------------- sharedness -- */

struct shared_entry {
	uint64_t bytenr; /* 0: none */
	int is_shared;
};

/*
 * struct btrfs_backref_share_check_ctx: what one FIEMAP call remembers. A result in the path cache
 * holds until a snapshot is made or a subvolume is dropped, which does not happen to an image.
 */
struct share_context {
	struct walk *walk;
	uint64_t root_id;
	uint64_t inum;
	uint64_t last_snapshot; /* generation of the last snapshot of the root */
	uint64_t behaviour;
	uint64_t curr_leaf_bytenr;
	uint64_t prev_leaf_bytenr;
	int use_path_cache;
	struct shared_entry path[BTRFS_MAX_LEVEL]; /* by level */
	struct shared_entry *prev_extents;
	uint32_t prev_extents_size;
	uint32_t prev_extents_slot;
};

/* A prelim ref of a data extent was added: BACKREF_FOUND_SHARED once there are two. */
int update_share_count(struct walk *walk, int64_t old_count, int64_t new_count,
		       const struct prelim_ref *ref);
/* The references of a data extent are known: what may be answered before they are resolved. */
int share_before_resolving(struct walk *walk);
/* btrfs_is_data_extent_shared(), btrfs_check_shared() before 6.1: 1, 0 or a fault. */
int is_data_extent_shared(struct share_context *context, uint64_t bytenr, uint64_t extent_gen);

#endif
