// SPDX-License-Identifier: GPL-2.0-only
#include "faults/faults.h"
#include "backref/backref.h"
#include "image/pool.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__real_mmap(void *start, size_t size, int protection, int flags, int file, off_t offset);
void __real_free(void *block);
void *__real_pool_alloc(struct pool *pool);
void *__real_arena_alloc(struct arena *arena, size_t size);
int __real_heap_push(struct heap *heap, uint64_t item);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void *__wrap_mmap(void *start, size_t size, int protection, int flags, int file, off_t offset);
void __wrap_free(void *block);
void *__wrap_pool_alloc(struct pool *pool);
void *__wrap_arena_alloc(struct arena *arena, size_t size);
int __wrap_heap_push(struct heap *heap, uint64_t item);

static int64_t asked, failing = FAIL_NONE, alive;
static int all_behind;

void allocations_fail(int64_t n, int all)
{
	asked = 0;
	failing = n;
	all_behind = all;
}

int64_t allocations_stop(void)
{
	failing = FAIL_NONE;
	return asked;
}

int64_t allocations_alive(void)
{
	return alive;
}

static int fails(void)
{
	const int64_t n = asked++;

	if (failing == FAIL_NONE || (all_behind ? n < failing : n != failing))
		return 0;
	errno = ENOMEM;
	return 1;
}

static void *counted(void *block)
{
	alive += block != NULL;
	return block;
}

void *__wrap_malloc(size_t size)
{
	return fails() ? NULL : counted(__real_malloc(size));
}

void *__wrap_calloc(size_t count, size_t size)
{
	return fails() ? NULL : counted(__real_calloc(count, size));
}

void *__wrap_realloc(void *old, size_t size)
{
	void *block;

	if (fails())
		return NULL;
	block = __real_realloc(old, size);
	alive += block && !old;
	return block;
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
	return fails() ? NULL : counted(__real_aligned_alloc(alignment, size));
}

void *__wrap_mmap(void *start, size_t size, int protection, int flags, int file, off_t offset)
{
	return fails() ? MAP_FAILED : __real_mmap(start, size, protection, flags, file, offset);
}

void __wrap_free(void *block)
{
	alive -= block != NULL;
	__real_free(block);
}

/* What takes a piece of a larger block may be the one that has to allocate it. */
void *__wrap_pool_alloc(struct pool *pool)
{
	return fails() ? NULL : __real_pool_alloc(pool);
}

void *__wrap_arena_alloc(struct arena *arena, size_t size)
{
	return fails() ? NULL : __real_arena_alloc(arena, size);
}

int __wrap_heap_push(struct heap *heap, uint64_t item)
{
	return fails() ? BM_NOMEM : __real_heap_push(heap, item);
}
