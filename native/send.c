// SPDX-License-Identifier: GPL-2.0-only
/*
 * The full send: BTRFS_IOC_SEND of the kernel's send.c without a parent snapshot.
 *
 * The tree of the snapshot is walked item by item in key order. All items of an inode stand
 * together (inode, names, xattrs, extents), so the walk meets, inode by inode:
 *
 *   INODE_ITEM         create it under its orphan name
 *   INODE_REF, EXTREF  record its names; they are made when the first other item comes
 *   XATTR_ITEM         SET_XATTR
 *   EXTENT_DATA        WRITE or CLONE
 *   the next inode     finish it: size, owner, mode, capabilities, times
 */
#include "send.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	/* the kernel's buffer for one command */
	BUFFER_V1 = 65536,
	BUFFER_V2 = 147456, /* 16 KiB + 128 KiB, in pages */
};

/* objectids that are not inodes: the v1 free space and inode caches */
static const uint64_t free_space_objectid = 0 - (uint64_t)11;
static const uint64_t free_ino_objectid = 0 - (uint64_t)12;

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

struct bm_path send_path(const struct send_ctx *ctx)
{
	return (struct bm_path){.restart = !TOGGLE(ctx, SEARCH_NO_RESTART)};
}

static int send_chown(struct send_ctx *ctx, const struct inode_info *info)
{
	const struct fs_path *path;

	if (get_cur_inode_path(ctx, &path) < 0 || begin_cmd(ctx, BTRFS_SEND_C_CHOWN) < 0 ||
	    tlv_put_path(ctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put_u64(ctx, BTRFS_SEND_A_UID, info->uid) < 0 ||
	    tlv_put_u64(ctx, BTRFS_SEND_A_GID, info->gid) < 0)
		return ctx->fault->code;
	return send_cmd(ctx);
}

static int send_chmod(struct send_ctx *ctx, const struct inode_info *info)
{
	const struct fs_path *path;

	if (get_cur_inode_path(ctx, &path) < 0 || begin_cmd(ctx, BTRFS_SEND_C_CHMOD) < 0 ||
	    tlv_put_path(ctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put_u64(ctx, BTRFS_SEND_A_MODE, info->mode & 07777) < 0)
		return ctx->fault->code;
	return send_cmd(ctx);
}

static int changed_inode(struct send_ctx *ctx)
{
	const struct btrfs_inode_item *item = (const void *)item_data(ctx->leaf, ctx->slot);

	if (leaf_item(ctx->leaf, ctx->slot)->size < sizeof(*item))
		return send_bad_item(ctx, BM_BAD_ITEM_SIZE, ctx->leaf, ctx->slot,
				     leaf_item(ctx->leaf, ctx->slot)->size, sizeof(*item));
	ctx->cur_ino = ctx->key.objectid;
	ctx->cur_inode_next_write_offset = 0;
	ctx->cur_inode_path.size = 0;
	ctx->cur_inode_open = false;
	ctx->cur_inode_needs_verity = false;
	ctx->send_progress = ctx->cur_ino;
	/* unlinked but open when the snapshot was taken */
	ctx->ignore_cur_inode = item->nlink == 0;
	if (ctx->ignore_cur_inode)
		return BM_OK;
	ctx->cur_inode_gen = item->generation;
	ctx->cur_inode_size = item->size;
	ctx->cur_inode_mode = item->mode;
	ctx->cur_inode_rdev = item->rdev;
	ctx->cur_inode_flags = item->flags;
	if (ctx->cur_ino == BTRFS_FIRST_FREE_OBJECTID)
		return BM_OK;
	return send_create_inode_if_needed(ctx);
}

/* Everything of the current inode that comes after its items: size, owner, mode, times. */
static int finish_inode(struct send_ctx *ctx)
{
	bool need_truncate = !TOGGLE(ctx, SEND_SKIP_TRUNCATE) ||
			     ctx->cur_inode_next_write_offset != ctx->cur_inode_size;
	struct inode_info info;
	int ret;

	ret = get_inode_info(ctx, &ctx->root, ctx->cur_ino, &info);
	if (ret)
		return ret < 0 ? ret : send_errno(ctx, ENOENT);
	if (is_type(ctx->cur_inode_mode, MODE_REG) && need_truncate &&
	    send_truncate(ctx, ctx->cur_inode_size) < 0)
		return ctx->fault->code;
	if (send_chown(ctx, &info) < 0)
		return ctx->fault->code;
	if (!is_type(ctx->cur_inode_mode, MODE_LNK) && send_chmod(ctx, &info) < 0)
		return ctx->fault->code;
	if (ctx->args->proto >= 3 && ctx->cur_inode_needs_verity && process_verity(ctx) < 0)
		return ctx->fault->code;
	if (send_capabilities(ctx) < 0)
		return ctx->fault->code;
	COUNT(ctx->image, get_waiting_dir_move);
	ctx->send_progress = ctx->cur_ino + 1;
	/* more names may still come into a directory; an empty one is done */
	if (is_type(ctx->cur_inode_mode, MODE_DIR) && ctx->cur_inode_size > 0 &&
	    TOGGLE(ctx, SEND_UTIMES_CACHE))
		return cache_dir_utimes(ctx, ctx->cur_ino, ctx->cur_inode_gen);
	return send_utimes(ctx, ctx->cur_ino, ctx->cur_inode_gen);
}

static int finish_inode_if_needed(struct send_ctx *ctx, bool at_end)
{
	int ret = BM_OK;

	COUNT(ctx->image, finish_inode_if_needed);
	if (ctx->ignore_cur_inode)
		return BM_OK;
	/* the names are complete with the first item that is none */
	if (ctx->cur_ino && ctx->new_ref_count &&
	    (at_end || ctx->cur_ino != ctx->key.objectid ||
	     ctx->key.type > BTRFS_INODE_EXTREF_KEY)) {
		ret = process_recorded_refs(ctx);
		if (ret < 0)
			return ret;
		ctx->send_progress = ctx->cur_ino + 1;
	}
	if (ctx->cur_ino && (at_end || ctx->key.objectid != ctx->cur_ino))
		ret = finish_inode(ctx);
	if (!ret)
		ret = trim_dir_utimes_cache(ctx, DIR_UTIMES_CACHE_SIZE);
	return ret;
}

static int changed_cb(struct send_ctx *ctx)
{
	int ret;

	COUNT(ctx->image, changed_cb);
	ret = finish_inode_if_needed(ctx, false);
	if (ret < 0 || ctx->key.objectid == free_ino_objectid ||
	    ctx->key.objectid == free_space_objectid)
		return ret;
	if (ctx->key.type == BTRFS_INODE_ITEM_KEY)
		return changed_inode(ctx);
	if (ctx->ignore_cur_inode)
		return BM_OK;
	switch (ctx->key.type) {
	case BTRFS_INODE_REF_KEY:
	case BTRFS_INODE_EXTREF_KEY:
		/* an item without its inode: "inconsistent snapshot" */
		return ctx->cur_ino == ctx->key.objectid ? changed_ref(ctx) : send_errno(ctx, EIO);
	case BTRFS_XATTR_ITEM_KEY:
		return ctx->cur_ino == ctx->key.objectid ? changed_xattr(ctx)
							 : send_errno(ctx, EIO);
	case BTRFS_EXTENT_DATA_KEY:
		return ctx->cur_ino == ctx->key.objectid ? process_extent(ctx) : BM_OK;
	case BTRFS_VERITY_DESC_ITEM_KEY:
		if (!ctx->key.offset)
			ctx->cur_inode_needs_verity = true;
		return BM_OK;
	default:
		return BM_OK;
	}
}

static int full_send_tree(struct send_ctx *ctx)
{
	struct bm_key first = {.objectid = BTRFS_FIRST_FREE_OBJECTID, .type = BTRFS_INODE_ITEM_KEY};
	struct bm_path path = send_path(ctx);
	int ret;

	if (TOGGLE(ctx, SEND_READA_ALWAYS))
		path.reada = BM_READA_FORWARD_ALWAYS;
	else if (TOGGLE(ctx, SEND_READA))
		path.reada = BM_READA_FORWARD;
	ret = bm_search_slot_for_read(&ctx->root, &first, 1, &path, ctx->fault);
	while (!ret) {
		ctx->leaf = path.node[0];
		ctx->slot = path.slot[0];
		ctx->key = to_key(&leaf_item(ctx->leaf, ctx->slot)->key);
		ret = changed_cb(ctx);
		if (ret < 0)
			return ret;
		COUNT(ctx->image, btrfs_next_old_item);
		if (++path.slot[0] >= block_header(path.node[0])->nritems)
			ret = bm_next_leaf(&ctx->root, &path, ctx->fault);
	}
	return ret < 0 ? ret : finish_inode_if_needed(ctx, true);
}

/* SUBVOL, with the name under which the tree of roots has the subvolume. */
static int send_subvol_begin(struct send_ctx *ctx)
{
	const struct bm_root *roots = bm_forest_root(ctx->args->forest, BTRFS_ROOT_TREE_OBJECTID);
	struct bm_key key = {.objectid = ctx->root.objectid, .type = BTRFS_ROOT_BACKREF_KEY};
	const struct bm_send_root *source = NULL;
	struct bm_path path = send_path(ctx);
	const struct btrfs_root_ref *ref;
	const struct btrfs_item *item;
	int ret;

	for (size_t i = 0; i < ctx->clone_root_count; i++)
		if (ctx->clone_roots[i].root.objectid == ctx->root.objectid)
			source = ctx->clone_roots[i].source;
	if (!roots || !source)
		return send_errno(ctx, ENOENT);
	ret = bm_search_slot_for_read(roots, &key, 1, &path, ctx->fault);
	if (ret < 0)
		return ret;
	item = ret ? NULL : leaf_item(path.node[0], path.slot[0]);
	if (!item || item->key.type != key.type || item->key.objectid != key.objectid)
		return send_errno(ctx, ENOENT);
	ref = (const void *)item_data(path.node[0], path.slot[0]);
	if (item->size < sizeof(*ref) || item->size - sizeof(*ref) < ref->name_len)
		return send_bad_item(ctx, BM_BAD_ITEM_SIZE, path.node[0], path.slot[0], item->size,
				     sizeof(*ref));
	if (begin_cmd(ctx, BTRFS_SEND_C_SUBVOL) < 0 ||
	    tlv_put(ctx, BTRFS_SEND_A_PATH, ref + 1, ref->name_len) < 0 ||
	    tlv_put(ctx, BTRFS_SEND_A_UUID, source->uuid, sizeof(source->uuid)) < 0 ||
	    tlv_put_u64(ctx, BTRFS_SEND_A_CTRANSID, source->ctransid) < 0)
		return ctx->fault->code;
	return send_cmd(ctx);
}

static int send_header(struct send_ctx *ctx)
{
	uint8_t header[STREAM_HEADER_SIZE] = BTRFS_SEND_STREAM_MAGIC;

	memcpy(header + STREAM_HEADER_SIZE - 4, &ctx->args->proto, 4);
	return ctx->args->write(ctx->args->context, header, sizeof(header))
		   ? bm_fail(ctx->fault, (struct bm_fault){.code = BM_CALLBACK})
		   : BM_OK;
}

/* The directories whose times are still to be sent, the most recently used first. */
static int flush_dir_utimes(struct send_ctx *ctx)
{
	for (struct lru_entry *entry = ctx->dir_utimes_cache.newest; entry; entry = entry->older)
		if (send_utimes(ctx, entry->key, entry->generation) < 0)
			return ctx->fault->code;
	return BM_OK;
}

static int send_all(struct send_ctx *ctx)
{
	if (!(ctx->args->flags & BM_SEND_OMIT_STREAM_HEADER) && send_header(ctx) < 0)
		return ctx->fault->code;
	if (send_subvol_begin(ctx) < 0 || full_send_tree(ctx) < 0 || flush_dir_utimes(ctx) < 0)
		return ctx->fault->code;
	if (ctx->args->flags & BM_SEND_OMIT_END_CMD)
		return BM_OK;
	return begin_cmd(ctx, BTRFS_SEND_C_END) < 0 ? BM_NOMEM : send_cmd(ctx);
}

static int ctx_init(struct send_ctx *ctx, const struct bm_send_args *args, struct bm_fault *fault)
{
	const struct bm_root *root = bm_forest_root(args->forest, args->send_root);
	const struct bm_root *csum_root = bm_forest_root(args->forest, BTRFS_CSUM_TREE_OBJECTID);

	ctx->args = args;
	ctx->fault = fault;
	*fault = (struct bm_fault){.code = BM_OK};
	if (!root || !csum_root)
		return send_errno(ctx, ENOENT);
	ctx->image = root->image;
	ctx->root = *root;
	ctx->csum_root = *csum_root;
	ctx->max_size = args->proto >= 2 ? BUFFER_V2 : BUFFER_V1;
	ctx->clone_roots = calloc(args->clone_root_count, sizeof(*ctx->clone_roots));
	if (!ctx->clone_roots ||
	    lru_init(&ctx->name_cache, TOGGLE(ctx, SEND_NAME_CACHE_LRU) ? NAME_CACHE_SIZE : 0) <
		0 ||
	    lru_init(&ctx->dir_created_cache, DIR_CREATED_CACHE_SIZE) < 0 ||
	    lru_init(&ctx->dir_utimes_cache, 0) < 0 ||
	    lru_init(&ctx->backref_cache, BACKREF_CACHE_SIZE) < 0)
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

static void ctx_deinit(struct send_ctx *ctx)
{
	lru_deinit(&ctx->name_cache);
	lru_deinit(&ctx->dir_created_cache);
	lru_deinit(&ctx->dir_utimes_cache);
	lru_deinit(&ctx->backref_cache);
	free(ctx->clone_roots);
	free_recorded_refs(ctx);
	free(ctx->new_refs);
	free(ctx->plain.data);
	free(ctx->buf);
}

int bm_send(const struct bm_send_args *args, struct bm_fault *fault)
{
	struct send_ctx *ctx = calloc(1, sizeof(*ctx));
	struct bm_fault flush_fault;
	int ret;

	if (!ctx)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	ret = ctx_init(ctx, args, fault);
	if (!ret)
		ret = send_all(ctx);
	/* a send that fails leaves the commands that it finished before */
	ctx->fault = ret ? &flush_fault : fault;
	if (send_flush(ctx) < 0 && !ret)
		ret = fault->code;
	ctx_deinit(ctx);
	free(ctx);
	return ret;
}
