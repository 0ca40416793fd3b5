/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the kernels of the writer share. Not part of the interface.
 *
 *   writer/writer.c           the writer, its trees, the blocks that changed
 *   writer/sound.c            what assertions ask of blocks and paths
 *   writer/btree/leaf.c       items of a leaf: insert, delete, split, push to a neighbour
 *   writer/btree/node.c       pointers of a node: insert, delete, split, balance, a new root
 *   writer/btree/search.c     btrfs_search_slot() for changes: COW on the way down, splits ahead
 *   writer/btree/finger.c     the same where one of the last few changes was
 *   writer/btree/edit.c       the items of btree/api.h, each a search and a change
 *   bulk/apply.c              many changes in one call
 *   bulk/new_files.c          many empty files in one call
 *   bulk/new_inodes.c         many inodes that are made and renamed
 *   bulk/write_files.c        many files that are written back
 *   bulk/unlink.c             many empty files that go
 *   bulk/copy.c               copies of many items, for logs
 *   writer/btree/ground.c     blocks for the Python twin of these
 *   writer/btree/cow.c        btrfs_cow_block()
 *   writer/space/cow_refs.c   update_ref_for_cow(), __btrfs_mod_ref(), btrfs_copy_root()
 *   writer/space/drop.c       btrfs_drop_snapshot()
 *   writer/space/free_map.c   free ranges of a block group
 *   writer/space/alloc.c      find_free_extent(), pinned ranges, tree blocks
 *   writer/space/refs.c       delayed references, and how they are run
 *   writer/space/extent.c     extent items, their inline and keyed references
 *   writer/space/quota.c      what quota groups learn of references
 *   writer/space/csum.c       the csum tree
 *   writer/space/free_space.c the free space tree
 */
#ifndef BTRFS_MODEL_WRITER_H
#define BTRFS_MODEL_WRITER_H

#include "base/asserts.h"
#include "image/internal.h"

#include <string.h>

enum {
	BM_HEADER_WRITTEN = 1,
	BM_HEADER_RELOC = 2,
};
/* BTRFS_MIXED_BACKREF_REV << BTRFS_BACKREF_REV_SHIFT: in every header.flags */
#define BM_HEADER_BACKREF_REV (1ULL << 56)
/*
 * Leaves of a log that a processor's last cache of 32 MiB holds: with each goes a leaf of the
 * subvolume, and the inodes of the 70 files that they tell of; 170 KiB together. One of 16 MiB
 * holds half of them, one of 8 MiB a quarter.
 */
#define BM_LOG_CACHE 192
#define BM_LOG_CACHES 3

struct bm_space;	/* writer/space/alloc.c: block groups, free and pinned ranges, clusters */
struct bm_waiting_refs; /* writer/space/refs.c: heads by address */
struct bm_quota;	/* writer/space/quota.c: extents that quota groups have to look at */

struct bm_writer {
	struct bm_image *image;
	uint8_t *base;
	uint32_t nodesize;
	uint32_t sectorsize;
	uint32_t leaf_size; /* BTRFS_LEAF_DATA_SIZE */
	uint32_t node_ptrs; /* BTRFS_NODEPTRS_PER_BLOCK */
	uint64_t transid;
	uint32_t features;
	uint32_t ssd;
	uint64_t behaviour; /* bits 1 << BM_TOGGLE_x */
	uint8_t fsid[16];
	uint8_t chunk_tree_uuid[16];
	struct bm_writer_tree **trees; /* ascending by id; each stays where it is */
	size_t tree_count;
	size_t tree_capacity;
	uint64_t *changed; /* ids of the trees that are dirty, and of some that are gone */
	size_t changed_count;
	size_t changed_capacity; /* no less than changed_count and all other trees */
	uint8_t *dirty_bits;	 /* a bit a sector of the image, as bm_image.verified */
	uint64_t *dirty;	 /* logical addresses, in the order in which they became dirty */
	size_t dirty_count;
	size_t dirty_blocks; /* those whose bit is set: others were freed since */
	size_t dirty_capacity;
	uint64_t structure;  /* counts changes of anything but items within a leaf; from 1 on */
	uint8_t *loose_bits; /* a bit a sector: leaves whose data is not in the order of items */
	uint8_t **loose;     /* these leaves, and some that were; none between two calls */
	size_t loose_count;
	size_t loose_capacity;
	uint64_t log_leaf; /* address of the leaf of a log that the last insertion went to */
	/* addresses of leaves of logs, each where it belongs, the largest cache first */
	uint64_t log_cache[BM_LOG_CACHES][BM_LOG_CACHE];
	struct bm_space *space;
	struct bm_waiting_refs *refs;
	struct bm_quota *quota;
};

/* ---- writer.c */

/* The tree changed: it is dirty, and among the changed ones. */
void bm_writer_note_changed(struct bm_writer *writer, struct bm_writer_tree *tree);
/* NULL and a fault BM_NOT_FOUND: the writer has no such tree. */
struct bm_writer_tree *bm_writer_tree_of(const struct bm_writer *writer, uint64_t id,
					 struct bm_fault *fault);
/* A block for reading (verified) or for writing (of this transaction and COWed already). */
const uint8_t *bm_writer_read(struct bm_writer *writer, const struct bm_writer_tree *tree,
			      uint64_t logical, uint64_t generation, int level,
			      struct bm_fault *fault);
static inline uint8_t *bm_writer_writable(const struct bm_writer *writer, const uint8_t *block)
{
	return writer->base + (block - writer->image->blocks);
}
/* The same for the child at `slot` of a node, whose first key must be what the node says. */
const uint8_t *bm_writer_read_child(struct bm_writer *writer, const struct bm_writer_tree *tree,
				    const uint8_t *node, uint32_t slot, struct bm_fault *fault);
/* The block will be written out with the transaction; until then it counts as verified. */
int bm_writer_mark_dirty(struct bm_writer *writer, uint64_t logical, struct bm_fault *fault);
/* A block whose last reference goes: neither dirty nor verified any more, in any copy. */
void bm_writer_forget_block(struct bm_writer *writer, uint64_t logical);
/*
 * The range is about to be written to. In a damaged image a tree block may lie there that was read,
 * and verified, before: whoever reads it again has to verify it again.
 */
void bm_writer_forget_range(struct bm_writer *writer, uint64_t logical, uint64_t size);
/* BM_ERRNO: what the kernel would return. */
static inline int bm_writer_errno(struct bm_fault *fault, const struct bm_writer_tree *tree,
				  int number)
{
	return bm_fail(fault, (struct bm_fault){.code = BM_ERRNO,
						.tree = tree ? tree->id : 0,
						.found = (uint64_t)number});
}
static inline struct btrfs_header *header_of(uint8_t *block)
{
	return (struct btrfs_header *)block;
}
static inline struct btrfs_item *item_of(uint8_t *leaf, uint32_t slot)
{
	return (struct btrfs_item *)(leaf + BTRFS_HEADER_SIZE) + slot;
}
static inline struct btrfs_key_ptr *ptr_of(uint8_t *node, uint32_t slot)
{
	return (struct btrfs_key_ptr *)(node + BTRFS_HEADER_SIZE) + slot;
}
static inline struct btrfs_disk_key to_disk_key(const struct bm_key *key)
{
	return (struct btrfs_disk_key){
	    .objectid = key->objectid, .type = key->type, .offset = key->offset};
}
/* Whether a block may be changed in place: should_cow_block() says no. */
int bm_writer_is_ours(const struct bm_writer *writer, const struct bm_writer_tree *tree,
		      const uint8_t *block);
/* Whether the running transaction made it and has not written it yet. */
int bm_writer_is_new(const struct bm_writer *writer, const uint8_t *block);

#define TREE_LOG_OBJECTID ((uint64_t)-6)
#define TREE_RELOC_OBJECTID ((uint64_t)-8)
/* A tree of relocation, of whose blocks each refers by its address (BTRFS_TREE_RELOC_OBJECTID). */
static inline int bm_writer_is_reloc(const struct bm_writer_tree *tree)
{
	return tree->owner == TREE_RELOC_OBJECTID;
}

/* Nothing is known of a tree any more; its blocks stay. */
void bm_writer_forget_tree(struct bm_writer *writer, uint64_t id);
/* The tree has this root, a block of the running transaction. */
static inline int bm_writer_is_root(const struct bm_writer_tree *tree, const uint8_t *block)
{
	return block_header(block)->bytenr == tree->bytenr;
}
void bm_writer_set_root(struct bm_writer *writer, struct bm_writer_tree *tree,
			const uint8_t *block);

/* ---- writer/sound.c, for assertions alone */

/* Whether data of items lie one before the other in the leaf, its headers fit, and keys ascend. */
int bm_leaf_is_sound(const struct bm_writer *writer, const uint8_t *leaf);
/* Whether a node has pointers, no more than fit, and their keys ascend. */
int bm_node_is_sound(const struct bm_writer *writer, const uint8_t *node);
/* Whether a path that a search for changes filled leads from the root to blocks that may be changed. */
int bm_path_is_sound(const struct bm_writer *writer, const struct bm_writer_tree *tree,
		     const struct bm_path *path);

/* ---- writer/space/alloc.c */

int bm_space_create(struct bm_writer *writer, struct bm_fault *fault);
void bm_space_destroy(struct bm_writer *writer);
/*
 * btrfs_alloc_tree_block(): room for a block near `hint`, its header filled in, dirty, verified and
 * with a reference waiting (none for the trees of a log, owner -6). `first` is its first key.
 * tree->bytes_used grows by a nodesize here and shrinks in bm_writer_free_block(), whether the
 * reference was the last one or not: the tree does not have the block any more.
 */
uint8_t *bm_writer_alloc_block(struct bm_writer *writer, struct bm_writer_tree *tree, int level,
			       const struct bm_key *first, uint64_t hint, struct bm_fault *fault);
/* The same for a tree of relocation (owner -8), of `parent`, 0: it is the root, whose parent is itself. */
uint8_t *bm_writer_alloc_reloc(struct bm_writer *writer, struct bm_writer_tree *tree, int level,
			       const struct bm_key *first, uint64_t hint, uint64_t parent,
			       struct bm_fault *fault);
/* btrfs_free_tree_block(): the tree gives its reference back; last_ref: nobody else has one. */
int bm_writer_free_block(struct bm_writer *writer, struct bm_writer_tree *tree,
			 const uint8_t *block, uint64_t parent, int last_ref,
			 struct bm_fault *fault);
/* An extent lost its last reference: pinned until the commit, or free at once. */
int bm_space_pin(struct bm_writer *writer, uint64_t bytenr, uint64_t size, int at_once,
		 struct bm_fault *fault);
/* block_group.used of the group that holds the address. */
int bm_space_used(struct bm_writer *writer, uint64_t bytenr, int64_t change,
		  struct bm_fault *fault);

/* ---- writer/space/refs.c */

int bm_refs_create(struct bm_writer *writer, struct bm_fault *fault);
void bm_refs_destroy(struct bm_writer *writer);
enum bm_ref_action { BM_REF_ALLOC, BM_REF_ADD, BM_REF_DROP };
/*
 * btrfs_add_delayed_tree_ref(): by owner, or by parent block where that is not 0. `owning_root`: who
 * allocated the block, 0 where that is not known.
 */
int bm_refs_tree(struct bm_writer *writer, enum bm_ref_action action, uint64_t bytenr,
		 uint64_t parent, uint64_t owner, uint64_t owning_root, int level,
		 const struct bm_key *first, struct bm_fault *fault);
/* btrfs_add_delayed_data_ref() */
int bm_refs_data(struct bm_writer *writer, enum bm_ref_action action, const struct bm_data_ref *ref,
		 struct bm_fault *fault);
/* btrfs_add_delayed_extent_op(): set these flags (BTRFS_BLOCK_FLAG_FULL_BACKREF) in the item. */
int bm_refs_set_flags(struct bm_writer *writer, uint64_t bytenr, uint64_t flags, int level,
		      struct bm_fault *fault);

/*
 * check_ref_cleanup(): forget a new block of which no reference is left. 1: it was forgotten, and
 * nobody knows of it any more; 0: what waits will be run.
 */
int bm_refs_forget(struct bm_writer *writer, uint64_t bytenr);

/* Parts of bm_writer_space_info(): of the references that wait, and of the trees. */
struct bm_space_info;
void bm_refs_info(const struct bm_writer *writer, struct bm_space_info *info);
void bm_writer_tree_info(const struct bm_writer *writer, struct bm_space_info *info);
/* How many references were ever noted: a block that is made or copied changes it. */
uint64_t bm_refs_noted(const struct bm_writer *writer);

/* ---- writer/space/quota.c: nothing is done without quotas */

int bm_quota_create(struct bm_writer *writer, struct bm_fault *fault);
void bm_quota_destroy(struct bm_writer *writer);
int bm_quota_is_simple(const struct bm_writer *writer);
/* btrfs_qgroup_trace_extent(): references of a subvolume to this extent change. */
int bm_quota_trace(struct bm_writer *writer, uint64_t root, uint64_t bytenr, uint64_t num_bytes,
		   struct bm_fault *fault);
/* btrfs_qgroup_trace_subtree(): a tree that is dropped loses all below the child at `slot`. */
int bm_quota_trace_subtree(struct bm_writer *writer, const struct bm_writer_tree *tree,
			   const uint8_t *node, uint32_t slot, struct bm_fault *fault);
/* btrfs_record_squota_delta(): bytes of an extent of this generation came, or went (negative). */
int bm_quota_delta(struct bm_writer *writer, uint64_t root, int64_t bytes, uint64_t generation,
		   struct bm_fault *fault);

/* ---- writer/space/free_space.c: nothing is done without the feature */

int bm_free_space_add(struct bm_writer *writer, uint64_t start, uint64_t size,
		      struct bm_fault *fault);
int bm_free_space_remove(struct bm_writer *writer, uint64_t start, uint64_t size,
			 struct bm_fault *fault);
/* start, length and flags of the block group that holds an address (writer/space/alloc.c) */
int bm_space_group_of(const struct bm_writer *writer, uint64_t bytenr,
		      struct bm_writer_group *group, struct bm_fault *fault);

/* ---- writer/btree/cow.c */

/*
 * btrfs_cow_block(): a block of this transaction in the place of path->node[level], whose parent
 * (node[level + 1], COWed already, or none: the root) is made to point at it.
 */
int bm_writer_cow(struct bm_writer *writer, struct bm_writer_tree *tree, struct bm_path *path,
		  int level, struct bm_fault *fault);
/* The same for the child at `slot` of `parent`; returns the block to write to, NULL on failure. */
uint8_t *bm_writer_cow_child(struct bm_writer *writer, struct bm_writer_tree *tree, uint8_t *parent,
			     uint32_t slot, struct bm_fault *fault);

/* ---- writer/space/cow_refs.c */

/*
 * update_ref_for_cow(): `copy` is what `old` becomes in this tree, which gives the references of
 * both to what they point at; *last_ref: nobody else has the old block.
 */
int bm_writer_update_refs_for_cow(struct bm_writer *writer, struct bm_writer_tree *tree,
				  const uint8_t *old, uint8_t *copy, int *last_ref,
				  struct bm_fault *fault);

/*
 * __btrfs_mod_ref(): what a block points at gets a reference or loses one, by the block itself
 * (full_backref) or by its owner. Leaves of trees that cannot be shared point at nothing.
 */
int bm_writer_mod_refs(struct bm_writer *writer, const struct bm_writer_tree *tree,
		       const uint8_t *block, int full_backref, enum bm_ref_action action,
		       struct bm_fault *fault);

/* A file extent item that refers to data, and what it refers to, by inode. 0: it does not. */
int bm_writer_data_ref_of(const uint8_t *leaf, uint32_t slot, struct bm_data_ref *ref,
			  struct bm_fault *fault);

/* ---- writer/btree/search.c */

/*
 * btrfs_search_slot(ins_len, cow = 1): 0 found, 1 not found. ins_len > 0: room for that many bytes
 * (item headers included) is made in the leaf; < 0: nodes on the way are balanced. With `extend`
 * the item found is to grow (path->search_for_extension of the kernel). Every block of the path may
 * be written to; path->lowest_level is obeyed. Where the key is not found, room may have been made
 * in a leaf that is still empty, so an insertion has to follow.
 */
enum { BM_SEARCH_INSERT, BM_SEARCH_EXTEND, BM_SEARCH_SPLIT };
int bm_writer_search_slot(struct bm_writer *writer, struct bm_writer_tree *tree,
			  const struct bm_key *key, int ins_len, int extend, struct bm_path *path,
			  struct bm_fault *fault);
/* The key that everything in the leaf of the path is below; 0: there is none, it is the last. */
int bm_path_upper_bound(const struct bm_path *path, struct bm_key *bound);
/* btrfs_search_slot() for reading in a tree that is being changed; next leaf likewise. */
int bm_writer_find(struct bm_writer *writer, const struct bm_writer_tree *tree,
		   const struct bm_key *key, struct bm_path *path, struct bm_fault *fault);

/* ---- writer/btree/finger.c */

/* Where the search of a change led. */
struct bm_finger {
	struct bm_path path;
	uint64_t structure;  /* of the writer while this is true; 0: never */
	struct bm_key bound; /* keys of the leaf are less, if `bounded` */
	int bounded;
	int leftmost; /* there is no leaf before: any lower key belongs here as well */
	int full;     /* an insertion splits a node on the way */
};
/* The last few of a run of changes of one tree, within one call of a kernel; zeros at first. */
enum { BM_FINGERS = 2 };
struct bm_fingers {
	struct bm_finger at[BM_FINGERS];
	size_t last;
	int loose; /* there are many insertions, and bm_writer_tidy() follows */
};
/*
 * The finger to which a search for `key` that makes room for `size` bytes (0: none) leads; the
 * search is counted, and slot[0] is the key's. NULL: that is not known, a search has to be made.
 */
struct bm_finger *bm_finger_at(struct bm_writer *writer, struct bm_writer_tree *tree,
			       struct bm_fingers *fingers, const struct bm_key *key, uint32_t size,
			       int *found);
/* The finger whose path a search may fill; bm_finger_keep() after the change makes it known. */
struct bm_finger *bm_finger_next(struct bm_fingers *fingers);
void bm_finger_keep(const struct bm_writer *writer, const struct bm_writer_tree *tree,
		    struct bm_finger *finger);
/* Count a search that is left out. */
void bm_finger_count(struct bm_writer *writer, struct bm_writer_tree *tree);
/* Whether bm_writer_search_slot() would find this path as it is and change nothing. */
int bm_path_is_ready(const struct bm_writer *writer, const struct bm_writer_tree *tree,
		     const struct bm_path *path, uint32_t size);

/* ---- writer/btree/edit.c */

/* bm_writer_insert() and bm_writer_update() with offset 0, in a run of changes. */
int bm_writer_insert_near(struct bm_writer *writer, struct bm_writer_tree *tree,
			  struct bm_fingers *fingers, const struct bm_key *keys,
			  const uint32_t *sizes, size_t count, const uint8_t *data,
			  struct bm_fault *fault);
int bm_writer_update_near(struct bm_writer *writer, struct bm_writer_tree *tree,
			  struct bm_fingers *fingers, const struct bm_key *key, const uint8_t *data,
			  uint32_t size, struct bm_fault *fault);

/* ---- bulk/apply.c */

/* insert_with_overflow(), btrfs_insert_inode_ref(): `data` is the whole entry with its name. */
int bm_writer_insert_entry_near(struct bm_writer *writer, struct bm_writer_tree *tree,
				struct bm_fingers *fingers, const struct bm_key *key,
				const uint8_t *data, uint32_t size, struct bm_fault *fault);

/* ---- logs */

/* Whether a block is of a log or of the tree of the logs. */
static inline int bm_is_log(const uint8_t *block)
{
	return block_header(block)->owner == TREE_LOG_OBJECTID;
}
/* Count what is copied into a log. */
static inline void bm_count_copied(const struct bm_writer *writer, uint64_t items, uint64_t bytes)
{
	COUNT_N(writer->image, log_items_copied, items);
	COUNT_N(writer->image, log_bytes_copied, bytes);
}

/* ---- writer/btree/leaf.c, writer/btree/node.c: changes at a place that a search with ins_len found */

/*
 * A loose leaf: the data of its items is packed, but in any order, so that an insertion moves none
 * of it. It is so within one call alone, with bm_setup_items_loose(); what else changes a leaf
 * tidies it first.
 */
static inline int bm_leaf_is_loose(const struct bm_writer *writer, const uint8_t *leaf)
{
	uint64_t sector = (uint64_t)(leaf - writer->image->blocks) / writer->sectorsize;

	return writer->loose_bits[sector / 8] >> sector % 8 & 1;
}
/* leaf_data_end(): where the data begins. Of a loose leaf its checksum says so, which comes last. */
static inline uint32_t bm_leaf_start(const struct bm_writer *writer, const uint8_t *leaf)
{
	uint32_t n = block_header(leaf)->nritems, start = writer->leaf_size;

	if (bm_leaf_is_loose(writer, leaf))
		memcpy(&start, leaf, sizeof(start));
	else if (n)
		start = leaf_item(leaf, n - 1)->offset;
	return start;
}
static inline uint32_t bm_leaf_used(const struct bm_writer *writer, const uint8_t *leaf)
{
	uint32_t n = block_header(leaf)->nritems;
	return n ? n * BTRFS_ITEM_SIZE + writer->leaf_size - bm_leaf_start(writer, leaf) : 0;
}
static inline uint32_t bm_leaf_free(const struct bm_writer *writer, const uint8_t *leaf)
{
	return writer->leaf_size - bm_leaf_used(writer, leaf);
}
/* Whether setup_nodes_for_search() splits a node on the way to an insertion. */
static inline int bm_node_is_full(const struct bm_writer *writer, const uint8_t *node)
{
	return block_header(node)->nritems >= writer->node_ptrs - 3;
}
/* setup_items_for_insert(): empty items at path->slot[0]; the parents' keys are fixed. */
int bm_setup_items_for_insert(struct bm_writer *writer, struct bm_path *path,
			      const struct bm_key *keys, const uint32_t *sizes, size_t count,
			      struct bm_fault *fault);
/* The same where other insertions follow soon; bm_writer_tidy() at the end of the call. */
int bm_setup_items_loose(struct bm_writer *writer, struct bm_path *path, const struct bm_key *keys,
			 const uint32_t *sizes, size_t count, struct bm_fault *fault);
void bm_leaf_tidy(struct bm_writer *writer, uint8_t *leaf);
void bm_writer_tidy(struct bm_writer *writer);
/* btrfs_del_items(): `count` items from slot[0] on; the leaf is merged or removed as kernels do. */
int bm_del_items(struct bm_writer *writer, struct bm_writer_tree *tree, struct bm_path *path,
		 uint32_t slot, uint32_t count, struct bm_fault *fault);
void bm_extend_item(struct bm_writer *writer, struct bm_path *path, uint32_t size);
void bm_truncate_item(struct bm_writer *writer, struct bm_path *path, uint32_t new_size,
		      int from_end);
int bm_split_leaf(struct bm_writer *writer, struct bm_writer_tree *tree, const struct bm_key *key,
		  struct bm_path *path, uint32_t data_size, int extend, struct bm_fault *fault);
int bm_split_node(struct bm_writer *writer, struct bm_writer_tree *tree, struct bm_path *path,
		  int level, struct bm_fault *fault);
int bm_balance_level(struct bm_writer *writer, struct bm_writer_tree *tree, struct bm_path *path,
		     int level, struct bm_fault *fault);
/* insert_ptr(): a pointer to a block of this transaction, at a slot of path->node[level]. */
int bm_insert_ptr(struct bm_writer *writer, struct bm_path *path, const struct bm_key *key,
		  uint64_t bytenr, uint32_t slot, int level, struct bm_fault *fault);
/* check_sibling_keys(): everything in `left` sorts before everything in `right`. */
int bm_check_sibling_keys(const struct bm_writer_tree *tree, const uint8_t *left,
			  const uint8_t *right, struct bm_fault *fault);
int bm_del_ptr(struct bm_writer *writer, struct bm_writer_tree *tree, struct bm_path *path,
	       int level, uint32_t slot, struct bm_fault *fault);
int bm_insert_new_root(struct bm_writer *writer, struct bm_writer_tree *tree, struct bm_path *path,
		       int level, struct bm_fault *fault);
/* fixup_low_keys(): the first key of the block at level - 1 changed. */
int bm_fixup_low_keys(struct bm_path *path, const struct bm_key *key, int level,
		      struct bm_fault *fault);

#endif
