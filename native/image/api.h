/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * An image: which of its bytes are a tree block, and whether they are a good one.
 *
 * Everything else reads tree blocks here and nowhere else, by logical address. A block is verified
 * once, and from then on walks use it where it lies, as pointers into the image: nothing is copied
 * or unpacked that nobody asks for. With the cache of a cold kernel, which tells the blocks that a
 * kernel would have to read from those that it has.
 */
#ifndef BTRFS_MODEL_IMAGE_API_H
#define BTRFS_MODEL_IMAGE_API_H

#include <stddef.h>
#include <stdint.h>

#include "base/fault.h"
#include "base/work.h"

/* Hashes of `count` names that follow each other, as they stand in the keys of DIR_ITEMs. */
void bm_name_hashes(const uint8_t *names, const uint32_t *sizes, size_t count, uint64_t *hashes);

/* ----------------------------------------------------------------------------------- image -- */

/* A device: `size` bytes of the image from `start` on; none when it is missing. */
struct bm_member {
	uint64_t devid;
	uint64_t start;
	uint64_t size;
};

/* A chunk as its item has it: `length` bytes at `logical` lie on stripes, by the profile in `type`. */
struct bm_stripe {
	uint64_t devid;
	uint64_t offset; /* byte of the device */
};
struct bm_chunk {
	uint64_t logical;
	uint64_t length;
	uint64_t type; /* block group flags */
	const struct bm_stripe *stripes;
	uint32_t num_stripes;
	uint32_t sub_stripes; /* copies of RAID10 */
};

/*
 * Map files that others may change into `size` bytes, each at its start, a multiple of
 * BM_DEVICE_ALIGN; zeros lie between and after them. Where a file is cut off, or fails to be read,
 * its rest reads as zeros from then on in place of SIGBUS; bm_image_take_work() says so. NULL: fault.
 */
enum { BM_DEVICE_ALIGN = 2 << 20 };
struct bm_file {
	int file;
	uint64_t start;
	uint64_t size;
};
const uint8_t *bm_map_files(const struct bm_file *files, size_t count, uint64_t size,
			    struct bm_fault *fault);
void bm_unmap_files(const uint8_t *base);

/*
 * Let memory that shows a file, and is written to, be this process's alone from now on: it looks as
 * the file does, what is written to it is in no other process, and the file stays as it is. A
 * process that is forked afterwards has a copy. BM_ERRNO where that cannot be: nothing changed.
 */
int bm_make_private(uint8_t *base, uint64_t size, int file, struct bm_fault *fault);

/*
 * The next run of pages from byte `at` on that differ in two parts of memory of `size` bytes, up to
 * `most` bytes of it: where it begins and ends; both are `size` where there is none. `at` and `most`
 * are multiples of BM_PAGE; the last page may be a part of one.
 */
enum { BM_PAGE = 4096 };
void bm_next_difference(const uint8_t *one, const uint8_t *other, uint64_t size, uint64_t at,
			uint64_t most, uint64_t *out);

/*
 * The store of blocks: `size` bytes at `base`, laid out as a device of btrfs, or with several. The
 * bytes after the last device are for tree blocks that lie in no single place: see chunks.c.
 * `verified` holds a bit for each sector at which a verified tree block starts, so that each is
 * verified once.
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
/* The devices, if they are more than one of all bytes, before the chunks; they are copied. */
int bm_image_set_devices(struct bm_image *image, const struct bm_member *devices, size_t count,
			 struct bm_fault *fault);
/*
 * `chunks` must ascend by logical address without overlap; they are copied. A stripe on a device
 * that there is not is missing. BM_BAD_VALUE for what fits no profile: found = logical address.
 */
int bm_image_set_chunks(struct bm_image *image, const struct bm_chunk *chunks, size_t count,
			struct bm_fault *fault);
/*
 * Copy tree blocks of files mapped by bm_map_files() to `blocks` before they are verified, and use
 * them there: `size` bytes of zeros at the start of a page, which stay the caller's and outlive the
 * image. A sector is copied once. After `most` bytes the file itself is mapped there for blocks
 * elsewhere: who writes to it meanwhile may change what was verified, and bm_image_take_work() fails.
 */
int bm_image_copy_blocks(struct bm_image *image, uint8_t *blocks, uint64_t most,
			 struct bm_fault *fault);
/* Use them all in the file itself, without memory of their own, as those after `most` bytes are. */
int bm_image_use_in_place(struct bm_image *image, struct bm_fault *fault);
/* Where a tree block at this byte of the image is used, copied by now; all of it is in the image. */
const uint8_t *bm_image_own_block(struct bm_image *image, uint64_t physical);
/* Add to `work` what was counted since the last time; fails where the mapped file lost bytes. */
int bm_image_take_work(struct bm_image *image, struct bm_work *work, struct bm_fault *fault);
/*
 * btrfs_map_block(): the byte of the image at which a copy of a logical address lies; how many bytes
 * follow there. Copies that are made of parity lie nowhere.
 */
int bm_image_map(const struct bm_image *image, uint64_t logical, int copy, uint64_t *physical,
		 uint64_t *contiguous, struct bm_fault *fault);
/* btrfs_num_copies(): copies of a logical address, those that are made of parity too; 0: no chunk. */
int bm_image_copies(const struct bm_image *image, uint64_t logical);
/* Read `size` bytes of a chunk from a copy, wherever they lie, or by parity. */
int bm_image_read(const struct bm_image *image, uint64_t logical, int copy, uint64_t size,
		  uint8_t *out, struct bm_fault *fault);
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

/* -------------------------------------------------------------------- cache of a cold kernel -- */

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
	BM_READ_BY_readahead_tree_node_children,
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

#endif
