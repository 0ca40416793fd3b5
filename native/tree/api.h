/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Reading one tree, or two beside each other: the kernel's ctree.c without its changes.
 *
 * A root says where a tree starts; a search or walk leads to leaves of it. Each counts what the
 * kernel would count, and reads ahead what the kernel would read ahead. Below, "items in bulk" are
 * for questions that take all items of a kind: they fill columns, one row for each item.
 */
#ifndef BTRFS_MODEL_TREE_API_H
#define BTRFS_MODEL_TREE_API_H

#include <stddef.h>
#include <stdint.h>

#include "base/fault.h"
#include "image/api.h"

struct bm_key {
	uint64_t objectid;
	uint64_t offset;
	uint8_t type;
};

struct bm_near;
struct bm_root {
	struct bm_image *image;
	uint64_t objectid;
	uint64_t bytenr;
	uint64_t generation;
	int32_t level;
	struct bm_near *near; /* NULL: searches do not remember where others ended */
};

enum bm_reada {
	BM_READA_NONE,
	BM_READA_BACK,
	BM_READA_FORWARD,
	BM_READA_FORWARD_ALWAYS,
};

/* From the root (node[root level]) to a leaf (node[0]); an unused level is NULL. */
struct bm_path {
	const uint8_t *node[8];
	uint32_t slot[8];
	int32_t reada;
	int32_t lowest_level; /* where bm_search_slot stops */
	/* after a block had to be read, search again (kernels before 5.19 do so always) */
	int32_t restart;
	/* BM_READA_FORWARD_ALWAYS acts only where the block itself is not cached (before 5.15) */
	int32_t reada_missing;
};

/*
 * btrfs_search_slot() without insertion: 0 when the key is at slot[0], 1 when it is not (slot[0]
 * is where it would be inserted, which may be one past the last item of the leaf).
 */
int bm_search_slot(const struct bm_root *root, const struct bm_key *key, struct bm_path *path,
		   struct bm_fault *fault);
/* btrfs_next_old_leaf(): to slot 0 of the next leaf; 1 when there is none. */
int bm_next_leaf(const struct bm_root *root, struct bm_path *path, struct bm_fault *fault);
/* btrfs_prev_leaf() for reading: to the last slot of the previous leaf; 1 when there is none. */
int bm_prev_leaf(const struct bm_root *root, struct bm_path *path, struct bm_fault *fault);
/*
 * btrfs_search_slot_for_read(find_higher, return_any = 0): to the first item >= key (find_higher)
 * or the last item <= key; 1 when there is none.
 */
int bm_search_slot_for_read(const struct bm_root *root, const struct bm_key *key, int find_higher,
			    struct bm_path *path, struct bm_fault *fault);
/*
 * As the VFS walks a path of `size` bytes, from the directory at *location on: a search for each name
 * (btrfs_lookup_dir_item()); those between slashes that are empty or "." are none. *location is the
 * key of the inode item, or root item, that the last one leads to. 1: there is no such name, or one
 * before the last leads into another subvolume.
 */
int bm_lookup_path(const struct bm_root *root, const uint8_t *path, size_t size,
		   struct bm_key *location, struct bm_fault *fault);
/* Whether there are items with these keys (there[i] is 1 or 0), a search for each. */
int bm_has_keys(const struct bm_root *root, const struct bm_key *keys, size_t count, uint8_t *there,
		struct bm_fault *fault);

/* Columns of a range scan; each array has room for `capacity` items. */
struct bm_columns {
	uint64_t *objectid;
	uint8_t *type;
	uint64_t *offset;
	uint64_t *block; /* logical address of the leaf */
	uint16_t *slot;
	uint64_t *position; /* byte of the image at which the payload starts */
	uint32_t *size;	    /* of the payload */
};
/*
 * Number of items in the leaves that may hold keys of [min, max]: an upper bound for the capacity
 * that bm_scan needs.
 */
int64_t bm_scan_bound(const struct bm_root *root, const struct bm_key *min,
		      const struct bm_key *max, struct bm_fault *fault);
/* All items with min <= key <= max, in order; returns how many. */
int64_t bm_scan(const struct bm_root *root, const struct bm_key *min, const struct bm_key *max,
		const struct bm_columns *columns, size_t capacity, struct bm_fault *fault);
/*
 * Go to the first key >= min and on, leaf by leaf, until one has a key beyond `max`; for the reads
 * that it takes. Returns the number of leaves.
 */
int64_t bm_visit_leaves(const struct bm_root *root, const struct bm_key *min,
			const struct bm_key *max, int32_t reada, struct bm_fault *fault);

/* A tree block as met by an in-order walk (a node before its children). */
struct bm_block {
	uint64_t logical;
	uint64_t generation;
	uint64_t owner;
	uint64_t flags;
	uint64_t parent; /* 0: the root */
	struct bm_key first;
	struct bm_key last;
	uint32_t parent_slot;
	uint32_t nritems;
	uint32_t used; /* bytes used after the header */
	int32_t level;
};
/*
 * Fill `blocks` with up to `capacity` blocks of level >= min_level in order; returns how many the
 * tree has, which may be more than `capacity`; then nothing is counted as work.
 */
int64_t bm_walk_blocks(const struct bm_root *root, int min_level, struct bm_block *blocks,
		       size_t capacity, struct bm_fault *fault);
/* The same of blocks that are known by their addresses; `parent` is 0. */
int bm_describe_blocks(struct bm_image *image, const uint64_t *addresses, size_t count,
		       struct bm_block *blocks, struct bm_fault *fault);

enum bm_change {
	BM_CHANGE_NEW,
	BM_CHANGE_DELETED,
	BM_CHANGE_CHANGED,
	BM_CHANGE_SAME,
};

/* One step of the comparison of two trees: the item in the left and/or in the right tree. */
struct bm_difference {
	struct bm_key key;
	uint64_t left_block;
	uint64_t right_block;
	uint32_t left_slot;
	uint32_t right_slot;
	int32_t change;
};

/*
 * Comparison of two trees of one image as btrfs_compare_trees() does it: in key order, subtrees
 * that both trees share (same address and generation) are skipped. Items that are the same but
 * lie in leaves that are not shared come out as BM_CHANGE_SAME.
 */
struct bm_compare;
struct bm_compare *bm_compare_create(const struct bm_root *left, const struct bm_root *right,
				     struct bm_fault *fault);
void bm_compare_destroy(struct bm_compare *compare);
/* Up to `capacity` further differences; 0 at the end. */
int64_t bm_compare_next(struct bm_compare *compare, struct bm_difference *differences,
			size_t capacity, struct bm_fault *fault);

/* --------------------------------------------------------------------------- items in bulk -- */

/* Checksums of `count` sectors, one after the other; returns the bytes of one checksum. */
int bm_csum_sectors(int csum_type, const uint8_t *data, uint32_t sectorsize, size_t count,
		    uint8_t *sums);
/*
 * The first `width` bytes of each payload into rows[count][width], shorter ones filled up with
 * zeros.
 */
int bm_gather(const struct bm_image *image, const uint64_t *position, const uint32_t *size,
	      size_t count, uint32_t width, uint8_t *rows);

/* A tree block and what its parent says of it. */
struct bm_wanted_block {
	uint64_t logical;
	uint64_t generation; /* 0: any */
	uint64_t tree;
	int32_t level; /* -1: any */
	uint32_t pad;
};
/* Verify one copy of each block; faults[i].code is 0 where it is good. Returns how many are not. */
int64_t bm_verify_blocks(struct bm_image *image, const struct bm_wanted_block *blocks, size_t count,
			 int copy, struct bm_fault *faults);
/*
 * Tell of a copy which blocks are good; of the others it may be that they were not looked at. It
 * changes nothing, so that other threads can use the image meanwhile.
 */
void bm_good_copies(const struct bm_image *image, const struct bm_wanted_block *blocks,
		    size_t count, int copy, uint8_t *good);
/*
 * All items of the given leaves, leaf after leaf; returns how many there are, of which the first
 * `capacity` were stored.
 */
int64_t bm_scan_leaves(struct bm_image *image, const uint64_t *leaves, size_t count,
		       const struct bm_columns *columns, size_t capacity, struct bm_fault *fault);

/* What single items are to be like, by type. */
struct bm_screen {
	uint64_t newest;		/* the last transaction that they may be of */
	uint32_t least[256], most[256]; /* bytes of payload */
	const uint8_t *passes; /* tables of 256: whether it may be passed over in some tree */
};
/* A file extent that lies on disk, and where its extent began in the file. */
struct bm_data_extent {
	uint64_t block;
	uint64_t ino;
	uint64_t offset;
	uint64_t bytenr;
	uint64_t num_bytes;
};
/*
 * Tell which leaves have nothing but items that are right by themselves (of the others it may be so),
 * and gather the file extents of all. tables[i] is the number of a table of the leaf. Returns how
 * many file extents there are, for which there must be room for as many as there are items.
 */
int64_t bm_screen_leaves(struct bm_image *image, const struct bm_screen *screen,
			 const uint64_t *leaves, const uint16_t *tables, size_t count,
			 uint8_t *passed, struct bm_data_extent *extents, size_t capacity,
			 struct bm_fault *fault);

/* A name in an INODE_REF, INODE_EXTREF, DIR_ITEM, DIR_INDEX or XATTR_ITEM. */
struct bm_entry {
	uint64_t parent;   /* the directory; of an attribute its inode */
	uint64_t child;	   /* the inode; of DIR_* location.objectid */
	uint64_t index;	   /* in the directory; 0 for DIR_ITEM and XATTR_ITEM */
	uint64_t position; /* byte of the image at which the name starts; the value follows it */
	uint64_t name_xxh64;
	uint64_t location_offset;
	uint32_t name_hash; /* as it stands in the keys of this type of item */
	uint32_t item;	    /* row of the columns */
	uint16_t name_len;
	uint16_t data_len;
	uint8_t type; /* enum btrfs_file_type */
	uint8_t location_type;
	uint16_t pad;
};
/*
 * The names in items of those types, in order. Returns how many there are (the first `capacity`
 * were stored) or a code; bad[i] is the code of an item that cannot be unpacked, or 0.
 */
int64_t bm_entries(const struct bm_image *image, const struct bm_columns *columns, size_t count,
		   struct bm_entry *entries, size_t capacity, int8_t *bad);

/* A reference to an extent, inline in its item or an item of its own. */
struct bm_ref {
	uint64_t bytenr;
	uint64_t root; /* the tree; of the shared kinds the parent block */
	uint64_t objectid;
	uint64_t offset;
	uint64_t sequence; /* what references of a type are ordered by: the hash, root or parent */
	uint32_t count;
	uint32_t item; /* row of the columns */
	uint8_t type;  /* enum btrfs_key_type */
	uint8_t pad[7];
};
/* The references in EXTENT_ITEM, METADATA_ITEM and *_REF items, as bm_entries() gives names. */
int64_t bm_extent_refs(const struct bm_image *image, const struct bm_columns *columns, size_t count,
		       struct bm_ref *refs, size_t capacity, int8_t *bad);

/* What the items of an inode say together. */
struct bm_inode_sum {
	uint64_t ino;
	uint64_t size; /* this, nbytes, flags, nlink and mode as in its item */
	uint64_t nbytes;
	uint64_t flags;
	uint64_t parent;       /* the directory of its last name */
	uint64_t name_bytes;   /* in its DIR_ITEM and DIR_INDEX items */
	uint64_t extent_bytes; /* of its file extents, less holes */
	uint64_t inline_bytes;
	uint32_t nlink;
	uint32_t mode;
	uint32_t links;	   /* names */
	uint32_t exists;   /* whether there is an inode item, of the right size */
	uint32_t nul_ends; /* inline extents that end in NUL and are not compressed */
	uint32_t pad;
};
/* A file extent; what lies on disk are the sectors that must have checksums if any have. */
struct bm_file_extent {
	uint64_t ino;
	uint64_t start;
	uint64_t length;
	uint64_t disk_start;
	uint64_t disk_length; /* 0: none, a hole or inline */
	uint32_t row;	      /* of the inode */
	uint8_t type;	      /* enum btrfs_file_extent_type */
	uint8_t compression;
	uint8_t pad[2];
};
/* Room for as many as there are items: each gives one row of each kind at most. */
struct bm_inode_rows {
	struct bm_inode_sum *inodes;
	struct bm_file_extent *extents;
	struct bm_entry *roots; /* entries that are subvolumes, in DIR_INDEX */
	size_t capacity;
};
/*
 * How many rows there are, and hashes of names added up. `items` and `indexes` are equal where
 * DIR_ITEM and DIR_INDEX have the same entries, `entries` and `refs` where DIR_INDEX has those of the
 * names that inodes have, with the right type. `odd`: names that are wrong by themselves.
 */
struct bm_inode_totals {
	uint64_t inodes, extents, roots;
	uint64_t items, indexes;
	uint64_t entries, refs;
	uint64_t odd;
};
enum bm_leaf_state {
	BM_LEAF_UNKNOWN,
	BM_LEAF_REDUCED,
	BM_LEAF_GOOD, /* what was reduced was looked at, and nothing is wrong */
};
/* A leaf of several trees, and what inodes that have all their items in it add to the totals. */
struct bm_known_leaf {
	uint64_t items, indexes;
	uint64_t entries, refs;
	uint64_t state;
};
/*
 * Leaves that follow each other in a subvolume, the inodes wanted of them, and its top directory. All
 * trees with the same top directory may share `known`, of which numbers[i] belongs to leaves[i].
 */
struct bm_reduce {
	const uint64_t *leaves;
	size_t count;
	uint64_t low, high;
	uint64_t root_dir;
	struct bm_known_leaf *known; /* NULL: all are looked at */
	const uint64_t *numbers;
};
/*
 * Reduce the items of the inodes [low, high] of a subvolume. The sums are added to *totals, the rows
 * are new. A leaf that was not known is BM_LEAF_REDUCED then, if it can be passed over at all; of
 * one that is BM_LEAF_GOOD there are rows for directories and inodes that other leaves have, too.
 */
int bm_reduce_inodes(struct bm_image *image, const struct bm_reduce *ask,
		     const struct bm_inode_rows *rows, struct bm_inode_totals *totals,
		     struct bm_fault *fault);

#endif
