/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the two ways of walking a file for FIEMAP have in common: the call, and the entries that it
 * gives out. Not part of the interface.
 */
#ifndef BTRFS_MODEL_FIEMAP_H
#define BTRFS_MODEL_FIEMAP_H

#include "backref/backref.h"

enum {
	FIEMAP_EXTENT_LAST = 0x1,
	FIEMAP_EXTENT_UNKNOWN = 0x2,
	FIEMAP_EXTENT_DELALLOC = 0x4,
	FIEMAP_EXTENT_ENCODED = 0x8,
	FIEMAP_EXTENT_NOT_ALIGNED = 0x100,
	FIEMAP_EXTENT_DATA_INLINE = 0x200,
	FIEMAP_EXTENT_UNWRITTEN = 0x800,
	FIEMAP_EXTENT_SHARED = 0x2000,
};

/* One call of FIEMAP. */
struct fiemap_call {
	const struct bm_fiemap_args *args;
	const struct bm_root *root;
	struct bm_image *image;
	struct bm_fiemap_result *result;
	struct bm_fault *fault;
	struct share_context *share;
	uint64_t start; /* the range of this call, not aligned */
	uint64_t end;
	uint32_t number;
	uint32_t mapped; /* extents given out by this call */
	int cached;	 /* `cache` is an extent that was not given out yet */
	struct bm_fiemap_extent cache;
};

static inline uint64_t round_to_sector(const struct bm_image *image, uint64_t size)
{
	return (size + image->sectorsize - 1) / image->sectorsize * image->sectorsize;
}

static inline int fiemap_has(const struct fiemap_call *call, int toggle)
{
	return (call->args->behaviour & (1ull << toggle)) != 0;
}

/* The item at the path, when it is a file extent of the inode; *fi is NULL when it is not. */
int fiemap_item(struct fiemap_call *call, const struct bm_path *path,
		const struct btrfs_file_extent_item **fi);
uint64_t fiemap_file_extent_end(const struct fiemap_call *call, const struct bm_path *path,
				const struct btrfs_file_extent_item *fi);
/* 1 when no more are wanted. */
int fiemap_fill_next_extent(struct fiemap_call *call, const struct bm_fiemap_extent *extent);
int emit_last_fiemap_cache(struct fiemap_call *call);
/* Whether `extent` continues the one in the cache, by its place in the file and on disk. */
int fiemap_continues(const struct fiemap_call *call, const struct bm_fiemap_extent *extent);
/* extent_fiemap() of 5.10, by extent maps, and that of 6.1 and later, by file extent items. */
int fiemap_by_maps(struct fiemap_call *call);
int fiemap_by_items(struct fiemap_call *call);

#endif
