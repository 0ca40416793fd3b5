/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * kernels.h - everything that the C kernels of btrfs_model offer, in one header.
 *
 * The kernels know nothing of Python: they take memory (an image mapped into the address space,
 * arrays to fill) and give back numbers. Python decides what is done; the kernels do what touches
 * bytes of tree blocks in a loop. cffi reads this very file, so it holds declarations only: no
 * macros, no inline functions.
 *
 * Conventions
 *   - A function returns 0 or a count on success and a negative `enum bm_code` on failure; the
 *     place of the failure is written to `struct bm_fault *fault`, whose `code` is the same number.
 *   - Out-parameters come last; the last of all is `fault`, which must not be NULL.
 *   - Nothing in an image is trusted. A tree block is verified as a whole (checksum, address,
 *     level, generation, order of keys, every item inside the leaf) before a byte of it is used;
 *     payloads are checked against their item's size where they are read.
 *   - `_create`/`_destroy` allocate and free; `_init` fills memory of the caller.
 */
#ifndef BTRFS_MODEL_KERNELS_H
#define BTRFS_MODEL_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "ondisk.h"
#include "toggles.h"

/* ---------------------------------------------------------------------------------- faults -- */

enum bm_code {
	BM_OK = 0,
	BM_NOMEM = -1,
	/* reading a tree block */
	BM_UNMAPPED = -2,	 /* no chunk holds this logical address: found = address */
	BM_PAST_END = -3,	 /* the chunk lies beyond the end of the image: found = physical */
	BM_UNALIGNED = -4,	 /* a block address that is not a multiple of the sector size */
	BM_BAD_CSUM = -5,	 /* found/wanted = first 8 bytes of the checksums */
	BM_BAD_BYTENR = -6,	 /* header.bytenr differs from the address read */
	BM_BAD_FSID = -7,	 /* header.fsid is not the filesystem's */
	BM_BAD_LEVEL = -8,	 /* header.level differs from what the parent implies */
	BM_BAD_GENERATION = -9,	 /* header.generation differs from the pointer's */
	BM_BAD_NRITEMS = -10,	 /* more items than fit, or an empty node */
	BM_BAD_KEY_ORDER = -11,	 /* keys of the block do not ascend: slot = the offender */
	BM_BAD_ITEM_RANGE = -12, /* item data outside the leaf, overlapping or with gaps */
	BM_BAD_BLOCKPTR = -13,	 /* a node points at address 0 or an unaligned one */
	BM_BAD_FIRST_KEY = -14,	 /* first key differs from the key in the parent */
	BM_BAD_OWNER = -15,	 /* header.owner is not this tree */
	BM_BAD_MAGIC = -16,	 /* no superblock where one must be */
	BM_BAD_LAST_KEY = -17,	 /* found = block below the slot, with keys of the next slot */
	/* reading an item */
	BM_BAD_ITEM_SIZE = -20, /* payload too short for its type: found = size, wanted = minimum */
	BM_BAD_VALUE = -21,	/* a field holds what no kernel writes: found = value */
	BM_NOT_FOUND = -22,	/* an item that must exist does not */
	BM_LOOP = -23,		/* a walk came back to where it had been */
	/* file data */
	BM_BAD_DATA = -30,	/* compressed bytes that do not decompress */
	BM_BAD_DATA_CSUM = -31, /* a data sector whose checksum differs */
	/* streams: offset = byte of the stream */
	BM_STREAM_TRUNCATED = -40,
	BM_STREAM_BAD_MAGIC = -41,
	BM_STREAM_BAD_VERSION = -42,
	BM_STREAM_BAD_CRC = -43,
	BM_STREAM_BAD_COMMAND = -44,
	BM_STREAM_BAD_ATTRIBUTE = -45, /* slot = the attribute, here and in the following */
	BM_STREAM_BAD_LENGTH = -46,    /* an attribute goes on past the end of its command */
	BM_STREAM_BAD_SIZE = -47,      /* a value of another size than its type has */
	BM_STREAM_MISSING = -48,       /* a mandatory attribute is not there */
	BM_STREAM_TWICE = -49,	       /* an attribute is there twice */
	BM_STREAM_LONG_PATH = -60,     /* a path that does not fit into PATH_MAX */
	BM_STREAM_BAD_TIME = -61,      /* a time that has no date */
	/* the world outside */
	BM_ERRNO = -50,	   /* the kernel would return this errno here: found = errno */
	BM_CALLBACK = -51, /* a callback of the caller failed, or bm_set_poll()'s said to stop */
	BM_FILE_CHANGED = -52, /* a mapped file was cut off, or cannot be read: offset = byte */
};

/* Where something went wrong. Fields that do not apply are 0. */
struct bm_fault {
	int32_t code;
	uint32_t slot;
	uint64_t tree;	 /* objectid of the tree */
	uint64_t block;	 /* logical address of the tree block */
	uint64_t offset; /* byte in the image, the stream or the file */
	uint64_t found;
	uint64_t wanted;
};

/*
 * What loops over many blocks call from time to time; not 0: end with BM_CALLBACK. It is for all
 * threads, and changes nothing. NULL: nothing is called.
 */
void bm_set_poll(int (*poll)(void));

/* -------------------------------------------------------------------------------- counters -- */

/*
 * The work that was done, in the kernel's units and under the names of its functions. The same
 * counters are counted up by C and by Python (btrfs_model/base/counters.py); cffi hands the names over.
 */
enum bm_counter {
	/* ctree.c */
	BM_WORK_btrfs_search_slot,
	BM_WORK_btrfs_search_old_slot,
	BM_WORK_btrfs_search_slot_for_read,
	BM_WORK_btrfs_next_old_leaf,
	BM_WORK_btrfs_next_old_item,
	BM_WORK_read_block_for_search,
	BM_WORK_reada_for_search,
	/* extent_io.c, disk-io.c: tree blocks */
	BM_WORK_btrfs_readahead_node_child,
	BM_WORK_read_tree_block,
	BM_WORK_submit_bio,
	/* backref.c, ulist.c */
	BM_WORK_iterate_extent_inodes,
	BM_WORK_extent_from_logical,
	BM_WORK_btrfs_previous_extent_item,
	BM_WORK_btrfs_find_all_leafs,
	BM_WORK_btrfs_find_all_roots_safe,
	BM_WORK_find_parent_nodes,
	BM_WORK_add_prelim_ref,
	BM_WORK_prelim_ref_insert,
	BM_WORK_prelim_ref_compare,
	BM_WORK_is_shared_data_backref,
	BM_WORK_check_extent_in_eb,
	BM_WORK_ulist_add,
	BM_WORK_ulist_add_merge,
	/* sharedness and FIEMAP: backref.c, fiemap.c, extent_io.c before 6.9, inode.c before 6.1 */
	BM_WORK_btrfs_is_data_extent_shared,
	BM_WORK_lookup_backref_shared_cache,
	BM_WORK_store_backref_shared_cache,
	BM_WORK_btrfs_fiemap,
	BM_WORK_emit_fiemap_extent,
	BM_WORK_fiemap_fill_next_extent,
	BM_WORK_btrfs_get_extent,
	/* send.c */
	BM_WORK_changed_cb,
	BM_WORK_finish_inode_if_needed,
	BM_WORK_process_recorded_refs,
	BM_WORK_send_create_inode,
	BM_WORK_did_create_dir,
	BM_WORK_will_overwrite_ref,
	BM_WORK_did_overwrite_ref,
	BM_WORK_get_inode_info,
	BM_WORK_get_inode_gen,
	BM_WORK_get_cur_inode_state,
	BM_WORK_is_inode_existent,
	BM_WORK_get_first_ref,
	BM_WORK_get_cur_path,
	BM_WORK_get_cur_inode_path,
	BM_WORK___get_cur_name_and_parent,
	BM_WORK_name_cache_search,
	BM_WORK_btrfs_lru_cache_lookup,
	BM_WORK_btrfs_lru_cache_store,
	BM_WORK_get_orphan_dir_info,
	BM_WORK_get_waiting_dir_move,
	BM_WORK_btrfs_lookup_dir_item,
	BM_WORK_btrfs_lookup_xattr,
	BM_WORK_btrfs_lookup_file_extent,
	BM_WORK_tree_advance,
	BM_WORK_can_rmdir,
	BM_WORK_add_orphan_dir_info,
	BM_WORK_is_extent_unchanged,
	BM_WORK_get_last_extent,
	BM_WORK_range_is_hole_in_parent,
	BM_WORK_btrfs_get_next_valid_item,
	BM_WORK_cache_dir_utimes,
	BM_WORK_send_utimes,
	BM_WORK_send_cmd,
	BM_WORK_process_extent,
	BM_WORK_find_extent_clone,
	BM_WORK_send_extent_data,
	/* walks of the model itself */
	BM_WORK_leaves_visited,
	BM_WORK_nodes_visited,
	BM_WORK_items_visited,
	BM_WORK_subtrees_skipped,
	/* one more than the last */
	BM_WORK_COUNT,
};
/* Counters; what is counted in them is counted in `outer` as well, which may be NULL. */
struct bm_work {
	uint64_t counts[BM_WORK_COUNT];
	struct bm_work *outer;
};
/* Count, in `work` and all outer ones; from any thread. */
void bm_work_add(struct bm_work *work, int counter, int64_t times);

/* ------------------------------------------------------------------------------- checksums -- */

/* CRC-32C without inversion before or after: name hashes and send streams use it like this. */
uint32_t bm_crc32c(uint32_t seed, const void *data, size_t size);
uint64_t bm_xxh64(const void *data, size_t size);
void bm_sha256(const void *data, size_t size, uint8_t *digest);
/* blake2b with a digest of 32 bytes and no key. */
void bm_blake2b_256(const void *data, size_t size, uint8_t *digest);
/* Checksum of a tree block or data sector as stored on disk; returns the length, 0: no such type. */
int bm_csum(int csum_type, const void *data, size_t size, uint8_t *digest);
/* Hashes of `count` names that follow each other, as they stand in the keys of DIR_ITEMs. */
void bm_name_hashes(const uint8_t *names, const uint32_t *sizes, size_t count, uint64_t *hashes);

/* ----------------------------------------------------------------------------------- image -- */

/* A chunk: `length` bytes at `logical` lie at each of physical[0..copies-1]. */
struct bm_chunk {
	uint64_t logical;
	uint64_t length;
	uint64_t type; /* block group flags */
	uint64_t physical[2];
	uint32_t copies;
	uint32_t pad;
};

/*
 * Map `size` bytes of a file that others may change. Where it is cut off, or fails to be read, the
 * rest reads as zeros from then on in place of SIGBUS; bm_image_take_work() says so. NULL: fault.
 */
const uint8_t *bm_map_file(int file, uint64_t size, struct bm_fault *fault);
void bm_unmap_file(const uint8_t *base);

/*
 * The store of blocks: `size` bytes at `base`, laid out as a device of btrfs. `verified` holds a
 * bit for each sector at which a verified tree block starts, so that each is verified once.
 *
 * What was verified must stay as it was. So nobody else may change those bytes, or
 * bm_image_copy_blocks() gives the image memory of its own for its tree blocks.
 *
 * An image, and whatever belongs to it (roots, forests, comparisons, a writer), is for one thread at
 * a time; different images are for as many as there are.
 */
struct bm_image;

struct bm_image *bm_image_create(const uint8_t *base, uint64_t size, uint32_t nodesize,
				 uint32_t sectorsize, int csum_type, const uint8_t *fsid);
void bm_image_destroy(struct bm_image *image);
/* Verify of leaves also what their items say of themselves, as a mounted filesystem does. */
void bm_image_check_items(struct bm_image *image);
/*
 * btrfs_check_leaf(): the items of a leaf whose structure was verified, each for itself; 0 or the
 * code of a fault, of which slot, found and wanted are filled.
 */
int bm_check_leaf(const struct bm_image *image, const uint8_t *leaf, struct bm_fault *place);
/* `chunks` must ascend by logical address without overlap; they are copied. */
int bm_image_set_chunks(struct bm_image *image, const struct bm_chunk *chunks, size_t count,
			struct bm_fault *fault);
/*
 * Copy tree blocks of a file mapped by bm_map_file() to `blocks` before they are verified, and use
 * them there: `size` bytes of zeros at the start of a page, which stay the caller's and outlive the
 * image. A sector is copied once. After `most` bytes the file itself is mapped there for blocks
 * elsewhere: who writes to it meanwhile may change what was verified, and bm_image_take_work() fails.
 */
int bm_image_copy_blocks(struct bm_image *image, uint8_t *blocks, uint64_t most,
			 struct bm_fault *fault);
/* Where a tree block at this byte of the image is used, copied by now; all of it is in the image. */
const uint8_t *bm_image_own_block(struct bm_image *image, uint64_t physical);
/* Add to `work` what was counted since the last time; fails where the mapped file lost bytes. */
int bm_image_take_work(struct bm_image *image, struct bm_work *work, struct bm_fault *fault);
/* Physical address of a logical one in the given copy; how many bytes follow in the chunk. */
int bm_image_map(const struct bm_image *image, uint64_t logical, int copy, uint64_t *physical,
		 uint64_t *contiguous, struct bm_fault *fault);
/* What the parent says of a block. */
struct bm_expect {
	uint64_t tree;	     /* named in faults */
	uint64_t generation; /* 0: any */
	int32_t level;	     /* -1: any */
};
/* Verify one copy of a tree block and nothing else: what `check` does for every copy. */
int bm_image_verify_copy(struct bm_image *image, uint64_t logical, int copy,
			 const struct bm_expect *expect, struct bm_fault *fault);
/* A verified tree block, of the first copy that is good; NULL on failure. */
const uint8_t *bm_image_block(struct bm_image *image, uint64_t logical,
			      const struct bm_expect *expect, struct bm_fault *fault);

/*
 * The cache of extent buffers of a cold kernel: which tree blocks have been read so far, on demand
 * or ahead. Without it (the default) all blocks are in memory and no reads are counted.
 */
struct bm_read {
	uint64_t logical;
	uint64_t generation;
	uint8_t level;
	uint8_t ahead; /* 0: on demand, 1: read ahead */
	uint8_t by;    /* enum bm_read_by */
	uint8_t used;  /* whether anything came to the block, now or later */
	/* Reads and first uses of blocks that were read ahead are counted from 1: the use's number. */
	uint32_t used_at;
};
/* Who issued a read: functions of the kernel, those above read_block_for_search(). */
enum bm_read_by {
	BM_READ_BY_btrfs_search_slot,
	BM_READ_BY_btrfs_next_old_leaf,
	BM_READ_BY_reada_for_search,
	BM_READ_BY_btrfs_read_node_slot,
	BM_READ_BY_tree_move_down,
	BM_READ_BY_read_tree_block,
};
int bm_image_cache_start(struct bm_image *image, const uint64_t *cached, size_t count,
			 struct bm_fault *fault);
void bm_image_cache_stop(struct bm_image *image);
/*
 * How far is read ahead: bytes of tree blocks asked for, whether they were cached or not. A search
 * stops once it asked for more, the comparison of two trees once it asked for as many.
 */
struct bm_readahead {
	uint64_t distance;	 /* FORWARD and BACK: of a sibling from the block itself */
	uint64_t near;		 /* FORWARD and BACK */
	uint64_t always_leaves;	 /* FORWARD_ALWAYS, level 0 */
	uint64_t always_nodes;	 /* FORWARD_ALWAYS, higher levels */
	uint64_t compare_leaves; /* tree_move_down(), level 0 */
	uint64_t compare_nodes;	 /* tree_move_down(), higher levels */
	uint64_t siblings;	 /* a search looks at one more than these */
};
/* What reads from now on are read ahead; an image starts with what kernels do. */
void bm_image_set_readahead(struct bm_image *image, const struct bm_readahead *readahead);
/* The reads since bm_image_cache_start, in order; the array belongs to the image. */
const struct bm_read *bm_image_cache_reads(const struct bm_image *image, size_t *count);

/* ------------------------------------------------------------------------------------ tree -- */

struct bm_key {
	uint64_t objectid;
	uint64_t offset;
	uint8_t type;
};

struct bm_root {
	struct bm_image *image;
	uint64_t objectid;
	uint64_t bytenr;
	uint64_t generation;
	int32_t level;
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

/* --------------------------------------------------------------------------------- streams -- */

/*
 * The format of send streams stands in btrfs_model/ondisk/stream.py; these tables say the same
 * (tests/test_stream_format.py compares them). The number is the index; number 0 is no command and
 * no attribute, of a version that does not exist.
 */
struct bm_stream_command_rule {
	uint64_t mandatory; /* attributes that it must have: bit = number */
	uint32_t version;   /* of the stream that first had it */
};
struct bm_stream_attribute_rule {
	int32_t size; /* of a value in bytes; -1: any */
	uint32_t version;
};
extern const struct bm_stream_command_rule bm_stream_command_rules[27];
extern const struct bm_stream_attribute_rule bm_stream_attribute_rules[36];

/* The commands of a part of a stream, and their attributes, as columns. */
struct bm_stream_columns {
	uint64_t *offset; /* byte of the buffer at which the command's header starts */
	uint32_t *length; /* of what follows the header */
	uint16_t *type;
	uint16_t *version; /* of the stream header before it */
	uint64_t *first;   /* row of the first attribute; has capacity + 1 entries */
	uint16_t *attribute_type;
	uint64_t *attribute_offset; /* byte of the buffer at which the value starts */
	uint32_t *attribute_length;
	uint64_t capacity;
	uint64_t attribute_capacity; /* at least 35: as many as one command can have */
};

/* How far a stream has been read. */
struct bm_stream_position {
	uint64_t offset;  /* byte of the buffer of the next header or command */
	uint64_t wanted;  /* bytes from there on that the next step needs, when there are fewer */
	uint32_t version; /* 0: a stream header has to come next */
	uint32_t ended;	  /* the last command was END */
};

/*
 * Read commands from `position` on until a column is full or the buffer has no whole command
 * left, verify them (lengths, CRC, versions, sizes of values, mandatory attributes) and return how
 * many. The bytes after the buffer's end are read later, or there are none (`last`). What is wrong
 * with a command is reported once it is the first to be read: commands before it are handed out.
 */
int64_t bm_stream_index(const uint8_t *data, uint64_t size, int last,
			struct bm_stream_position *position,
			const struct bm_stream_columns *columns, struct bm_fault *fault);

/*
 * Commands as lines of text in the form of `btrfs receive --dump`. It remembers the subvolume that
 * paths belong to, so one text serves one stream from its start. Times are local: the caller has
 * called tzset(). With `escape_all` the lines are those of btrfs-progs 6.9.1 and later, otherwise
 * those of the versions before.
 */
struct bm_stream_text;
struct bm_stream_text *bm_stream_text_create(int escape_all);
void bm_stream_text_destroy(struct bm_stream_text *text);
/*
 * Write the lines of the commands [from, to) that fit into `out` (any one fits into 4 MiB); returns
 * how many, `used` says how many bytes that is. Faults as with bm_stream_index.
 */
int64_t bm_stream_text_lines(struct bm_stream_text *text, const uint8_t *data,
			     const struct bm_stream_columns *columns, uint64_t from, uint64_t to,
			     uint8_t *out, uint64_t capacity, uint64_t *used,
			     struct bm_fault *fault);

/* ------------------------------------------------------------------------- items in bulk -- */

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
 * All items of the given leaves, leaf after leaf; returns how many there are, of which the first
 * `capacity` were stored.
 */
int64_t bm_scan_leaves(struct bm_image *image, const uint64_t *leaves, size_t count,
		       const struct bm_columns *columns, size_t capacity, struct bm_fault *fault);

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

/* --------------------------------------------------------------------------------- backref -- */

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
 * A backref walk: struct btrfs_backref_walk_ctx of 6.2 and the parameters of the functions before
 * it, through commit roots. Every callback gets `context` and may be NULL.
 */
struct bm_backref_walk {
	const struct bm_forest *forest;
	uint64_t bytenr;	    /* of the extent */
	uint64_t extent_item_pos;   /* only file extents that show this byte of the extent, */
	int ignore_extent_item_pos; /* unless this is set; compressed ones are always taken */
	uint64_t behaviour; /* bits 1 << BM_TOGGLE_x: SEARCH_NO_RESTART, SEND_BACKREF_SKIP */
	void *context;
	/* of every extent item on the way: < 0 is an errno; -ENOENT: as if it had no references */
	int (*check_extent_item)(uint64_t bytenr, const struct btrfs_extent_item *item,
				 void *context);
	/* 1: leave this reference out */
	int (*skip_data_ref)(uint64_t root, uint64_t ino, uint64_t offset, void *context);
	/* 1 and the roots that reach a leaf, when they are known; valid until the next call */
	int (*cache_lookup)(uint64_t leaf, void *context, const uint64_t **roots, size_t *count);
	void (*cache_store)(uint64_t leaf, const uint64_t *roots, size_t count, void *context);
	/* > 0 ends the walk (BTRFS_ITERATE_EXTENT_INODES_STOP), < 0 is an errno */
	int (*iterate)(uint64_t ino, uint64_t offset, uint64_t num_bytes, uint64_t root,
		       void *context);
};

/*
 * iterate_extent_inodes(): hand each file extent item that refers to the data extent to `iterate`.
 * An errno of a callback comes back as BM_ERRNO with fault->found. Of an image that contradicts
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

/* ---------------------------------------------------------------------------------- fiemap -- */

/* struct fiemap_extent, and which of the calls gave it. */
struct bm_fiemap_extent {
	uint64_t logical;
	uint64_t physical;
	uint64_t length;
	uint32_t flags;
	uint32_t call;
};

struct bm_fiemap_result {
	struct bm_fiemap_extent *rows;
	size_t count;
	size_t capacity;
	uint32_t calls;
};

/*
 * The extent maps of an inode in memory, which kernels before 6.1 report. They stay from call to
 * call until the inode is forgotten.
 */
struct bm_extent_maps;
struct bm_extent_maps *bm_extent_maps_create(struct bm_fault *fault);
void bm_extent_maps_destroy(struct bm_extent_maps *maps);

struct bm_fiemap_args {
	const struct bm_forest *forest;
	struct bm_extent_maps *maps;
	uint64_t subvolume;	/* id of a tree of the forest */
	uint64_t last_snapshot; /* of its root item */
	uint64_t ino;
	uint64_t isize;
	uint64_t start; /* of the range in bytes */
	uint64_t length;
	uint64_t behaviour;	   /* bits 1 << enum bm_toggle */
	uint32_t extents_per_call; /* fm_extent_count, > 0 */
};

/*
 * The extents of a file as FS_IOC_FIEMAP reports them: one call after the other, each from where
 * the last one ended, until the last extent is there. The rows belong to the caller, who gives them
 * back with bm_fiemap_result_free().
 */
int bm_fiemap(const struct bm_fiemap_args *args, struct bm_fiemap_result *result,
	      struct bm_fault *fault);
void bm_fiemap_result_free(struct bm_fiemap_result *result);

/* ---------------------------------------------------------------------------------- writer -- */

/*
 * A filesystem that is being changed: trees that grow and shrink as the kernel's do, copy on write
 * by transaction, the extent tree, the free space tree and the checksums behind them. The image's
 * memory must be writable; a block that the writer made counts as verified, so everything above
 * reads trees that are not committed yet like any other, from the root that bm_writer_root() gives.
 *
 * Python decides when a transaction ends and what its tree of roots says; C keeps the trees.
 */
struct bm_writer;

enum bm_writer_feature {
	BM_WRITER_SKINNY_METADATA = 1,
	BM_WRITER_NO_HOLES = 2,
	BM_WRITER_FREE_SPACE_TREE = 4,
	BM_WRITER_BLOCK_GROUP_TREE = 8,
};

struct bm_writer_args {
	struct bm_image *image; /* stays the caller's, and must outlive the writer */
	uint8_t *base;		/* its bytes, writable */
	uint64_t transid;	/* of the transaction that is running */
	uint32_t features;	/* enum bm_writer_feature */
	uint32_t ssd;		/* mount option ssd: clusters of metadata are 2 MiB, not 64 KiB */
	uint8_t fsid[16];	/* as headers have it (metadata_uuid) */
	uint8_t chunk_tree_uuid[16];
};
struct bm_writer *bm_writer_create(const struct bm_writer_args *args, struct bm_fault *fault);
void bm_writer_destroy(struct bm_writer *writer);

/* A tree of the writer. Once the writer has it, its root moves with every change. */
struct bm_writer_tree {
	uint64_t id;	/* what the tree is called by; of a log: what the caller likes */
	uint64_t owner; /* header.owner and the root of its references; mostly the id */
	uint64_t bytenr;
	uint64_t generation;
	uint64_t last_snapshot;
	uint64_t bytes_used; /* root_item.bytes_used: nodesize a block */
	int32_t level;
	uint32_t shareable; /* a subvolume: its blocks may belong to several trees */
	uint32_t
	    force_cow;	/* BTRFS_ROOT_FORCE_COW: a snapshot of it was taken in this transaction */
	uint32_t dirty; /* its root moved or its blocks changed since the flag was cleared */
};
/* Make a tree known, or change what is known of it (bytenr, generation and level included). */
int bm_writer_set_tree(struct bm_writer *writer, const struct bm_writer_tree *tree,
		       struct bm_fault *fault);
int bm_writer_get_tree(const struct bm_writer *writer, uint64_t id, struct bm_writer_tree *tree,
		       struct bm_fault *fault);
/* Ids of all trees, ascending; returns how many there are. */
int64_t bm_writer_tree_ids(const struct bm_writer *writer, uint64_t *ids, size_t capacity);
/* Ids of the trees that changed or are gone since the flags were cleared; returns how many. */
int64_t bm_writer_changed_trees(const struct bm_writer *writer, uint64_t *ids, size_t capacity);
void bm_writer_clear_changed(struct bm_writer *writer);
void bm_writer_forget_tree(struct bm_writer *writer, uint64_t id);
/* An empty leaf as root of a new tree (btrfs_create_tree(), create_subvol()). */
int bm_writer_new_tree(struct bm_writer *writer, uint64_t id, uint64_t owner, uint32_t shareable,
		       struct bm_fault *fault);
/*
 * btrfs_copy_root() for create_pending_snapshot(): COW the root of `source`, then a copy of it
 * becomes the root of the new tree `id` and what it points at gets one reference more.
 */
int bm_writer_copy_root(struct bm_writer *writer, uint64_t source, uint64_t id,
			struct bm_fault *fault);
/* btrfs_drop_snapshot(): drop every reference of a tree, its blocks and the extents below. */
int bm_writer_drop_tree(struct bm_writer *writer, uint64_t id, struct bm_fault *fault);
/* The transaction that runs from now on (after bm_writer_write_blocks of the one before). */
void bm_writer_set_transid(struct bm_writer *writer, uint64_t transid);
/* Bits 1 << BM_TOGGLE_x: BATCH_DELAYED_ITEMS, LEAF_BALANCE_LAZY; both are on at first. */
void bm_writer_set_behaviour(struct bm_writer *writer, uint64_t behaviour);

/*
 * ---- items. A key that must (not) be there: BM_ERRNO with ENOENT (EEXIST) in fault->found. What
 * does not fit into a leaf: EOVERFLOW; an insertion of what is there counts the two as one item.
 */

/*
 * btrfs_insert_empty_items(): `count` items, ascending, side by side at the place of the first;
 * data[] follows item by item. The caller sees to it that no key lies between them and that they
 * fit into a leaf.
 */
int bm_writer_insert(struct bm_writer *writer, uint64_t tree, const struct bm_key *keys,
		     const uint32_t *sizes, size_t count, const uint8_t *data,
		     struct bm_fault *fault);
/* The same one item at a time, in the order given: a run of `count` searches and insertions. */
int bm_writer_insert_each(struct bm_writer *writer, uint64_t tree, const struct bm_key *keys,
			  const uint32_t *sizes, size_t count, const uint8_t *data,
			  struct bm_fault *fault);
/*
 * btrfs_drop_extents() with replace_extent: items from `key` up to `last` (NULL: none) go and a file
 * extent comes. It stays in the leaf where the last of them was, or that was searched without an
 * insertion in view, so that no node is split on the way, if there is room.
 */
int bm_writer_insert_extent(struct bm_writer *writer, uint64_t tree, const struct bm_key *key,
			    const struct bm_key *last, const uint8_t *data, uint32_t size,
			    struct bm_fault *fault);
/*
 * Items with ascending keys, in batches of as many as fit into an empty leaf, each an insertion like
 * that above: delayed directory items. Without BATCH_DELAYED_ITEMS it is one item, and behind it those
 * with consecutive offsets for which its leaf has room.
 */
int bm_writer_insert_batches(struct bm_writer *writer, uint64_t tree, const struct bm_key *keys,
			     const uint32_t *sizes, size_t count, const uint8_t *data,
			     struct bm_fault *fault);
/* Overwrite `size` bytes of a payload from `offset` on; the item keeps its size. */
int bm_writer_update(struct bm_writer *writer, uint64_t tree, const struct bm_key *key,
		     uint32_t offset, const uint8_t *data, uint32_t size, struct bm_fault *fault);
/* btrfs_extend_item() and fill the new end of the payload. */
int bm_writer_extend(struct bm_writer *writer, uint64_t tree, const struct bm_key *key,
		     const uint8_t *data, uint32_t size, struct bm_fault *fault);
/* btrfs_truncate_item(): down to new_size bytes, with from_end its last ones; the key stays. */
int bm_writer_truncate(struct bm_writer *writer, uint64_t tree, const struct bm_key *key,
		       uint32_t new_size, int from_end, struct bm_fault *fault);
/* btrfs_set_item_key_safe(): `to` must sort between the neighbours. */
int bm_writer_set_key(struct bm_writer *writer, uint64_t tree, const struct bm_key *from,
		      const struct bm_key *to, struct bm_fault *fault);
/* btrfs_duplicate_item(): insert a copy of an item behind it, under the key `to`. */
int bm_writer_duplicate(struct bm_writer *writer, uint64_t tree, const struct bm_key *from,
			const struct bm_key *to, struct bm_fault *fault);
/*
 * btrfs_del_items(): delete all items with min <= key <= max, a leaf's run at a time, from the last
 * leaf to the first (`backward`, as truncation does) or from the first on. Returns how many.
 */
int64_t bm_writer_delete(struct bm_writer *writer, uint64_t tree, const struct bm_key *min,
			 const struct bm_key *max, int backward, struct bm_fault *fault);
/* One of many changes. What is named in a DIR_ITEM or INODE_REF is an entry of the item. */
enum bm_writer_change_kind {
	BM_WRITER_INSERT, /* bm_writer_insert(): with all that follow up to one without `more` */
	BM_WRITER_INSERT_EXTENT, /* bm_writer_insert_extent(), nothing goes */
	BM_WRITER_INSERT_ENTRY,	 /* the same, or at the end of an item that has the key already */
	BM_WRITER_DELETE,	 /* the item; no payload */
	BM_WRITER_DELETE_ENTRY,	 /* payload: the name; the item goes with its last entry */
	BM_WRITER_UPDATE,	 /* bm_writer_update(): the first `size` bytes */
};
struct bm_writer_change {
	struct bm_key key;
	uint32_t size; /* of the payload */
	uint8_t kind;  /* enum bm_writer_change_kind */
	uint8_t more;  /* BM_WRITER_INSERT: the next one lies beside it */
	uint16_t pad;
};
/*
 * Many changes of a tree, one after the other; their payloads follow each other in data[]. Returns
 * how many were done; when that is less than `count`, the fault says what is wrong with the next.
 */
int64_t bm_writer_apply(struct bm_writer *writer, uint64_t tree,
			const struct bm_writer_change *changes, size_t count, const uint8_t *data,
			uint64_t size, struct bm_fault *fault);
/* Regular files that are made in a directory, one after the other: names that are not there. */
struct bm_new_files {
	uint64_t tree;
	uint64_t directory;
	uint64_t ino;	/* of the first; the others count on from it, and from */
	uint64_t index; /* its place in the directory */
	uint64_t time;	/* of the first, nanoseconds */
	uint64_t tick;	/* from one to the next */
	size_t count;
	const uint8_t *item;  /* their inode item, but for the times */
	const uint8_t *names; /* one behind the other, */
	uint64_t names_size;
	const uint32_t *name_sizes; /* each of so many bytes */
};
/*
 * btrfs_create_new_inode() for each: inode item and name side by side, then the DIR_ITEM. The
 * DIR_INDEX payloads, for which `entries` has sizeof(struct btrfs_dir_item) * count + names_size
 * bytes, are left to the caller.
 */
int bm_writer_new_files(struct bm_writer *writer, const struct bm_new_files *files,
			uint8_t *entries, struct bm_fault *fault);
/* Names of a directory that go. */
struct bm_unlinks {
	uint64_t tree;
	uint64_t directory;
	size_t count;
	const uint8_t *names; /* one behind the other, */
	uint64_t names_size;
	const uint32_t *name_sizes; /* each of so many bytes */
	const uint64_t *known; /* numbers of inodes that are more than the tree says, ascending */
	size_t known_count;
};
/*
 * btrfs_unlink() for each, up to one that is not the only name of an empty regular file with
 * nothing else to it; how many. The DIR_INDEX items, whose offsets are given, are left to the caller.
 */
int64_t bm_writer_unlink_files(struct bm_writer *writer, const struct bm_unlinks *unlinks,
			       uint64_t *indexes, struct bm_fault *fault);
/*
 * Insert copies of items that a scan found in other trees of the writer, one by one
 * (overwrite_item() into an empty place).
 */
int bm_writer_copy_each(struct bm_writer *writer, uint64_t tree, const struct bm_columns *columns,
			size_t count, struct bm_fault *fault);
/*
 * Log that files exist which this transaction made (copy_items() of LOG_INODE_EXISTS): of each the
 * inode item, in row rows[i] of the `capacity` that the columns have, and its name in the next row.
 */
int bm_writer_log_files(struct bm_writer *writer, uint64_t log, const struct bm_columns *columns,
			size_t capacity, const uint64_t *rows, size_t count,
			struct bm_fault *fault);
/* The root that readers start from. */
int bm_writer_root(const struct bm_writer *writer, uint64_t tree, struct bm_root *root,
		   struct bm_fault *fault);

/*
 * The ground of the Python twin of all this: a block of this transaction that is made, given back,
 * or takes the place of an older one (the root, or the child in a slot of a block that may be
 * written to). bm_writer_is_dirty: a block that starts at this byte of the image is not written.
 */
int bm_writer_is_dirty(const struct bm_writer *writer, uint64_t physical);
int bm_writer_make_block(struct bm_writer *writer, uint64_t tree, int level,
			 const struct bm_key *first, uint64_t hint, uint64_t *bytenr,
			 struct bm_fault *fault);
int bm_writer_drop_block(struct bm_writer *writer, uint64_t tree, uint64_t bytenr,
			 struct bm_fault *fault);
int bm_writer_own_root(struct bm_writer *writer, uint64_t tree, struct bm_fault *fault);
int bm_writer_own_child(struct bm_writer *writer, uint64_t tree, uint64_t parent, uint32_t slot,
			uint64_t *bytenr, struct bm_fault *fault);

/* ---- space and references */

/* A block group: `length` bytes at `start`, all free at first. Its chunk must be in the image. */
int bm_writer_add_group(struct bm_writer *writer, uint64_t start, uint64_t length, uint64_t flags,
			struct bm_fault *fault);
/* Take ranges (that an extent tree holds, or superblocks lie in) from the free space. */
int bm_writer_occupy(struct bm_writer *writer, const uint64_t *start, const uint64_t *length,
		     size_t count, int counts_as_used, struct bm_fault *fault);
struct bm_writer_group {
	uint64_t start;
	uint64_t length;
	uint64_t flags;
	uint64_t used;	 /* block_group_item.used */
	uint64_t free;	 /* that can be allocated now; the rest is used, pinned or reserved */
	uint64_t pinned; /* freed in the running transaction: free after its commit */
};
int64_t bm_writer_groups(const struct bm_writer *writer, struct bm_writer_group *groups,
			 size_t capacity);
/*
 * btrfs_reserve_extent() for data: up to `wanted` bytes, halved down to `least` where free space is
 * in pieces; BM_ERRNO with ENOSPC when there is none (then the caller adds a chunk and asks again).
 */
int bm_writer_reserve_data(struct bm_writer *writer, uint64_t wanted, uint64_t least, uint64_t hint,
			   uint64_t *bytenr, uint64_t *size, struct bm_fault *fault);
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
/* How many references wait, of all extents; `losing`: extents of data with fewer after that. */
int64_t bm_writer_delayed_refs(const struct bm_writer *writer, int64_t *losing);
/* Bytes of the tree blocks that the running transaction made and did not write yet. */
uint64_t bm_writer_dirty_bytes(const struct bm_writer *writer);
/* btrfs_csum_file_blocks(): checksums of sectors from `bytenr` on, into the csum tree (7). */
int bm_writer_insert_csums(struct bm_writer *writer, uint64_t tree, uint64_t bytenr,
			   const uint8_t *sums, size_t sectors, struct bm_fault *fault);
/* btrfs_del_csums(): what a freed data extent had; run_refs does it by itself. */
int bm_writer_delete_csums(struct bm_writer *writer, uint64_t tree, uint64_t bytenr,
			   uint64_t length, struct bm_fault *fault);
/* add_block_group_free_space(): the free space tree learns of a new block group. */
int bm_writer_free_space_group(struct bm_writer *writer, uint64_t start, struct bm_fault *fault);

/* Extents of files, all of one size, in the order in which they are written. */
struct bm_file_extents {
	uint64_t tree; /* id of the writer's tree */
	uint64_t root; /* of the references */
	uint64_t ino;
	const uint64_t *inos;	 /* a file for each extent, which has nothing yet; NULL: `ino` */
	uint64_t length;	 /* of the file, bytes of each extent */
	uint64_t disk_num_bytes; /* on disk */
	uint32_t compression;
	uint32_t pad;
	const uint64_t *offsets; /* in the file, holes all of them */
	size_t count;
	const uint64_t *known_offsets; /* extents that the file has, ascending, */
	const uint64_t *known_bytenr;  /* and where; 0: a hole, or inline */
	size_t known;
	const uint32_t *order;	/* all of them by offset: i < known, or known + index of offsets;
				* not looked at where there are `inos` */
	const uint8_t *sums;	/* checksums of the sectors of one extent; NULL: none */
	const uint32_t *finish; /* all are allocated first and then finished in this order; NULL:
				 * each is finished before the next is allocated */
};
/*
 * Allocate, insert, reference and checksum (insert_reserved_file_extent(), add_pending_csums()) one
 * extent after another. Returns how many were written and their addresses; fewer than wanted when
 * there is no room in one piece.
 */
int64_t bm_writer_file_extents(struct bm_writer *writer, const struct bm_file_extents *args,
			       uint64_t *bytenr, struct bm_fault *fault);

/* ---- the end of a transaction */

/*
 * Checksum every block that changed, zero what is unused in it, set BTRFS_HEADER_FLAG_WRITTEN and
 * write it to every copy; returns how many. The memory is then what a device would hold.
 */
int64_t bm_writer_write_blocks(struct bm_writer *writer, struct bm_fault *fault);
/* The same for the blocks of logs alone (owner -6), as an fsync does; the others stay as they are. */
int64_t bm_writer_write_log(struct bm_writer *writer, struct bm_fault *fault);
/* btrfs_finish_extent_commit(): what was freed in the transaction may be allocated again. */
int bm_writer_unpin(struct bm_writer *writer, struct bm_fault *fault);

/* ------------------------------------------------------------------------------------ send -- */

enum bm_send_flag {
	BM_SEND_NO_FILE_DATA = 1,
	BM_SEND_OMIT_STREAM_HEADER = 2,
	BM_SEND_OMIT_END_CMD = 4,
	BM_SEND_COMPRESSED = 16,
};

enum { BM_SEND_COMMANDS = 27 };

/* A subvolume that may be cloned from; the subvolume being sent is one of them. */
struct bm_send_root {
	uint64_t objectid;
	uint64_t ctransid;
	uint8_t uuid[16]; /* its received_uuid, or its own where that is zero */
};

/* The rule by which a command was sent; btrfs_model/questions/send/causes.py has a line on each. */
enum bm_send_cause {
	BM_SEND_SUBVOL_BEGIN,
	BM_SEND_STREAM_END,
	BM_SEND_INODE_NEW,
	BM_SEND_INODE_REPLACED,
	BM_SEND_PARENT_EARLY,
	BM_SEND_NAME_IN_THE_WAY,
	BM_SEND_LINK_IN_THE_WAY,
	BM_SEND_FIRST_NAME,
	BM_SEND_NAME_AFTER_ORPHAN,
	BM_SEND_DIR_MOVED,
	BM_SEND_DIR_MOVED_LATER,
	BM_SEND_NAME_ADDED,
	BM_SEND_NAME_REMOVED,
	BM_SEND_ORPHAN_REMOVED,
	BM_SEND_LINKS_GONE,
	BM_SEND_DIR_REMOVED,
	BM_SEND_DIR_NOT_EMPTY,
	BM_SEND_DIR_EMPTIED,
	BM_SEND_DIR_LEFT,
	BM_SEND_XATTR_SET,
	BM_SEND_XATTR_REMOVED,
	BM_SEND_CAPABILITIES,
	BM_SEND_CLONE_SOURCE,
	BM_SEND_CLONE_TRUNCATE,
	BM_SEND_WRITE_INLINE,
	BM_SEND_WRITE_UNALLOCATED,
	BM_SEND_WRITE_NO_SOURCE,
	BM_SEND_WRITE_UNALIGNED,
	BM_SEND_WRITE_FIRST_SECTOR,
	BM_SEND_WRITE_SOURCE_HOLE,
	BM_SEND_WRITE_SOURCE_DIFFERS,
	BM_SEND_WRITE_SOURCE_TAIL,
	BM_SEND_WRITE_SOURCE_ENDS,
	BM_SEND_HOLE,
	BM_SEND_HOLE_AT_END,
	BM_SEND_TRUNCATE_SIZE,
	BM_SEND_TRUNCATE_ALWAYS,
	BM_SEND_OWNER_NEW,
	BM_SEND_OWNER_CHANGED,
	BM_SEND_MODE_NEW,
	BM_SEND_MODE_CHANGED,
	BM_SEND_FLAGS_CHANGED,
	BM_SEND_VERITY,
	BM_SEND_TIMES_INODE,
	BM_SEND_TIMES_ENTRY,
	BM_SEND_TIMES_MOVE,
	BM_SEND_CAUSES,
};

/* The item that differs, by its key; all zero where a command comes from no item. */
struct bm_send_item {
	uint64_t objectid;
	uint64_t offset;
	uint8_t type;
	uint8_t change; /* enum bm_change */
};

/* Why a command was sent, and which inode it is about. */
struct bm_send_why {
	uint64_t inode;
	struct bm_send_item item;
	uint32_t cause; /* enum bm_send_cause */
};

/* One row for each command, in the order of the stream. */
struct bm_send_explained {
	struct bm_send_why *rows;
	size_t count, capacity;
};

struct bm_send_args {
	const struct bm_forest *forest;
	const struct bm_send_root *clone_roots; /* ascending by objectid */
	size_t clone_root_count;
	uint64_t send_root;
	const struct bm_send_root *parent; /* NULL: a full send */
	uint64_t behaviour;		   /* bits 1 << enum bm_toggle */
	uint32_t flags;			   /* enum bm_send_flag */
	uint32_t proto;
	uint64_t *commands;		     /* counted by number: an array of BM_SEND_COMMANDS */
	struct bm_send_explained *explained; /* NULL: nobody asks why */
	void *context;			     /* for the callbacks */
	/* Take `size` bytes of the stream; anything but 0 ends the send with BM_CALLBACK. */
	int (*write)(void *context, const uint8_t *data, size_t size);
	/* Decompress an extent into exactly `out_size` bytes; anything but 0: it does not. */
	int (*decompress)(void *context, int compression, const uint8_t *data, size_t size,
			  uint8_t *out, size_t out_size);
};

/*
 * BTRFS_IOC_SEND: the stream goes to args->write. On failure what was sent before stays sent, and
 * args->explained has a row for each command of that.
 */
int bm_send(const struct bm_send_args *args, struct bm_fault *fault);
void bm_send_explained_free(struct bm_send_explained *explained);
/*
 * Read the tree blocks that a full send reads, in its order, without the stream: 1, or 0 where only
 * a send can tell which they are. Of `args` everything is set as for bm_send(); `write` is not called.
 */
int bm_send_reads(const struct bm_send_args *args, struct bm_fault *fault);

/* --------------------------------------------------------------------------------- devices -- */

/*
 * Devices that reads wait for. All times are nanoseconds from the start of a run, all counts whole
 * numbers, so a run has one outcome whatever computes it.
 *
 * A disk is that of Ruemmler and Wilkes, "An introduction to disk drive modeling" (1994): seek
 * curve, rotation, zones, skews, a buffer into which the drive reads ahead, an interface slower or
 * faster than the medium. Flash is packages behind channels, as in Agrawal et al., "Design
 * tradeoffs for SSD performance" (2008).
 */
struct bm_disk_zone {
	uint64_t first_sector; /* logical */
	uint64_t sectors;      /* logical ones; tracks at the zone's end may be spare */
	uint32_t first_cylinder;
	uint32_t cylinders;
	uint32_t first_track; /* of the zone that holds data */
	uint32_t sectors_per_track;
	uint32_t track_skew; /* sectors, from a track to the next of a cylinder */
	uint32_t
	    cylinder_skew; /* sectors, from the last track of a cylinder to the next cylinder */
};

struct bm_disk {
	const struct bm_disk_zone *zones;
	uint64_t zone_count;
	const uint64_t *seek_time; /* by distance in cylinders */
	uint64_t seek_count;	   /* entries: one for each cylinder */
	uint32_t heads;
	uint32_t sector_size;
	uint64_t revolution;
	uint64_t head_switch;
	uint64_t write_settle; /* added to a seek before a write */
	uint64_t miss_overhead;
	uint64_t hit_overhead; /* of a read whose start is in the buffer */
	uint64_t write_overhead;
	uint64_t completion;
	uint64_t reselect;     /* before the interface carries data of a read */
	uint64_t link_sector;  /* the interface carries a sector */
	uint32_t watermark;    /* thousandths of a read in the buffer before the interface starts */
	uint32_t segments;     /* of the buffer; 0: none */
	uint64_t segment_size; /* sectors */
	uint64_t read_ahead;   /* sectors that the drive reads beyond a request */
	uint32_t
	    shortest_first; /* take the request with the shortest access time, not the oldest */
	uint32_t pad;
};

struct bm_flash {
	uint32_t channels;
	uint32_t dies; /* on each channel */
	uint32_t page_size;
	uint32_t pad;
	uint64_t command;      /* the controller has it to itself */
	uint64_t overhead;     /* of a request, beside others */
	uint64_t sense;	       /* a page from the array into its register */
	uint64_t channel_byte; /* picoseconds */
	uint64_t link_byte;    /* picoseconds */
};

enum bm_elevator {
	BM_ELEVATOR_none,	 /* in the order of submission, nothing merged */
	BM_ELEVATOR_mq_deadline, /* the kernel's block/mq-deadline.c, for one direction */
};

struct bm_device {
	const struct bm_disk *disk; /* one of these two; the other is NULL */
	const struct bm_flash *flash;
	uint64_t capacity;    /* bytes */
	uint32_t queue_depth; /* requests that the device takes at once */
	uint32_t elevator;    /* enum bm_elevator */
	uint32_t fifo_batch;  /* requests that it takes in ascending order at a time */
	uint32_t pad;
	uint64_t read_expire; /* after so long the oldest goes first */
	uint64_t max_request; /* bytes that merging stops at */
};

struct bm_io {
	uint64_t offset; /* byte of the device */
	uint32_t length;
	uint32_t write;
};
/* One thing that the host does: `think`, then submit ios[io], or wait for ios[~io]. */
struct bm_io_step {
	uint64_t think;
	int64_t io;
};
struct bm_io_time {
	uint64_t issued;
	uint64_t started; /* by the device */
	uint64_t done;
};
struct bm_io_totals {
	uint64_t end;	   /* of the last step */
	uint64_t waited;   /* of the host */
	uint64_t requests; /* that the device got, after merging */
	uint64_t buffered; /* of them found in the drive's buffer, at least their start */
	uint64_t seeks;	   /* of them that moved the arm */
};
/*
 * Run a host and a device beside each other. Each io is submitted once and is waited for after it
 * was submitted; those that were never waited for are finished as well. What contradicts itself is
 * BM_BAD_VALUE: offset = the io, zone or step, found = its value.
 */
int bm_device_run(const struct bm_device *device, const struct bm_io *ios, size_t io_count,
		  const struct bm_io_step *steps, size_t step_count, struct bm_io_time *times,
		  struct bm_io_totals *totals, struct bm_fault *fault);

#endif
