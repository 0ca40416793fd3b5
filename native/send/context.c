// SPDX-License-Identifier: GPL-2.0-only
/*
 * The state of one send, struct send_ctx: its beginning and end, and what waits in it.
 */
#include "send/send.h"

#include <errno.h>
#include <stdlib.h>

enum {
	/* the kernel's buffer for one command */
	BUFFER_V1 = 65536,
	BUFFER_V2 = 147456, /* 16 KiB + 128 KiB, in pages */
};

int send_ctx_init(struct send_ctx *sctx, const struct bm_send_args *args, struct bm_fault *fault)
{
	const struct bm_root *root = bm_forest_root(args->forest, args->send_root);
	const struct bm_root *csum_root = bm_forest_root(args->forest, BTRFS_CSUM_TREE_OBJECTID);

	sctx->args = args;
	sctx->fault = fault;
	*fault = (struct bm_fault){.code = BM_OK};
	if (!root || !csum_root)
		return send_errno(sctx, ENOENT);
	if (args->parent) {
		const struct bm_root *parent = bm_forest_root(args->forest, args->parent->objectid);

		if (!parent)
			return send_errno(sctx, ENOENT);
		sctx->parent = *parent;
		sctx->parent.near = &sctx->near_parent;
	}
	sctx->image = root->image;
	sctx->root = *root;
	sctx->csum_root = *csum_root;
	sctx->root.near = &sctx->near;
	sctx->csum_root.near = &sctx->near_csums;
	if (!size_only(sctx))
		bm_crc_shift_init(&sctx->after_sector, sctx->image->sectorsize);
	sctx->max_size = args->proto >= 2 ? BUFFER_V2 : BUFFER_V1;
	sctx->clone_roots = calloc(args->clone_root_count, sizeof(*sctx->clone_roots));
	if (!sctx->clone_roots ||
	    lru_init(&sctx->name_cache,
		     TOGGLE(sctx, SEND_NAME_CACHE_LRU) ? args->limits.name_cache : 0) < 0 ||
	    lru_init(&sctx->dir_created_cache, args->limits.dir_created_cache) < 0 ||
	    lru_init(&sctx->dir_utimes_cache, 0) < 0 ||
	    lru_init(&sctx->backref_cache, args->limits.backref_cache) < 0 ||
	    lru_init(&sctx->orphan_dirs, 0) < 0 || lru_init(&sctx->waiting_dir_moves, 0) < 0 ||
	    lru_init(&sctx->pending_dir_moves, 0) < 0)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	for (size_t i = 0; i < args->clone_root_count; i++) {
		root = bm_forest_root(args->forest, args->clone_roots[i].objectid);
		if (!root)
			return send_errno(sctx, ENOENT);
		sctx->clone_roots[i].source = &args->clone_roots[i];
		sctx->clone_roots[i].root = *root;
		if (root->objectid == sctx->root.objectid)
			sctx->clone_roots[i].root.near = sctx->root.near;
		else if (root->objectid == sctx->parent.objectid)
			sctx->clone_roots[i].root.near = sctx->parent.near;
		sctx->clone_root_count++;
	}
	return BM_OK;
}

void send_ctx_deinit(struct send_ctx *sctx)
{
	bm_compare_destroy(sctx->compare);
	lru_deinit(&sctx->name_cache);
	lru_deinit(&sctx->dir_created_cache);
	created_scan_deinit(&sctx->created);
	lru_deinit(&sctx->dir_utimes_cache);
	lru_deinit(&sctx->backref_cache);
	lru_deinit(&sctx->orphan_dirs);
	lru_deinit(&sctx->waiting_dir_moves);
	if (sctx->pending_dir_moves.buckets)
		free_pending_dir_moves(sctx);
	lru_deinit(&sctx->pending_dir_moves);
	free(sctx->clone_roots);
	free_recorded_refs(&sctx->new_refs);
	free_recorded_refs(&sctx->deleted_refs);
	free(sctx->plain.data);
	free(sctx->sector);
	free(sctx->pair.rows);
	free(sctx->buf);
}

/* ------------------------------------------------------------------------------------ errors -- */

int send_errno(struct send_ctx *sctx, int error)
{
	return bm_fail(sctx->fault, (struct bm_fault){.code = BM_ERRNO,
						      .tree = sctx->root.objectid,
						      .found = (uint64_t)error});
}

int send_bad_item(struct send_ctx *sctx, int code, const uint8_t *leaf, uint32_t slot,
		  uint64_t found, uint64_t wanted)
{
	return bm_fail(sctx->fault, (struct bm_fault){.code = code,
						      .tree = sctx->root.objectid,
						      .block = block_header(leaf)->bytenr,
						      .slot = slot,
						      .found = found,
						      .wanted = wanted});
}

/* ----------------------------------------------------------------------------------- reasons -- */

struct bm_send_item walk_item(const struct send_ctx *sctx)
{
	return (struct bm_send_item){.objectid = sctx->key.objectid,
				     .type = sctx->key.type,
				     .offset = sctx->key.offset,
				     .change = (uint8_t)sctx->result};
}

void because_inode(struct send_ctx *sctx, enum bm_send_cause cause)
{
	because(sctx, cause, sctx->cur_ino,
		(struct bm_send_item){.objectid = sctx->cur_ino,
				      .type = BTRFS_INODE_ITEM_KEY,
				      .change = (uint8_t)sctx->inode_change});
}

void because_of_rule(struct send_ctx *sctx, enum bm_send_cause cause)
{
	sctx->why.cause = cause;
}

/* -------------------------------------------------------------------------------- what waits -- */

int lru_add(struct send_ctx *sctx, struct lru_cache *cache, struct lru_entry *entry, uint64_t key,
	    uint64_t generation)
{
	if (!entry)
		return bm_fail(sctx->fault, (struct bm_fault){.code = BM_NOMEM});
	entry->key = key;
	entry->generation = generation;
	COUNT(sctx->image, btrfs_lru_cache_store);
	lru_store(cache, entry);
	return BM_OK;
}

struct waiting_dir_move *get_waiting_dir_move(struct send_ctx *sctx, uint64_t ino)
{
	COUNT(sctx->image, get_waiting_dir_move);
	return (struct waiting_dir_move *)lru_lookup(&sctx->waiting_dir_moves, ino, 0);
}

bool is_waiting_for_move(struct send_ctx *sctx, uint64_t ino)
{
	return get_waiting_dir_move(sctx, ino) != NULL;
}

/* Without SEND_RMDIR_GENERATION the generation does not tell orphan directories apart. */
static uint64_t orphan_dir_generation(const struct send_ctx *sctx, uint64_t gen)
{
	return TOGGLE(sctx, SEND_RMDIR_GENERATION) ? gen : 0;
}

struct orphan_dir_info *get_orphan_dir_info(struct send_ctx *sctx, uint64_t ino, uint64_t gen)
{
	COUNT(sctx->image, get_orphan_dir_info);
	return (struct orphan_dir_info *)lru_lookup(&sctx->orphan_dirs, ino,
						    orphan_dir_generation(sctx, gen));
}

bool is_waiting_for_rm(struct send_ctx *sctx, uint64_t ino, uint64_t gen)
{
	return get_orphan_dir_info(sctx, ino, gen) != NULL;
}

struct orphan_dir_info *add_orphan_dir_info(struct send_ctx *sctx, uint64_t ino, uint64_t gen)
{
	struct orphan_dir_info *info;

	COUNT(sctx->image, add_orphan_dir_info);
	info = (struct orphan_dir_info *)lru_lookup(&sctx->orphan_dirs, ino,
						    orphan_dir_generation(sctx, gen));
	if (info) {
		info->gen = gen;
		return info;
	}
	info = calloc(1, sizeof(*info));
	if (!info) {
		bm_fail(sctx->fault, (struct bm_fault){.code = BM_NOMEM});
		return NULL;
	}
	info->lru.key = ino;
	info->lru.generation = orphan_dir_generation(sctx, gen);
	info->gen = gen;
	lru_store(&sctx->orphan_dirs, &info->lru);
	return info;
}

void free_orphan_dir_info(struct send_ctx *sctx, struct orphan_dir_info *info)
{
	lru_remove(&sctx->orphan_dirs, &info->lru);
}
