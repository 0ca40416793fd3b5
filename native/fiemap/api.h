/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Where the extents of a file lie, and which are shared: FS_IOC_FIEMAP.
 *
 * Since 6.1 the kernel walks file extent items, before it asked for extent maps; both ways are
 * here, because their answers and their work differ.
 */
#ifndef BTRFS_MODEL_FIEMAP_API_H
#define BTRFS_MODEL_FIEMAP_API_H

#include <stddef.h>
#include <stdint.h>

#include "backref/api.h"
#include "base/fault.h"
#include "toggles.h"

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

/* Bytes [start, end) of a file. */
struct bm_byte_range {
	uint64_t start;
	uint64_t end;
};

struct bm_fiemap_args {
	const struct bm_forest *forest;
	struct bm_extent_maps *maps;
	uint64_t subvolume;	/* id of a tree of the forest */
	uint64_t last_snapshot; /* of its root item */
	uint64_t ino;
	uint64_t isize;
	uint64_t start; /* of the range in bytes */
	uint64_t length;
	uint64_t behaviour; /* bits 1 << enum bm_toggle */
	/* what waits to be written: ascending, none touches the next; no kernel before 6.1 */
	const struct bm_byte_range *delalloc;
	size_t delalloc_count;
	uint32_t extents_per_call; /* fm_extent_count, > 0 */
	uint32_t entries;	   /* gathered between two searches, > 0 */
	uint32_t prev_extents;	   /* whose sharing a call remembers, > 0 */
};

/*
 * The extents of a file as FS_IOC_FIEMAP reports them: one call after the other, each from where
 * the last one ended, until the last extent is there. The rows belong to the caller, who gives them
 * back with bm_fiemap_result_free().
 */
int bm_fiemap(const struct bm_fiemap_args *args, struct bm_fiemap_result *result,
	      struct bm_fault *fault);
void bm_fiemap_result_free(struct bm_fiemap_result *result);

#endif
