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

int send_ctx_init(struct send_ctx *ctx, const struct bm_send_args *args, struct bm_fault *fault)
{
	const struct bm_root *root = bm_forest_root(args->forest, args->send_root);
	const struct bm_root *csum_root = bm_forest_root(args->forest, BTRFS_CSUM_TREE_OBJECTID);

	ctx->args = args;
	ctx->fault = fault;
	*fault = (struct bm_fault){.code = BM_OK};
	if (!root || !csum_root)
		return send_errno(ctx, ENOENT);
	if (args->parent) {
		const struct bm_root *parent = bm_forest_root(args->forest, args->parent->objectid);

		if (!parent)
			return send_errno(ctx, ENOENT);
		ctx->parent = *parent;
	}
	ctx->image = root->image;
	ctx->root = *root;
	ctx->csum_root = *csum_root;
	ctx->max_size = args->proto >= 2 ? BUFFER_V2 : BUFFER_V1;
	ctx->clone_roots = calloc(args->clone_root_count, sizeof(*ctx->clone_roots));
	if (!ctx->clone_roots ||
	    lru_init(&ctx->name_cache,
		     TOGGLE(ctx, SEND_NAME_CACHE_LRU) ? args->limits.name_cache : 0) < 0 ||
	    lru_init(&ctx->dir_created_cache, args->limits.dir_created_cache) < 0 ||
	    lru_init(&ctx->dir_utimes_cache, 0) < 0 ||
	    lru_init(&ctx->backref_cache, args->limits.backref_cache) < 0 ||
	    lru_init(&ctx->orphan_dirs, 0) < 0 || lru_init(&ctx->waiting_dir_moves, 0) < 0 ||
	    lru_init(&ctx->pending_dir_moves, 0) < 0)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	for (size_t i = 0; i < args->clone_root_count; i++) {
		root = bm_forest_root(args->forest, args->clone_roots[i].objectid);
		if (!root)
			return send_errno(ctx, ENOENT);
		ctx->clone_roots[i].source = &args->clone_roots[i];
		ctx->clone_roots[i].root = *root;
		ctx->clone_root_count++;
	}
	return BM_OK;
}

void send_ctx_deinit(struct send_ctx *ctx)
{
	lru_deinit(&ctx->name_cache);
	lru_deinit(&ctx->dir_created_cache);
	created_scan_deinit(&ctx->created);
	lru_deinit(&ctx->dir_utimes_cache);
	lru_deinit(&ctx->backref_cache);
	lru_deinit(&ctx->orphan_dirs);
	lru_deinit(&ctx->waiting_dir_moves);
	if (ctx->pending_dir_moves.buckets)
		free_pending_dir_moves(ctx);
	lru_deinit(&ctx->pending_dir_moves);
	free(ctx->clone_roots);
	free_recorded_refs(&ctx->new_refs);
	free_recorded_refs(&ctx->deleted_refs);
	free(ctx->plain.data);
	free(ctx->buf);
}

struct bm_path alloc_path_for_send(const struct send_ctx *ctx)
{
	return (struct bm_path){.restart = !TOGGLE(ctx, SEARCH_NO_RESTART),
				.reada_missing = !TOGGLE(ctx, READA_ALWAYS_CACHED)};
}

/* ------------------------------------------------------------------------------------ errors -- */

int send_errno(struct send_ctx *ctx, int error)
{
	return bm_fail(ctx->fault, (struct bm_fault){.code = BM_ERRNO,
						     .tree = ctx->root.objectid,
						     .found = (uint64_t)error});
}

int send_bad_item(struct send_ctx *ctx, int code, const uint8_t *leaf, uint32_t slot,
		  uint64_t found, uint64_t wanted)
{
	return bm_fail(ctx->fault, (struct bm_fault){.code = code,
						     .tree = ctx->root.objectid,
						     .block = block_header(leaf)->bytenr,
						     .slot = slot,
						     .found = found,
						     .wanted = wanted});
}

/* ----------------------------------------------------------------------------------- reasons -- */

struct bm_send_item walk_item(const struct send_ctx *ctx)
{
	return (struct bm_send_item){.objectid = ctx->key.objectid,
				     .type = ctx->key.type,
				     .offset = ctx->key.offset,
				     .change = (uint8_t)ctx->result};
}

void because(struct send_ctx *ctx, enum bm_send_cause cause, uint64_t ino, struct bm_send_item item)
{
	if (ctx->args->explained)
		ctx->why = (struct bm_send_why){.inode = ino, .item = item, .cause = cause};
}

void because_inode(struct send_ctx *ctx, enum bm_send_cause cause)
{
	because(ctx, cause, ctx->cur_ino,
		(struct bm_send_item){.objectid = ctx->cur_ino,
				      .type = BTRFS_INODE_ITEM_KEY,
				      .change = (uint8_t)ctx->inode_change});
}

void because_of_rule(struct send_ctx *ctx, enum bm_send_cause cause)
{
	ctx->why.cause = cause;
}

/* -------------------------------------------------------------------------------- what waits -- */

int lru_add(struct send_ctx *ctx, struct lru_cache *cache, struct lru_entry *entry, uint64_t key,
	    uint64_t generation)
{
	if (!entry)
		return bm_fail(ctx->fault, (struct bm_fault){.code = BM_NOMEM});
	entry->key = key;
	entry->generation = generation;
	COUNT(ctx->image, btrfs_lru_cache_store);
	lru_store(cache, entry);
	return BM_OK;
}

struct waiting_dir_move *get_waiting_dir_move(struct send_ctx *ctx, uint64_t ino)
{
	COUNT(ctx->image, get_waiting_dir_move);
	return (struct waiting_dir_move *)lru_lookup(&ctx->waiting_dir_moves, ino, 0);
}

bool is_waiting_for_move(struct send_ctx *ctx, uint64_t ino)
{
	return get_waiting_dir_move(ctx, ino) != NULL;
}

/* Without SEND_RMDIR_GENERATION the generation does not tell orphan directories apart. */
static uint64_t orphan_dir_generation(const struct send_ctx *ctx, uint64_t gen)
{
	return TOGGLE(ctx, SEND_RMDIR_GENERATION) ? gen : 0;
}

struct orphan_dir_info *get_orphan_dir_info(struct send_ctx *ctx, uint64_t ino, uint64_t gen)
{
	COUNT(ctx->image, get_orphan_dir_info);
	return (struct orphan_dir_info *)lru_lookup(&ctx->orphan_dirs, ino,
						    orphan_dir_generation(ctx, gen));
}

bool is_waiting_for_rm(struct send_ctx *ctx, uint64_t ino, uint64_t gen)
{
	return get_orphan_dir_info(ctx, ino, gen) != NULL;
}

struct orphan_dir_info *add_orphan_dir_info(struct send_ctx *ctx, uint64_t ino, uint64_t gen)
{
	struct orphan_dir_info *info;

	COUNT(ctx->image, add_orphan_dir_info);
	info = (struct orphan_dir_info *)lru_lookup(&ctx->orphan_dirs, ino,
						    orphan_dir_generation(ctx, gen));
	if (info) {
		info->gen = gen;
		return info;
	}
	info = calloc(1, sizeof(*info));
	if (!info) {
		bm_fail(ctx->fault, (struct bm_fault){.code = BM_NOMEM});
		return NULL;
	}
	info->lru.key = ino;
	info->lru.generation = orphan_dir_generation(ctx, gen);
	info->gen = gen;
	lru_store(&ctx->orphan_dirs, &info->lru);
	return info;
}

void free_orphan_dir_info(struct send_ctx *ctx, struct orphan_dir_info *info)
{
	lru_remove(&ctx->orphan_dirs, &info->lru);
}
