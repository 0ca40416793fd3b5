// SPDX-License-Identifier: GPL-2.0-only
/*
 * What an incremental send need not say of a file, and what it must: extents that are as they were,
 * and holes where the parent snapshot has data.
 */
#include "send/send.h"

#include <errno.h>

enum { PAGE = 4096, PUNCH_HOLE_KEEP_SIZE = 3, NOT_DATA = 16384 };

/* Whether the current inode is a file that the receiver has already. */
static bool need_send_hole(const struct send_ctx *ctx)
{
	return has_parent(ctx) && !ctx->cur_inode_new && !ctx->cur_inode_new_gen &&
	       !ctx->cur_inode_deleted && is_type(ctx->cur_inode_mode, MODE_REG);
}

static bool is_extent_data(const struct bm_path *path, uint64_t ino)
{
	const struct btrfs_disk_key *at = &leaf_item(path->node[0], path->slot[0])->key;

	return at->objectid == ino && at->type == BTRFS_EXTENT_DATA_KEY;
}

/*
 * One extent of the parent beside the one sent. 1: it refers to the same bytes; 0: it does not;
 * 2: it ends before the one sent starts, so that there was a hole.
 */
static int compare_extent(const struct file_extent *left, const struct file_extent *right)
{
	uint64_t size =
	    right->inline_data ? (right->ram_bytes + PAGE - 1) / PAGE * PAGE : right->num_bytes;
	uint64_t left_offset = left->offset, right_offset = right->offset;

	if (right->type == BTRFS_FILE_EXTENT_PREALLOC)
		return 0;
	if (right->start + size <= left->start)
		return 2;
	if (right->inline_data)
		return 0;
	if (right->start < left->start)
		right_offset += left->start - right->start;
	else
		left_offset += right->start - left->start;
	return left->disk_bytenr == right->disk_bytenr && left_offset == right_offset &&
	       left->generation == right->generation;
}

int is_extent_unchanged(struct send_ctx *ctx, const struct file_extent *left)
{
	struct bm_key key = {
	    .objectid = ctx->cur_ino, .type = BTRFS_EXTENT_DATA_KEY, .offset = left->start};
	uint64_t left_end = left->start + left->num_bytes;
	struct bm_path path = alloc_path_for_send(ctx);
	struct file_extent right;
	int ret;

	COUNT(ctx->image, is_extent_unchanged);
	if (left->type != BTRFS_FILE_EXTENT_REG)
		return 0;
	ret = bm_search_slot_for_read(&ctx->parent, &key, 0, &path, ctx->fault);
	if (ret)
		return ret < 0 ? ret : 0;
	/* nothing there: a hole is a hole still */
	if (!is_extent_data(&path, ctx->cur_ino))
		return !left->disk_bytenr;
	for (;;) {
		uint64_t end;

		ret = parse_file_extent(ctx, path.node[0], path.slot[0], &right);
		if (ret < 0)
			return ret;
		if (right.start >= left_end)
			return 1;
		ret = compare_extent(left, &right);
		if (ret != 1)
			return ret == 2 ? !left->disk_bytenr : 0;
		end = right.start + right.num_bytes;
		COUNT(ctx->image, btrfs_next_old_item);
		if (++path.slot[0] >= block_header(path.node[0])->nritems) {
			ret = bm_next_leaf(&ctx->parent, &path, ctx->fault);
			if (ret < 0)
				return ret;
			if (ret)
				return end >= left_end;
		}
		if (!is_extent_data(&path, ctx->cur_ino))
			return end >= left_end;
		if (leaf_item(path.node[0], path.slot[0])->key.offset != end)
			return 0;
	}
}

/* Find the end of the last extent at or before `offset`. */
static int get_last_extent(struct send_ctx *ctx, uint64_t offset)
{
	struct bm_key key = {
	    .objectid = ctx->cur_ino, .type = BTRFS_EXTENT_DATA_KEY, .offset = offset};
	struct bm_path path = alloc_path_for_send(ctx);
	struct file_extent extent;

	COUNT(ctx->image, get_last_extent);
	ctx->cur_inode_last_extent = 0;
	if (bm_search_slot_for_read(&ctx->root, &key, 0, &path, ctx->fault) < 0)
		return ctx->fault->code;
	if (!is_extent_data(&path, ctx->cur_ino))
		return BM_OK;
	if (parse_file_extent(ctx, path.node[0], path.slot[0], &extent) < 0)
		return ctx->fault->code;
	ctx->cur_inode_last_extent = extent.end;
	return BM_OK;
}

/*
 * What kernels without SEND_INLINE_NOT_HOLE take for the address of inline data: bytes of
 * the data themselves, and of what lies behind them in the leaf where they are fewer than eight.
 */
static uint64_t misread_disk_bytenr(const struct send_ctx *ctx, const uint8_t *leaf,
				    const struct file_extent *extent)
{
	size_t left = (size_t)(leaf + ctx->image->nodesize - extent->inline_data);
	uint64_t value = 0;

	memcpy(&value, extent->inline_data, left < sizeof(value) ? left : sizeof(value));
	return value;
}

/* Whether the parent snapshot has the file there, as data (0) or not (1). */
static int range_is_hole_in_parent(struct send_ctx *ctx, uint64_t start, uint64_t end)
{
	struct bm_key key = {
	    .objectid = ctx->cur_ino, .type = BTRFS_EXTENT_DATA_KEY, .offset = start};
	struct bm_path path = alloc_path_for_send(ctx);
	uint64_t search_start = start;
	int ret;

	COUNT(ctx->image, range_is_hole_in_parent);
	ret = bm_search_slot(&ctx->parent, &key, &path, ctx->fault);
	if (ret < 0)
		return ret;
	if (ret && path.slot[0] > 0)
		path.slot[0]--;
	for (; search_start < end; path.slot[0]++) {
		const struct btrfs_disk_key *at;
		struct file_extent extent;

		if (path.slot[0] >= block_header(path.node[0])->nritems) {
			ret = bm_next_leaf(&ctx->parent, &path, ctx->fault);
			if (ret)
				return ret < 0 ? ret : 1;
		}
		at = &leaf_item(path.node[0], path.slot[0])->key;
		if (at->objectid < ctx->cur_ino || at->type < BTRFS_EXTENT_DATA_KEY)
			continue;
		if (at->objectid > ctx->cur_ino || at->type > BTRFS_EXTENT_DATA_KEY ||
		    at->offset >= end)
			return 1;
		ret = parse_file_extent(ctx, path.node[0], path.slot[0], &extent);
		if (ret < 0)
			return ret;
		if (extent.end <= start)
			continue;
		if (extent.inline_data && TOGGLE(ctx, SEND_INLINE_NOT_HOLE))
			return 0;
		if (extent.inline_data)
			extent.disk_bytenr = misread_disk_bytenr(ctx, path.node[0], &extent);
		if (extent.disk_bytenr)
			return 0;
		search_start = extent.end;
	}
	return 1;
}

static int send_fallocate(struct send_ctx *ctx, uint64_t offset, uint64_t size)
{
	const struct fs_path *path;

	if (get_cur_inode_path(ctx, &path) < 0 || begin_cmd(ctx, BTRFS_SEND_C_FALLOCATE) < 0 ||
	    tlv_put_path(ctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put_u32(ctx, BTRFS_SEND_A_FALLOCATE_MODE, PUNCH_HOLE_KEEP_SIZE) < 0 ||
	    tlv_put_u64(ctx, BTRFS_SEND_A_FILE_OFFSET, offset) < 0 ||
	    tlv_put_u64(ctx, BTRFS_SEND_A_SIZE, size) < 0)
		return ctx->fault->code;
	return send_cmd(ctx);
}

static int send_zeros(struct send_ctx *ctx, const struct fs_path *path, uint64_t offset,
		      size_t size)
{
	uint8_t *data;

	if (begin_cmd(ctx, BTRFS_SEND_C_WRITE) < 0 ||
	    tlv_put_path(ctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put_u64(ctx, BTRFS_SEND_A_FILE_OFFSET, offset) < 0)
		return ctx->fault->code;
	data = put_data(ctx, size);
	if (!data)
		return ctx->fault->code;
	memset(data, 0, size);
	return send_cmd(ctx);
}

/* A hole from the last extent to `end`: punched (protocol 2) or written as zeros. */
static int send_hole(struct send_ctx *ctx, uint64_t end)
{
	uint64_t offset = ctx->cur_inode_last_extent;
	const struct fs_path *path;

	if (ctx->args->proto >= 2 && TOGGLE(ctx, SEND_PUNCH_HOLE))
		return send_fallocate(ctx, offset, end - offset);
	/* beyond the end of the file a write would only have to be truncated again */
	if (offset >= ctx->cur_inode_size)
		return BM_OK;
	if (end > ctx->cur_inode_size)
		end = ctx->cur_inode_size;
	if (ctx->args->flags & BM_SEND_NO_FILE_DATA)
		return send_update_extent(ctx, offset, end - offset);
	if (get_cur_inode_path(ctx, &path) < 0)
		return ctx->fault->code;
	while (offset < end) {
		size_t size = ctx->max_size - NOT_DATA;

		if (end - offset < size)
			size = end - offset;
		if (send_zeros(ctx, path, offset, size) < 0)
			return ctx->fault->code;
		offset += size;
	}
	ctx->cur_inode_next_write_offset = offset;
	return BM_OK;
}

int maybe_send_hole(struct send_ctx *ctx)
{
	struct file_extent extent;
	int ret = BM_OK;

	if (ctx->cur_ino != ctx->key.objectid || !need_send_hole(ctx))
		return BM_OK;
	/* leaves that both snapshots share, with extents of this file, may have been skipped */
	if (ctx->cur_inode_last_extent == UINT64_MAX ||
	    (!ctx->slot && ctx->cur_inode_last_extent < ctx->key.offset)) {
		if (get_last_extent(ctx, ctx->key.offset - 1) < 0)
			return ctx->fault->code;
	}
	if (ctx->cur_inode_last_extent < ctx->key.offset) {
		because(ctx, BM_SEND_HOLE, ctx->cur_ino, walk_item(ctx));
		ret = range_is_hole_in_parent(ctx, ctx->cur_inode_last_extent, ctx->key.offset);
		if (!ret)
			ret = send_hole(ctx, ctx->key.offset);
	}
	if (ret < 0 || parse_file_extent(ctx, ctx->leaf, ctx->slot, &extent) < 0)
		return ctx->fault->code;
	ctx->cur_inode_last_extent = extent.end;
	return BM_OK;
}

int send_trailing_hole(struct send_ctx *ctx)
{
	int ret = 0;

	if (!need_send_hole(ctx))
		return BM_OK;
	if (ctx->cur_inode_last_extent == UINT64_MAX ||
	    ctx->cur_inode_last_extent < ctx->cur_inode_size) {
		if (get_last_extent(ctx, UINT64_MAX) < 0)
			return ctx->fault->code;
	}
	if (ctx->cur_inode_last_extent >= ctx->cur_inode_size)
		return BM_OK;
	/* not where it was a hole before */
	if (TOGGLE(ctx, SEND_TRAILING_HOLE))
		ret = range_is_hole_in_parent(ctx, ctx->cur_inode_last_extent, ctx->cur_inode_size);
	if (ret)
		return ret < 0 ? ret : BM_OK;
	because_inode(ctx, BM_SEND_HOLE_AT_END);
	return send_hole(ctx, ctx->cur_inode_size);
}
