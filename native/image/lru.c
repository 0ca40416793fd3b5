// SPDX-License-Identifier: GPL-2.0-only
/*
 * The cache that send keeps names, directories and roots in: a hash table whose entries also form
 * a list ordered by their last use.
 */
#include "send/send.h"

#include <stdlib.h>

enum { ROUNDED = 64 };

static struct lru_entry **bucket_of(const struct lru_cache *cache, uint64_t key,
				    uint64_t generation)
{
	uint64_t hash = (key ^ generation << 32 ^ generation >> 32) * 0x9e3779b97f4a7c15ull;

	return &cache->buckets[hash >> 32 & (cache->bucket_count - 1)];
}

int lru_init(struct lru_cache *cache, size_t max_size)
{
	*cache = (struct lru_cache){.max_size = max_size, .bucket_count = 512};
	cache->buckets = calloc(cache->bucket_count, sizeof(*cache->buckets));
	return cache->buckets ? BM_OK : BM_NOMEM;
}

void lru_deinit(struct lru_cache *cache)
{
	while (cache->oldest)
		lru_remove(cache, cache->oldest);
	free(cache->spare);
	free(cache->buckets);
}

struct lru_entry *lru_alloc(struct lru_cache *cache, size_t size)
{
	struct lru_entry *entry = cache->spare;

	cache->reuses = true;
	if (entry && entry->room >= size) {
		cache->spare = NULL;
		return entry;
	}
	size = (size + ROUNDED - 1) / ROUNDED * ROUNDED;
	entry = malloc(size);
	if (entry)
		entry->room = size;
	return entry;
}

static void unlink_use(struct lru_cache *cache, struct lru_entry *entry)
{
	*(entry->older ? &entry->older->newer : &cache->oldest) = entry->newer;
	*(entry->newer ? &entry->newer->older : &cache->newest) = entry->older;
}

static void link_newest(struct lru_cache *cache, struct lru_entry *entry)
{
	entry->older = cache->newest;
	entry->newer = NULL;
	*(cache->newest ? &cache->newest->newer : &cache->oldest) = entry;
	cache->newest = entry;
	cache->moves++;
}

struct lru_entry *lru_lookup(struct lru_cache *cache, uint64_t key, uint64_t generation)
{
	struct lru_entry *entry = cache->size ? *bucket_of(cache, key, generation) : NULL;

	while (entry && (entry->key != key || entry->generation != generation))
		entry = entry->chain;
	if (entry && entry != cache->newest) {
		unlink_use(cache, entry);
		link_newest(cache, entry);
	}
	return entry;
}

void lru_store(struct lru_cache *cache, struct lru_entry *entry)
{
	struct lru_entry **bucket = bucket_of(cache, entry->key, entry->generation);

	if (cache->max_size && cache->size == cache->max_size)
		lru_remove(cache, cache->oldest);
	entry->chain = *bucket;
	*bucket = entry;
	link_newest(cache, entry);
	cache->size++;
}

void lru_remove(struct lru_cache *cache, struct lru_entry *entry)
{
	struct lru_entry **link = bucket_of(cache, entry->key, entry->generation);

	while (*link != entry)
		link = &(*link)->chain;
	*link = entry->chain;
	unlink_use(cache, entry);
	cache->size--;
	if (cache->reuses) {
		free(cache->spare);
		cache->spare = entry;
	} else {
		free(entry);
	}
}

void lru_move_behind(struct lru_cache *cache, struct lru_entry *before)
{
	struct lru_entry *entry = cache->newest;

	unlink_use(cache, entry);
	entry->newer = before;
	entry->older = before->older;
	*(before->older ? &before->older->newer : &cache->oldest) = entry;
	before->older = entry;
}
