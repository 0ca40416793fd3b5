// SPDX-License-Identifier: GPL-2.0-only
/*
 * The extent buffers that a cold kernel holds: which tree blocks were read so far, in which order,
 * on demand or ahead. A block counts as cached from the moment its read is submitted, which is how
 * the kernel's own look-up (find_extent_buffer) sees it.
 */
#include "image/internal.h"
#include "image/pool.h"

#include <stdlib.h>
#include <string.h>

static size_t home_slot(const struct bm_cache *cache, uint64_t logical)
{
	return (size_t)((logical * 0x9e3779b97f4a7c15ull) >> 20) & (cache->capacity - 1);
}

static size_t probe(const struct bm_cache *cache, uint64_t logical)
{
	size_t at = home_slot(cache, logical);

	while (cache->slots[at].logical && cache->slots[at].logical != logical)
		at = (at + 1) & (cache->capacity - 1);
	return at;
}

/* Free slots. */
static struct bm_cache_slot *make_slots(size_t capacity)
{
	struct bm_cache_slot *slots = alloc_large(capacity * sizeof(*slots));

	return slots ? memset(slots, 0, capacity * sizeof(*slots)) : NULL;
}

static int grow(struct bm_cache *cache)
{
	struct bm_cache larger = *cache;

	larger.capacity = cache->capacity * 4;
	larger.slots = make_slots(larger.capacity);
	if (!larger.slots)
		return BM_NOMEM;
	for (size_t i = 0; i < cache->capacity; i++)
		if (cache->slots[i].logical)
			larger.slots[probe(&larger, cache->slots[i].logical)] = cache->slots[i];
	free(cache->slots);
	*cache = larger;
	return BM_OK;
}

static int add(struct bm_cache *cache, uint64_t logical, size_t read)
{
	size_t at;

	if (2 * (cache->used + 1) > cache->capacity && grow(cache) < 0)
		return BM_NOMEM;
	at = probe(cache, logical);
	if (!cache->slots[at].logical) {
		cache->slots[at] = (struct bm_cache_slot){.logical = logical, .read = read};
		cache->used++;
	}
	return BM_OK;
}

int bm_image_cache_start(struct bm_image *image, const uint64_t *cached, size_t count,
			 struct bm_fault *fault)
{
	struct bm_cache *cache;

	bm_image_cache_stop(image);
	cache = calloc(1, sizeof(*cache));
	if (!cache)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	image->cache = cache;
	cache->capacity = 1024;
	cache->slots = make_slots(cache->capacity);
	if (!cache->slots)
		goto nomem;
	for (size_t i = 0; i < count; i++)
		if (cached[i] && add(cache, cached[i], SIZE_MAX) < 0)
			goto nomem;
	return BM_OK;
nomem:
	bm_image_cache_stop(image);
	return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
}

void bm_image_cache_stop(struct bm_image *image)
{
	if (!image->cache)
		return;
	free(image->cache->slots);
	free(image->cache->reads);
	free(image->cache);
	image->cache = NULL;
}

void bm_image_set_readahead(struct bm_image *image, const struct bm_readahead *readahead)
{
	image->readahead = *readahead;
}

const struct bm_read *bm_image_cache_reads(const struct bm_image *image, size_t *count)
{
	*count = image->cache ? image->cache->read_count : 0;
	return image->cache ? image->cache->reads : NULL;
}

int bm_cache_holds(const struct bm_image *image, uint64_t logical)
{
	return !image->cache ||
	       image->cache->slots[probe(image->cache, logical)].logical == logical;
}

void bm_cache_prefetch(const struct bm_image *image, uint64_t logical)
{
	__builtin_prefetch(&image->cache->slots[home_slot(image->cache, logical)]);
}

int bm_cache_submit(struct bm_image *image, struct bm_read read, struct bm_fault *fault)
{
	struct bm_cache *cache = image->cache;
	const struct bm_cache_slot *slot = &cache->slots[probe(cache, read.logical)];
	struct bm_read *reads;

	if (slot->logical == read.logical) {
		if (!read.ahead && slot->read != SIZE_MAX && !cache->reads[slot->read].used) {
			cache->reads[slot->read].used = 1;
			cache->reads[slot->read].used_at = ++cache->events;
		}
		return 0;
	}
	reads = grown(cache->reads, cache->read_count, &cache->read_capacity, 256, sizeof(*reads));
	if (!reads)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	cache->reads = reads;
	if (add(cache, read.logical, cache->read_count) < 0)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	read.used = !read.ahead;
	read.used_at = ++cache->events;
	if (read.ahead)
		read.used_at = 0;
	cache->reads[cache->read_count++] = read;
	COUNT(image, submit_bio);
	return 1;
}
