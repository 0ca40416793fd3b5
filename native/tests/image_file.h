/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A real image, reduced to its tree blocks, for tests in C.
 *
 * Each tree block gets a chunk of its own in a small piece of memory, with a gap between any two.
 * Under AddressSanitizer the gaps are poisoned: a kernel that reads one byte past a block dies.
 */
#ifndef BTRFS_MODEL_IMAGE_FILE_H
#define BTRFS_MODEL_IMAGE_FILE_H

#include "kernels.h"

struct packed_image {
	uint8_t *memory;   /* the blocks and gaps, then file data */
	uint8_t *pristine; /* a copy of the blocks and gaps */
	size_t size;
	size_t stride; /* from one block to the next */
	uint32_t nodesize;
	uint32_t sectorsize;
	int csum_type;
	uint8_t fsid[16];
	struct bm_chunk *chunks;   /* one for each block, then one for each chunk of data */
	struct bm_stripe *stripes; /* of each chunk */
	size_t chunk_count;
	size_t count; /* of blocks */
	struct bm_root *roots;
	size_t root_count;
};

/* Read an image file; the process ends with a message when that cannot be done. */
void packed_image_load(struct packed_image *packed, const char *path);
void packed_image_free(struct packed_image *packed);
/* An image over the packed blocks, as they are now. */
struct bm_image *packed_image_open(const struct packed_image *packed);
uint8_t *packed_image_block(const struct packed_image *packed, size_t index);
/* Give a block the checksum of its present content. */
void packed_image_seal(const struct packed_image *packed, size_t index);
/* Undo whatever was done to a block. */
void packed_image_reset(const struct packed_image *packed, size_t index);

#endif
