/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A filesystem that is being changed: its trees, and the transaction that runs.
 *
 * Where a kernel puts its blocks decides how many there are, how full, and what a later question
 * reads. So trees are changed here as the kernel changes them, block by block. The items of the
 * trees are writer/btree/api.h, the space that they lie in is writer/space/api.h, changes by the
 * thousand are bulk/api.h.
 */
#ifndef BTRFS_MODEL_WRITER_API_H
#define BTRFS_MODEL_WRITER_API_H

#include <stddef.h>
#include <stdint.h>

#include "base/fault.h"
#include "image/api.h"
#include "toggles.h"
#include "tree/api.h"

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
	uint64_t origin;     /* of a snapshot: the transaction that made it */
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
/* An empty leaf as root of a new tree (btrfs_create_tree(), create_subvol()). */
int bm_writer_new_tree(struct bm_writer *writer, uint64_t id, uint64_t owner, uint32_t shareable,
		       struct bm_fault *fault);
/*
 * btrfs_copy_root() for create_pending_snapshot(): COW the root of `source` (not since
 * BM_TOGGLE_SNAPSHOT_NO_COW), then a copy of it becomes the root of the new tree `id` and what it points at gets one reference more.
 */
int bm_writer_copy_root(struct bm_writer *writer, uint64_t source, uint64_t id,
			struct bm_fault *fault);
/*
 * create_reloc_root(): a copy of `bytenr`, the root of `source` in the last commit, becomes the root of
 * the new tree of relocation `id`.
 */
int bm_writer_reloc_root(struct bm_writer *writer, uint64_t source, uint64_t id, uint64_t bytenr,
			 struct bm_fault *fault);
/* btrfs_drop_subtree(): the block, a child of `parent` in a tree of relocation, goes from it. */
int bm_writer_drop_subtree(struct bm_writer *writer, uint64_t id, uint64_t bytenr, uint64_t parent,
			   struct bm_fault *fault);
/*
 * The child at `slot` of `node`, which may be written to, is from now on the block `bytenr` of that
 * generation (btrfs_set_node_blockptr()); who refers to what is the caller's.
 */
int bm_writer_point(struct bm_writer *writer, uint64_t id, uint64_t node, uint32_t slot,
		    uint64_t bytenr, uint64_t generation, struct bm_fault *fault);
/* btrfs_drop_snapshot(): drop every reference of a tree, its blocks and the extents below. */
int bm_writer_drop_tree(struct bm_writer *writer, uint64_t id, struct bm_fault *fault);
/* The transaction that runs from now on (after bm_writer_write_blocks of the one before). */
void bm_writer_set_transid(struct bm_writer *writer, uint64_t transid);
/*
 * Bits 1 << BM_TOGGLE_x: BATCH_DELAYED_ITEMS, LEAF_BALANCE_LAZY, LOG_OTIME, SNAPSHOT_NO_COW; on at
 * first.
 */
void bm_writer_set_behaviour(struct bm_writer *writer, uint64_t behaviour);
/* Go on with the mount option ssd, or without it. */
void bm_writer_set_ssd(struct bm_writer *writer, int ssd);

/* The payload of an item, NULL where there is none, as bm_search_slot_for_read() finds it; size. */
int64_t bm_writer_get(const struct bm_writer *writer, uint64_t tree, const struct bm_key *key,
		      const uint8_t **data, struct bm_fault *fault);
/* The root that readers start from. */
int bm_writer_root(const struct bm_writer *writer, uint64_t tree, struct bm_root *root,
		   struct bm_fault *fault);

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

#endif
