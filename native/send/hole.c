// SPDX-License-Identifier: GPL-2.0-only
/*
 * What an incremental send need not say of a file, and what it must: extents that are as they were,
 * and holes where the parent snapshot has data.
 */
#include "send/send.h"

#include <errno.h>

enum { PAGE = 4096, PUNCH_HOLE_KEEP_SIZE = 3, NOT_DATA = 16384 };

/* Whether the current inode is a file that the receiver has already. */
static bool need_send_hole(const struct send_ctx *sctx)
{
	return has_parent(sctx) && !sctx->cur_inode_new && !sctx->cur_inode_new_gen &&
	       !sctx->cur_inode_deleted && is_type(sctx->cur_inode_mode, MODE_REG);
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

int is_extent_unchanged(struct send_ctx *sctx, const struct file_extent *left)
{
	struct bm_key key = {
	    .objectid = sctx->cur_ino, .type = BTRFS_EXTENT_DATA_KEY, .offset = left->start};
	uint64_t left_end = left->start + left->num_bytes;
	struct bm_path path = alloc_path_for_send(sctx);
	struct file_extent right;
	int ret;

	COUNT(sctx->image, is_extent_unchanged);
	if (left->type != BTRFS_FILE_EXTENT_REG)
		return 0;
	ret = bm_search_slot_for_read(&sctx->parent, &key, 0, &path, sctx->fault);
	if (ret)
		return ret < 0 ? ret : 0;
	/* nothing there: a hole is a hole still */
	if (!is_extent_data(&path, sctx->cur_ino))
		return !left->disk_bytenr;
	for (;;) {
		uint64_t end;

		ret = parse_file_extent(sctx, path.node[0], path.slot[0], &right);
		if (ret < 0)
			return ret;
		if (right.start >= left_end)
			return 1;
		ret = compare_extent(left, &right);
		if (ret != 1)
			return ret == 2 ? !left->disk_bytenr : 0;
		end = right.start + right.num_bytes;
		COUNT(sctx->image, btrfs_next_old_item);
		if (++path.slot[0] >= block_header(path.node[0])->nritems) {
			ret = bm_next_leaf(&sctx->parent, &path, sctx->fault);
			if (ret < 0)
				return ret;
			if (ret)
				return end >= left_end;
		}
		if (!is_extent_data(&path, sctx->cur_ino))
			return end >= left_end;
		if (leaf_item(path.node[0], path.slot[0])->key.offset != end)
			return 0;
	}
}

/* Find the end of the last extent at or before `offset`. */
static int get_last_extent(struct send_ctx *sctx, uint64_t offset)
{
	struct bm_key key = {
	    .objectid = sctx->cur_ino, .type = BTRFS_EXTENT_DATA_KEY, .offset = offset};
	struct bm_path path = alloc_path_for_send(sctx);
	struct file_extent extent;

	COUNT(sctx->image, get_last_extent);
	sctx->cur_inode_last_extent = 0;
	if (bm_search_slot_for_read(&sctx->root, &key, 0, &path, sctx->fault) < 0)
		return sctx->fault->code;
	if (!is_extent_data(&path, sctx->cur_ino))
		return BM_OK;
	if (parse_file_extent(sctx, path.node[0], path.slot[0], &extent) < 0)
		return sctx->fault->code;
	sctx->cur_inode_last_extent = extent.end;
	return BM_OK;
}

/*
 * What kernels without SEND_INLINE_NOT_HOLE take for the address of inline data: bytes of
 * the data themselves, and of what lies behind them in the leaf where they are fewer than eight.
 */
static uint64_t misread_disk_bytenr(const struct send_ctx *sctx, const uint8_t *leaf,
				    const struct file_extent *extent)
{
	size_t left = (size_t)(leaf + sctx->image->nodesize - extent->inline_data);
	uint64_t value = 0;

	memcpy(&value, extent->inline_data, left < sizeof(value) ? left : sizeof(value));
	return value;
}

/* Whether the parent snapshot has the file there, as data (0) or not (1). */
static int range_is_hole_in_parent(struct send_ctx *sctx, uint64_t start, uint64_t end)
{
	struct bm_key key = {
	    .objectid = sctx->cur_ino, .type = BTRFS_EXTENT_DATA_KEY, .offset = start};
	struct bm_path path = alloc_path_for_send(sctx);
	uint64_t search_start = start;
	int ret;

	COUNT(sctx->image, range_is_hole_in_parent);
	ret = bm_search_slot(&sctx->parent, &key, &path, sctx->fault);
	if (ret < 0)
		return ret;
	if (ret && path.slot[0] > 0)
		path.slot[0]--;
	for (; search_start < end; path.slot[0]++) {
		const struct btrfs_disk_key *at;
		struct file_extent extent;

		if (path.slot[0] >= block_header(path.node[0])->nritems) {
			ret = bm_next_leaf(&sctx->parent, &path, sctx->fault);
			if (ret)
				return ret < 0 ? ret : 1;
		}
		at = &leaf_item(path.node[0], path.slot[0])->key;
		if (at->objectid < sctx->cur_ino || at->type < BTRFS_EXTENT_DATA_KEY)
			continue;
		if (at->objectid > sctx->cur_ino || at->type > BTRFS_EXTENT_DATA_KEY ||
		    at->offset >= end)
			return 1;
		ret = parse_file_extent(sctx, path.node[0], path.slot[0], &extent);
		if (ret < 0)
			return ret;
		if (extent.end <= start)
			continue;
		if (extent.inline_data && TOGGLE(sctx, SEND_INLINE_NOT_HOLE))
			return 0;
		if (extent.inline_data)
			extent.disk_bytenr = misread_disk_bytenr(sctx, path.node[0], &extent);
		if (extent.disk_bytenr)
			return 0;
		search_start = extent.end;
	}
	return 1;
}

bool has_only_moved(const struct send_ctx *sctx)
{
	const struct btrfs_item *left = leaf_item(sctx->leaf, sctx->slot);
	const struct btrfs_item *right = leaf_item(sctx->right_leaf, sctx->right_slot);
	const uint8_t *a = item_data(sctx->leaf, sctx->slot);
	const uint8_t *b = item_data(sctx->right_leaf, sctx->right_slot);
	size_t at = offsetof(struct btrfs_file_extent_item, disk_bytenr), behind = at + 8;

	return left->size == right->size && left->size >= behind && !memcmp(a, b, at) &&
	       !memcmp(a + behind, b + behind, left->size - behind) && memcmp(a + at, b + at, 8);
}

static int send_fallocate(struct send_ctx *sctx, uint64_t offset, uint64_t size)
{
	const struct fs_path *path;

	if (get_cur_inode_path(sctx, &path) < 0 || begin_cmd(sctx, BTRFS_SEND_C_FALLOCATE) < 0 ||
	    tlv_put_path(sctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put_u32(sctx, BTRFS_SEND_A_FALLOCATE_MODE, PUNCH_HOLE_KEEP_SIZE) < 0 ||
	    tlv_put_u64(sctx, BTRFS_SEND_A_FILE_OFFSET, offset) < 0 ||
	    tlv_put_u64(sctx, BTRFS_SEND_A_SIZE, size) < 0)
		return sctx->fault->code;
	return send_cmd(sctx);
}

static int send_zeros(struct send_ctx *sctx, const struct fs_path *path, uint64_t offset,
		      size_t size)
{
	uint8_t *data;

	if (begin_cmd(sctx, BTRFS_SEND_C_WRITE) < 0 ||
	    tlv_put_path(sctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put_u64(sctx, BTRFS_SEND_A_FILE_OFFSET, offset) < 0)
		return sctx->fault->code;
	data = put_data(sctx, size);
	if (!data)
		return sctx->fault->code;
	memset(data, 0, size);
	return send_cmd(sctx);
}

/* A hole from the last extent to `end`: punched (protocol 2) or written as zeros. */
static int send_hole(struct send_ctx *sctx, uint64_t end)
{
	uint64_t offset = sctx->cur_inode_last_extent;
	const struct fs_path *path;

	if (sctx->args->proto >= 2 && TOGGLE(sctx, SEND_PUNCH_HOLE))
		return send_fallocate(sctx, offset, end - offset);
	/* beyond the end of the file a write would only have to be truncated again */
	if (offset >= sctx->cur_inode_size && TOGGLE(sctx, SEND_NO_HOLE_BEHIND_EOF))
		return BM_OK;
	if (end > sctx->cur_inode_size && TOGGLE(sctx, SEND_NO_HOLE_BEHIND_EOF) &&
	    TOGGLE(sctx, SEND_HOLE_TO_EOF))
		end = sctx->cur_inode_size;
	if (sctx->args->flags & BM_SEND_NO_FILE_DATA)
		return send_update_extent(sctx, offset, end - offset);
	if (get_cur_inode_path(sctx, &path) < 0)
		return sctx->fault->code;
	while (offset < end) {
		size_t size = sctx->max_size - NOT_DATA;

		if (end - offset < size)
			size = end - offset;
		if (send_zeros(sctx, path, offset, size) < 0)
			return sctx->fault->code;
		offset += size;
	}
	sctx->cur_inode_next_write_offset = offset;
	return BM_OK;
}

int maybe_send_hole(struct send_ctx *sctx)
{
	struct file_extent extent;
	int ret = BM_OK;

	if (sctx->cur_ino != sctx->key.objectid || !need_send_hole(sctx))
		return BM_OK;
	/* leaves that both snapshots share, with extents of this file, may have been skipped */
	if (sctx->cur_inode_last_extent == UINT64_MAX ||
	    (!sctx->slot && sctx->cur_inode_last_extent < sctx->key.offset)) {
		if (get_last_extent(sctx, sctx->key.offset - 1) < 0)
			return sctx->fault->code;
	}
	if (sctx->cur_inode_last_extent < sctx->key.offset) {
		because(sctx, BM_SEND_HOLE, sctx->cur_ino, walk_item(sctx));
		ret = range_is_hole_in_parent(sctx, sctx->cur_inode_last_extent, sctx->key.offset);
		if (!ret)
			ret = send_hole(sctx, sctx->key.offset);
	}
	if (ret < 0 || parse_file_extent(sctx, sctx->leaf, sctx->slot, &extent) < 0)
		return sctx->fault->code;
	sctx->cur_inode_last_extent = extent.end;
	return BM_OK;
}

int send_trailing_hole(struct send_ctx *sctx)
{
	int ret = 0;

	if (!need_send_hole(sctx))
		return BM_OK;
	if (sctx->cur_inode_last_extent == UINT64_MAX ||
	    sctx->cur_inode_last_extent < sctx->cur_inode_size) {
		if (get_last_extent(sctx, UINT64_MAX) < 0)
			return sctx->fault->code;
	}
	if (sctx->cur_inode_last_extent >= sctx->cur_inode_size)
		return BM_OK;
	/* not where it was a hole before */
	if (TOGGLE(sctx, SEND_TRAILING_HOLE))
		ret = range_is_hole_in_parent(sctx, sctx->cur_inode_last_extent,
					      sctx->cur_inode_size);
	if (ret)
		return ret < 0 ? ret : BM_OK;
	because_inode(sctx, BM_SEND_HOLE_AT_END);
	return send_hole(sctx, sctx->cur_inode_size);
}
