// SPDX-License-Identifier: GPL-2.0-only
/*
 * did_create_dir(): was a directory created out of its turn, as the parent of a lower inode?
 *
 * The kernel goes over the entries of the directory until it finds one whose inode was processed
 * already. Before it had a cache of created directories it did so for each entry of a new
 * directory, which makes the work grow with the square of their number: a hundred million steps
 * for 20,000 files. The model counts these steps but needs not take them. The entries do not
 * change during a send, and what is asked is always where the first of them below send_progress
 * lies; so a large directory is gone over once, and what was counted on the way to each leaf is
 * remembered. That is done when all its leaves are in memory already: reads are not remembered.
 */
#include "image/pool.h"
#include "send/send.h"

#include <stdlib.h>
#include <string.h>

enum {
	LONG_SCAN = 256, /* entries */
};

/* A leaf with entries of the directory: the first of them, and the work up to it. */
struct created_leaf {
	size_t first;
	uint64_t work[BM_WORK_COUNT];
};

void created_scan_deinit(struct created_scan *scan)
{
	free(scan->lowest);
	free(scan->leaves);
	free(scan->whole);
	memset(scan, 0, sizeof(*scan));
}

/*
 * To the next entry, as the loops of the kernel do it: 1 and the inode that it leads to (UINT64_MAX:
 * a subvolume, or nothing), 0 at the end of the directory.
 */
static int next_created(struct send_ctx *sctx, uint64_t dir, struct bm_path *path, uint64_t *ino)
{
	const struct btrfs_disk_key *at;
	const struct btrfs_dir_item *entry;
	uint32_t start = 0;
	int ret = btrfs_get_next_valid_item(sctx, &sctx->root, path);

	if (ret)
		return ret < 0 ? ret : 0;
	at = &leaf_item(path->node[0], path->slot[0])->key;
	if (at->objectid != dir || at->type != BTRFS_DIR_INDEX_KEY)
		return 0;
	ret = iterate_dir_item(sctx, path->node[0], path->slot[0], &start, &entry);
	if (ret < 0)
		return ret;
	*ino = ret && entry->location.type != BTRFS_ROOT_ITEM_KEY ? entry->location.objectid
								  : UINT64_MAX;
	return 1;
}

/* 1: an entry leads to an inode that was processed. */
static int look_at_each(struct send_ctx *sctx, uint64_t dir)
{
	struct bm_key key = {.objectid = dir, .type = BTRFS_DIR_INDEX_KEY};
	struct bm_path path = alloc_path_for_send(sctx);
	uint64_t ino;
	size_t seen;
	int ret;

	if (bm_search_slot(&sctx->root, &key, &path, sctx->fault) < 0)
		return sctx->fault->code;
	for (seen = 0; (ret = next_created(sctx, dir, &path, &ino)) > 0; seen++) {
		if (ino < sctx->send_progress)
			break;
		path.slot[0]++;
	}
	if (seen > LONG_SCAN)
		sctx->created.long_dir = dir;
	return ret;
}

/* ------------------------------------------------------------------- what is remembered of it -- */

static int grow(struct send_ctx *sctx, void **rows, size_t *capacity, size_t count, size_t size)
{
	void *more = grown(*rows, count, capacity, 64, size);

	if (!more)
		return bm_fail(sctx->fault, (struct bm_fault){.code = BM_NOMEM});
	*rows = more;
	return BM_OK;
}

/* Go over all entries; sctx->image->work counts from 0. */
static int remember_entries(struct send_ctx *sctx, uint64_t dir)
{
	struct bm_key key = {.objectid = dir, .type = BTRFS_DIR_INDEX_KEY};
	struct created_scan *scan = &sctx->created;
	struct bm_path path = alloc_path_for_send(sctx);
	uint64_t ino, lowest = UINT64_MAX;
	const uint8_t *leaf = NULL;
	int ret;

	scan->count = scan->leaf_count = 0;
	if (bm_search_slot(&sctx->root, &key, &path, sctx->fault) < 0)
		return sctx->fault->code;
	while ((ret = next_created(sctx, dir, &path, &ino)) > 0) {
		if (path.node[0] != leaf) {
			struct created_leaf *row;

			if (grow(sctx, (void **)&scan->leaves, &scan->leaf_capacity,
				 scan->leaf_count, sizeof(*scan->leaves)) < 0)
				return sctx->fault->code;
			row = &scan->leaves[scan->leaf_count++];
			row->first = scan->count;
			memcpy(row->work, sctx->image->work, sizeof(row->work));
			leaf = path.node[0];
		}
		if (grow(sctx, (void **)&scan->lowest, &scan->capacity, scan->count,
			 sizeof(*scan->lowest)) < 0)
			return sctx->fault->code;
		lowest = ino < lowest ? ino : lowest;
		scan->lowest[scan->count++] = lowest;
		path.slot[0]++;
	}
	return ret;
}

static size_t reads_so_far(const struct send_ctx *sctx)
{
	return sctx->image->cache ? sctx->image->cache->read_count : 0;
}

static int remember(struct send_ctx *sctx, uint64_t dir)
{
	struct created_scan *scan = &sctx->created;
	uint64_t *work = sctx->image->work;
	size_t reads = reads_so_far(sctx);
	int ret;

	scan->dir = 0;
	free(scan->whole);
	scan->whole = calloc(BM_WORK_COUNT, sizeof(*scan->whole));
	if (!scan->whole)
		return bm_fail(sctx->fault, (struct bm_fault){.code = BM_NOMEM});
	sctx->image->work = scan->whole;
	ret = remember_entries(sctx, dir);
	sctx->image->work = work;
	if (!ret && reads_so_far(sctx) == reads)
		scan->dir = dir;
	return ret;
}

static void count_work(struct send_ctx *sctx, const uint64_t *work)
{
	for (size_t i = 0; i < BM_WORK_COUNT; i++)
		sctx->image->work[i] += work[i];
}

/* The same answer and counts as look_at_each(). */
static int look_at_remembered(struct send_ctx *sctx)
{
	const struct created_scan *scan = &sctx->created;
	size_t low = 0, high = scan->count, leaf = 0, end = scan->leaf_count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (scan->lowest[middle] < sctx->send_progress)
			high = middle;
		else
			low = middle + 1;
	}
	if (low == scan->count) {
		count_work(sctx, scan->whole);
		return 0;
	}
	while (leaf + 1 < end) {
		size_t middle = leaf + (end - leaf) / 2;

		if (scan->leaves[middle].first <= low)
			leaf = middle;
		else
			end = middle;
	}
	count_work(sctx, scan->leaves[leaf].work);
	COUNT_N(sctx->image, btrfs_get_next_valid_item, low - scan->leaves[leaf].first);
	return 1;
}

int cache_dir_created(struct send_ctx *sctx, uint64_t dir)
{
	if (!TOGGLE(sctx, SEND_DIR_CREATED_CACHE))
		return BM_OK;
	/* storing one that is there already changes nothing, not even its place in the list */
	for (struct lru_entry *entry = sctx->dir_created_cache.newest; entry; entry = entry->older)
		if (entry->key == dir)
			return BM_OK;
	return lru_add(sctx, &sctx->dir_created_cache, malloc(sizeof(struct lru_entry)), dir, 0);
}

int did_create_dir(struct send_ctx *sctx, uint64_t dir)
{
	int ret;

	COUNT(sctx->image, did_create_dir);
	if (TOGGLE(sctx, SEND_DIR_CREATED_CACHE)) {
		COUNT(sctx->image, btrfs_lru_cache_lookup);
		if (lru_lookup(&sctx->dir_created_cache, dir, 0))
			return 1;
	}
	/* 0 is no directory, and stands for none */
	if (dir && sctx->created.long_dir == dir && sctx->created.dir != dir &&
	    remember(sctx, dir) < 0)
		return sctx->fault->code;
	ret = dir && sctx->created.dir == dir ? look_at_remembered(sctx) : look_at_each(sctx, dir);
	if (ret <= 0)
		return ret;
	ret = cache_dir_created(sctx, dir);
	return ret < 0 ? ret : 1;
}
