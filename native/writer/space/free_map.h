/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Free ranges of a block group, as the kernel keeps them in struct btrfs_free_space_ctl (without
 * its bitmaps): ranges that touch are one. Not part of the interface.
 */
#ifndef BTRFS_MODEL_FREE_MAP_H
#define BTRFS_MODEL_FREE_MAP_H

#include <stddef.h>
#include <stdint.h>

struct free_range {
	uint64_t start;
	uint64_t size;
};

struct free_node;

/* All bytes zero: an empty map. */
struct free_map {
	struct free_node *nodes; /* [0] is no node */
	uint32_t used;		 /* nodes in use or spare, [0] included */
	uint32_t capacity;
	uint32_t spare; /* head of the list of unused nodes */
	uint32_t root;
	uint32_t random;
	size_t count;	/* of ranges */
	uint64_t total; /* bytes */
};

void free_map_clear(struct free_map *map);
/* BM_BAD_VALUE: part of the range is free already, or it is empty or too long; nothing changed. */
int free_map_add(struct free_map *map, uint64_t start, uint64_t size);
/* BM_BAD_VALUE: part of the range is not free; nothing changed. */
int free_map_take(struct free_map *map, uint64_t start, uint64_t size);
/* The lowest range of at least `size` bytes that ends behind `from`; 0: there is none. */
int free_map_find(const struct free_map *map, uint64_t from, uint64_t size,
		  struct free_range *found);
/* The largest range, of equal ones the lowest; 0: there is none. */
int free_map_largest(const struct free_map *map, struct free_range *found);

#endif
