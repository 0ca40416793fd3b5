/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the kernels share among themselves: the image's inside, small accessors of tree blocks and
 * the setting of faults. Not part of the interface.
 */
#ifndef BTRFS_MODEL_INTERNAL_H
#define BTRFS_MODEL_INTERNAL_H

#include <errno.h>

#include "image/checksum.h"
#include "kernels.h"

/* Linux's number, where the system has none of this name. */
#ifndef EUCLEAN
#define EUCLEAN 117
#endif

struct bm_cache_slot {
	uint64_t logical; /* 0: free (no tree block lies at 0) */
	size_t read;	  /* index of its read; SIZE_MAX: cached from the start */
};

/* Children of a node that were all asked for: slots [first, end). */
struct bm_asked {
	const uint8_t *node;
	uint32_t first, end;
};

struct bm_cache {
	struct bm_cache_slot *slots; /* open addressing */
	size_t capacity;	     /* a power of two */
	size_t used;
	struct bm_read *reads;
	size_t read_count;
	size_t read_capacity;
	uint32_t events; /* reads, and first uses of blocks that were read ahead */
	/* by level, of the node where BM_READA_FORWARD_ALWAYS asked last; what was read stays */
	struct bm_asked asked[BTRFS_MAX_LEVEL];
};

/* Where a stripe starts: byte of the image, and how many of its device are there from it on. */
struct bm_place {
	uint64_t at; /* UINT64_MAX: the device is missing */
	uint64_t room;
	uint64_t devid;
	uint64_t offset; /* byte of the device */
	uint64_t size;	 /* of the device */
};

/* A chunk as it is read. */
struct bm_mapped {
	uint64_t logical;
	uint64_t length;
	uint64_t assembled; /* where its tree blocks are put together; 0: nowhere */
	struct bm_place *places;
	uint32_t num_stripes;
	uint32_t width;	 /* stripes side by side; 0: each has the whole chunk */
	uint32_t placed; /* copies that lie somewhere */
	uint32_t parity; /* stripes of each row that hold parity */
	uint32_t copies; /* with those that are made of parity */
};

/* A tree block that was verified, where it is used; its bit says whether it still is. */
struct bm_recent {
	uint64_t logical; /* 0: none */
	const uint8_t *block;
};

struct bm_image {
	const uint8_t *base;   /* data are read here */
	const uint8_t *blocks; /* tree blocks are used here, at the same bytes; often the same */
	uint64_t size;
	uint32_t nodesize;
	uint32_t sectorsize;
	int csum_type;
	uint8_t fsid[16];
	struct bm_member *devices; /* NULL: one of all bytes */
	size_t device_count;
	struct bm_mapped *chunks;
	struct bm_place *places; /* of all chunks */
	size_t chunk_count;
	uint64_t assembled; /* where the next tree blocks are put together */
	uint8_t *verified;  /* one bit a sector of the image */
	int checks_items;   /* whether bm_check_leaf() is a part of that */
	/* of an image whose blocks are copied; else NULL */
	uint8_t *copies;  /* as blocks */
	uint8_t *copied;  /* one bit a sector */
	uint8_t *another; /* room for one more block */
	uint8_t *windows; /* enum window_use of each BM_WINDOW bytes */
	uint64_t left;	  /* bytes that may still be copied in new windows */
	struct bm_mapping *mapping;
	uint64_t *work;			 /* where is counted now: mostly below */
	uint64_t counted[BM_WORK_COUNT]; /* what nobody has taken yet */
	uint64_t ignored[BM_WORK_COUNT]; /* what is not to be counted */
	struct bm_cache *cache;
	struct bm_readahead readahead;
	struct bm_recent recent[8192]; /* by address, until chunks or devices change */
};

static inline struct bm_recent *bm_recent_of(const struct bm_image *image, uint64_t logical)
{
	return (struct bm_recent *)&image
	    ->recent[logical / image->nodesize %
		     (sizeof(image->recent) / sizeof(image->recent[0]))];
}

/* Count one call of the kernel function `name`. */
#define COUNT(image, name) ((image)->work[BM_WORK_##name]++)
#define COUNT_N(image, name, n) ((image)->work[BM_WORK_##name] += (n))

static inline const struct btrfs_header *block_header(const uint8_t *block)
{
	return (const struct btrfs_header *)block;
}

static inline const struct btrfs_item *leaf_item(const uint8_t *leaf, uint32_t slot)
{
	return (const struct btrfs_item *)(leaf + BTRFS_HEADER_SIZE) + slot;
}

static inline const struct btrfs_key_ptr *node_ptr(const uint8_t *node, uint32_t slot)
{
	return (const struct btrfs_key_ptr *)(node + BTRFS_HEADER_SIZE) + slot;
}

/* Payload of an item of a verified leaf. */
static inline const uint8_t *item_data(const uint8_t *leaf, uint32_t slot)
{
	return leaf + BTRFS_HEADER_SIZE + leaf_item(leaf, slot)->offset;
}

static inline const struct btrfs_disk_key *block_key(const uint8_t *block, uint32_t slot)
{
	return block_header(block)->level ? &node_ptr(block, slot)->key
					  : &leaf_item(block, slot)->key;
}

static inline struct bm_key to_key(const struct btrfs_disk_key *disk)
{
	return (struct bm_key){
	    .objectid = disk->objectid, .type = disk->type, .offset = disk->offset};
}

static inline int compare_keys(uint64_t objectid, uint8_t type, uint64_t offset,
			       const struct bm_key *key)
{
	if (objectid != key->objectid)
		return objectid < key->objectid ? -1 : 1;
	if (type != key->type)
		return type < key->type ? -1 : 1;
	if (offset != key->offset)
		return offset < key->offset ? -1 : 1;
	return 0;
}

static inline int compare_disk_key(const struct btrfs_disk_key *disk, const struct bm_key *key)
{
	return compare_keys(disk->objectid, disk->type, disk->offset, key);
}

/*
 * Where the last searches of a tree ended, for more of them while nothing changes it. Of a search
 * for a key of [first, behind) each step is known but for the last.
 */
struct bm_near {
	struct bm_near_leaf {
		const uint8_t *node[BTRFS_MAX_LEVEL]; /* of struct bm_path */
		uint32_t slot[BTRFS_MAX_LEVEL];
		struct bm_key first, behind;
		uint32_t last; /* slot where the last search in it ended */
	} leaves[4];
	uint32_t next; /* whose place is taken */
	uint32_t hit;  /* of the last search */
};

/* btrfs_bin_search(): slot of the first key >= `key`; *found says whether it is equal. */
uint32_t bm_bin_search(const uint8_t *block, const struct bm_key *key, int *found);

/* Fill `fault` (which may be NULL) and return its code. */
int bm_fail(struct bm_fault *fault, struct bm_fault what);
/* The same at a byte of the image, which becomes one of a device where there are several. */
int bm_fail_at(const struct bm_image *image, uint64_t physical, struct bm_fault *fault,
	       struct bm_fault what);

/* The chunk of a logical address, or NULL. */
const struct bm_mapped *bm_find_chunk(const struct bm_image *image, uint64_t logical);

/*
 * read_block_for_search(): the tree block below path->slot[level], for a search of `objectid`;
 * *restart says whether the search is to start again.
 */
const uint8_t *bm_read_block_for_search(const struct bm_root *root, struct bm_path *path, int level,
					uint64_t objectid, enum bm_read_by by, int *restart,
					struct bm_fault *fault);

/*
 * btrfs_read_node_slot(): the same without a search, and the children behind it read ahead whose
 * generation is greater than `newer_than` (UINT64_MAX: none).
 */
const uint8_t *bm_read_node_slot(const struct bm_root *root, const uint8_t *node, uint32_t slot,
				 uint64_t newer_than, struct bm_fault *fault);

/*
 * Whether the last key of `block` comes before the next key of each node above it: `node` and `slot`
 * are the path to it, by level. A walk that sees to this in each block goes on in ascending order,
 * so it meets no block twice, even where blocks have several parents in one tree.
 */
int bm_check_last_key(const struct bm_root *root, const uint8_t **node, const uint32_t *slot,
		      const uint8_t *block, struct bm_fault *fault);

/* BM_CALLBACK when the caller wants no more; for each block of a long loop. */
int bm_poll(struct bm_fault *fault);

/*
 * Whether a copy of a tree block that lies in one place is good; without a change of the image, by
 * `memory` of nodesize bytes.
 */
int bm_image_is_good(const struct bm_image *image, uint64_t logical, int copy,
		     const struct bm_expect *expect, uint8_t *memory);

/*
 * One name of an item, at `at` of `size` bytes: all of *entry but the hashes and the item; `position`
 * is counted from `at`. Its length, or a negative code.
 */
int64_t bm_unpack_name(const uint8_t *at, size_t size, const struct bm_key *key,
		       struct bm_entry *entry);

/*
 * Whether the inline references of an extent item fit it, and ascend by type, and descend by
 * sequence within one.
 */
int bm_inline_refs_ascend(const uint8_t *item, size_t size, const struct bm_key *key);

/* One key that two trees have outside of shared subtrees; NULL for a tree that lacks it. */
struct bm_step {
	struct bm_key key;
	enum bm_change change;
	const uint8_t *left, *right;
	uint32_t left_slot, right_slot;
};
/* The next one: 1, or 0 at the end. */
int bm_compare_step(struct bm_compare *compare, struct bm_step *step, struct bm_fault *fault);
/*
 * After a step to one key of both trees: items of the same two leaves that follow and are the same,
 * as far as one look goes. Each is a step with BM_CHANGE_SAME, and bm_compare_pass() takes them all.
 */
struct bm_run {
	const uint8_t *left, *right;
	uint32_t left_slot, right_slot; /* of the first */
	uint32_t count;
};
/* Where they would start, and how many there can be. */
struct bm_run bm_compare_place(const struct bm_compare *compare);
/* How many there are. */
void bm_compare_run(struct bm_run *run);
void bm_compare_pass(struct bm_compare *compare, const struct bm_run *run);
/* Read ahead while descending, as send does with SEND_READA_COMPARE. */
void bm_compare_read_ahead(struct bm_compare *compare);

/*
 * Submit the read of a tree block unless it is cached; 1 when it was submitted. Of `read` everything
 * is set but `used`: who does not read ahead uses the block.
 */
int bm_cache_submit(struct bm_image *image, struct bm_read read, struct bm_fault *fault);
int bm_cache_holds(const struct bm_image *image, uint64_t logical);
/* Of a block that will be looked up soon. */
void bm_cache_prefetch(const struct bm_image *image, uint64_t logical);

#endif
