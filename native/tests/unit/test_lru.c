// SPDX-License-Identifier: GPL-2.0-only
/* The caches of a send, beside an array in the order of their last use. */
#include "send/send.h"

#include <string.h>

#include "check.h"

#define MOST 16
#define KEYS 40

static uint64_t seed = 1;

static uint64_t chance(uint64_t below)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (seed >> 33) % below;
}

/* Oldest first. */
static uint64_t known[MOST];
static size_t count;

static size_t place_of(uint64_t key)
{
	size_t at = 0;

	while (at < count && known[at] != key)
		at++;
	return at;
}

static void move(size_t from, size_t to)
{
	uint64_t key = known[from];

	memmove(known + from, known + from + 1, (count - from - 1) * sizeof(*known));
	memmove(known + to + 1, known + to, (count - 1 - to) * sizeof(*known));
	known[to] = key;
}

static void check_order(const struct lru_cache *cache)
{
	const struct lru_entry *entry = cache->oldest, *older = NULL;

	CHECK(cache->size == count);
	for (size_t i = 0; i < count; i++) {
		CHECK(entry && entry->key == known[i] && entry->older == older);
		if (!entry)
			return;
		older = entry;
		entry = entry->newer;
	}
	CHECK(!entry && cache->newest == older);
}

static void look_up(struct lru_cache *cache, uint64_t key)
{
	struct lru_entry *entry = lru_lookup(cache, key, key / 2);
	size_t at = place_of(key);

	CHECK(!entry == (at == count));
	if (entry)
		move(at, count - 1);
}

static void store(struct lru_cache *cache, uint64_t key)
{
	size_t size = sizeof(struct lru_entry) + chance(300);
	struct lru_entry *entry = lru_alloc(cache, size);
	size_t room;

	CHECK(entry && entry->room >= size);
	room = entry->room;
	/* all of what was asked for may be written to */
	memset(entry, 0xa5, size);
	*entry = (struct lru_entry){.key = key, .generation = key / 2, .room = room};
	lru_store(cache, entry);
	if (count == MOST)
		memmove(known, known + 1, --count * sizeof(*known));
	known[count++] = key;
}

static void drop(struct lru_cache *cache, uint64_t key)
{
	size_t at = place_of(key);

	lru_remove(cache, lru_lookup(cache, key, key / 2));
	memmove(known + at, known + at + 1, (--count - at) * sizeof(*known));
}

int main(void)
{
	struct lru_cache cache;

	CHECK(lru_init(&cache, MOST) == BM_OK);
	for (int turn = 0; turn < 20000; turn++) {
		uint64_t key = chance(KEYS);
		bool is_there = place_of(key) < count;

		if (chance(3) == 0)
			look_up(&cache, key);
		else if (!is_there)
			store(&cache, key);
		else if (chance(8) == 0)
			drop(&cache, key);
		else if (place_of(key) + 1 < count) {
			size_t at = place_of(key);
			struct lru_entry *before = cache.oldest;

			for (size_t i = 0; i < at; i++)
				before = before->newer;
			lru_move_behind(&cache, before);
			move(count - 1, at);
		}
		check_order(&cache);
	}
	lru_deinit(&cache);
	return finish("lru");
}
