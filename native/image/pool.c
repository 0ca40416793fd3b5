// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory for many small objects that come and go, numbers of which the lowest is wanted, and arrays
 * that grow.
 */
#define _DEFAULT_SOURCE /* madvise() */
#include "image/pool.h"

#include "kernels.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define POOL_CHUNK 1024
#define HUGE_PAGE ((size_t)2 << 20)

void *grown(void *array, size_t count, size_t *capacity, size_t first, size_t size)
{
	size_t larger = *capacity ? 2 * *capacity : first;

	if (count < *capacity)
		return array;
	array = realloc(array, larger * size);
	if (array)
		*capacity = larger;
	return array;
}

void *alloc_large(size_t size)
{
	void *memory;

	if (size < HUGE_PAGE || size > SIZE_MAX - HUGE_PAGE)
		return malloc(size);
	size = (size + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
	memory = aligned_alloc(HUGE_PAGE, size);
#ifdef MADV_HUGEPAGE
	if (memory)
		madvise(memory, size, MADV_HUGEPAGE);
#endif
	return memory;
}

void *pool_alloc(struct pool *pool)
{
	void *object;

	if (!pool->spare) {
		void **chunks =
		    grown(pool->chunks, pool->count, &pool->capacity, 16, sizeof(*chunks));
		uint8_t *chunk;

		if (!chunks)
			return NULL;
		pool->chunks = chunks;
		chunk = malloc(POOL_CHUNK * pool->size);
		if (!chunk)
			return NULL;
		pool->chunks[pool->count++] = chunk;
		for (size_t i = POOL_CHUNK; i-- > 0;) {
			*(void **)(chunk + i * pool->size) = pool->spare;
			pool->spare = chunk + i * pool->size;
		}
	}
	object = pool->spare;
	pool->spare = *(void **)object;
	memset(object, 0, pool->size);
	return object;
}

void pool_free(struct pool *pool, void *object)
{
	*(void **)object = pool->spare;
	pool->spare = object;
}

void pool_destroy(struct pool *pool)
{
	for (size_t i = 0; i < pool->count; i++)
		free(pool->chunks[i]);
	free(pool->chunks);
}

int heap_push(struct heap *heap, uint64_t item)
{
	uint64_t *items = grown(heap->items, heap->count, &heap->capacity, 256, sizeof(*items));
	size_t at = heap->count;

	if (!items)
		return BM_NOMEM;
	heap->items = items;
	heap->count++;
	while (at && heap->items[(at - 1) / 2] > item) {
		heap->items[at] = heap->items[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	heap->items[at] = item;
	return BM_OK;
}

uint64_t heap_pop(struct heap *heap)
{
	uint64_t lowest = heap->items[0], item = heap->items[--heap->count];
	size_t at = 0, child;

	while ((child = 2 * at + 1) < heap->count) {
		if (child + 1 < heap->count && heap->items[child + 1] < heap->items[child])
			child++;
		if (heap->items[child] >= item)
			break;
		heap->items[at] = heap->items[child];
		at = child;
	}
	heap->items[at] = item;
	return lowest;
}
