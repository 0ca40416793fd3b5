/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Memory for many small objects that come and go, numbers of which the lowest is wanted, and arrays
 * that grow. Not part of the interface.
 */
#ifndef BTRFS_MODEL_POOL_H
#define BTRFS_MODEL_POOL_H

#include <stddef.h>
#include <stdint.h>

/*
 * Make room for one more of `size` bytes in an array of `count` that has *capacity, which is doubled
 * when it is full; an empty one gets `first`. The array, perhaps elsewhere; NULL: no memory, and it
 * is what it was.
 */
void *grown(void *array, size_t count, size_t *capacity, size_t first, size_t size);

/* Memory of malloc, on large pages where it is much, as it is looked at all over. */
void *alloc_large(size_t size);

/* Objects of one size that stay where they are; `size` is set, the rest zero: an empty pool. */
struct pool {
	void **chunks;
	size_t count;
	size_t capacity;
	size_t size; /* at least that of a pointer */
	void *spare; /* free objects, each pointing at the next */
};

/* An object of zeroes; NULL: no memory. */
void *pool_alloc(struct pool *pool);
void pool_free(struct pool *pool, void *object);
void pool_destroy(struct pool *pool);

/* A binary heap, the lowest number first. All bytes zero: an empty one. */
struct heap {
	uint64_t *items;
	size_t count;
	size_t capacity;
};

int heap_push(struct heap *heap, uint64_t item);
/* The heap must not be empty. */
uint64_t heap_pop(struct heap *heap);

#endif
