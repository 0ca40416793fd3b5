// SPDX-License-Identifier: GPL-2.0-only
/*
 * BTRFS_IOC_SEND of the kernel's send.c.
 *
 * Without a parent snapshot the tree of the snapshot is walked item by item in key order, and every
 * item is new; with one, the trees of both are compared, and only what differs is met. All items of
 * an inode stand together, so the walk meets, inode by inode:
 *
 *   INODE_ITEM         create it under its orphan name
 *   INODE_REF, EXTREF  record its names; they are made when the first other item comes
 *   XATTR_ITEM         SET_XATTR
 *   EXTENT_DATA        WRITE or CLONE
 *   the next inode     finish it: size, owner, mode, capabilities, times
 */
#include "send/send.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* objectids that are not inodes: the v1 free space and inode caches */
static const uint64_t free_space_objectid = 0 - (uint64_t)11;
static const uint64_t free_ino_objectid = 0 - (uint64_t)12;

/* ------------------------------------------------------------------------------- an inode -- */

static const struct btrfs_inode_item *inode_item(struct send_ctx *ctx, const uint8_t *leaf,
						 uint32_t slot)
{
	uint32_t size = leaf_item(leaf, slot)->size;

	if (size >= sizeof(struct btrfs_inode_item))
		return (const void *)item_data(leaf, slot);
	send_bad_item(ctx, BM_BAD_ITEM_SIZE, leaf, slot, size, sizeof(struct btrfs_inode_item));
	return NULL;
}

/* Take the inode for the current one: as new, as deleted, or (neither) as changed. */
static void set_cur_inode(struct send_ctx *ctx, const struct btrfs_inode_item *item, bool is_new,
			  bool is_deleted)
{
	ctx->cur_inode_gen = item->generation;
	ctx->cur_inode_size = item->size;
	ctx->cur_inode_mode = item->mode;
	ctx->cur_inode_flags = item->flags;
	ctx->cur_inode_new = is_new;
	ctx->cur_inode_deleted = is_deleted;
	if (is_new)
		ctx->cur_inode_rdev = item->rdev;
}

/* The number was used again, or its links went or came: the old inode goes, the new one comes. */
static int replace_inode(struct send_ctx *ctx, const struct btrfs_inode_item *left,
			 const struct btrfs_inode_item *right)
{
	ctx->cur_inode_new_gen = true;
	if (right->nlink || !TOGGLE(ctx, SEND_NLINK_ZERO)) {
		set_cur_inode(ctx, right, false, true);
		if (process_all_refs(ctx, BM_CHANGE_DELETED) < 0)
			return ctx->fault->code;
	}
	if (!left->nlink)
		return BM_OK;
	set_cur_inode(ctx, left, true, false);
	because_inode(ctx, BM_SEND_INODE_REPLACED);
	if (send_create_inode_if_needed(ctx) < 0 || process_all_refs(ctx, BM_CHANGE_NEW) < 0)
		return ctx->fault->code;
	ctx->send_progress = ctx->cur_ino + 1;
	if (process_all_extents(ctx) < 0)
		return ctx->fault->code;
	return process_all_new_xattrs(ctx);
}

static int changed_in_both(struct send_ctx *ctx, const struct btrfs_inode_item *left,
			   const struct btrfs_inode_item *right)
{
	bool other_inode =
	    left->generation != right->generation && ctx->cur_ino != BTRFS_FIRST_FREE_OBJECTID;

	if (!TOGGLE(ctx, SEND_NLINK_ZERO)) {
		if (!left->nlink) {
			ctx->ignore_cur_inode = true;
			return btrfs_unlink_all_paths(ctx);
		}
	} else if (!left->nlink && !right->nlink) {
		ctx->ignore_cur_inode = true;
		return BM_OK;
	} else if (!left->nlink || !right->nlink) {
		other_inode = true;
	}
	if (other_inode)
		return replace_inode(ctx, left, right);
	set_cur_inode(ctx, left, false, false);
	return BM_OK;
}

static int changed_inode(struct send_ctx *ctx)
{
	const struct btrfs_inode_item *left = NULL, *right = NULL;

	if (ctx->result != BM_CHANGE_DELETED && !(left = inode_item(ctx, ctx->leaf, ctx->slot)))
		return ctx->fault->code;
	if (ctx->result != BM_CHANGE_NEW &&
	    !(right = inode_item(ctx, ctx->right_leaf, ctx->right_slot)))
		return ctx->fault->code;
	ctx->cur_ino = ctx->key.objectid;
	ctx->inode_change = ctx->result;
	ctx->cur_inode_new_gen = false;
	ctx->cur_inode_last_extent = UINT64_MAX;
	ctx->cur_inode_next_write_offset = 0;
	ctx->cur_inode_path.size = 0;
	ctx->cur_inode_open = false;
	ctx->cur_inode_needs_verity = false;
	ctx->ignore_cur_inode = false;
	ctx->send_progress = ctx->cur_ino;
	if (left && right)
		return changed_in_both(ctx, left, right);
	if (right) {
		set_cur_inode(ctx, right, false, true);
		return BM_OK;
	}
	/* unlinked but open when the snapshot was taken */
	ctx->ignore_cur_inode = !left->nlink;
	if (ctx->ignore_cur_inode)
		return BM_OK;
	set_cur_inode(ctx, left, true, false);
	if (ctx->cur_ino == BTRFS_FIRST_FREE_OBJECTID)
		return BM_OK;
	because_inode(ctx, BM_SEND_INODE_NEW);
	return send_create_inode_if_needed(ctx);
}

/* Size, owner, mode and flags of the current inode, where the receiver has others. */
static int finish_attributes(struct send_ctx *ctx)
{
	bool is_link = is_type(ctx->cur_inode_mode, MODE_LNK);
	bool has_its_size = ctx->cur_inode_next_write_offset == ctx->cur_inode_size;
	bool is_new = !has_parent(ctx) || ctx->cur_inode_new;
	bool need_truncate = !has_its_size, need_chown = true, need_chmod = true;
	bool need_fileattr = false;
	struct inode_info info, old;

	if (get_inode_info(ctx, &ctx->root, ctx->cur_ino, &info) < 0)
		return ctx->fault->code;
	if (!is_new) {
		if (get_inode_info(ctx, &ctx->parent, ctx->cur_ino, &old) < 0)
			return ctx->fault->code;
		need_chown = info.uid != old.uid || info.gid != old.gid;
		need_chmod = info.mode != old.mode;
		need_fileattr = info.flags != old.flags;
		need_truncate = old.size != ctx->cur_inode_size &&
				(ctx->cur_inode_size < old.size || !has_its_size);
	}
	if (is_type(ctx->cur_inode_mode, MODE_REG)) {
		if (send_trailing_hole(ctx) < 0)
			return ctx->fault->code;
		because_inode(ctx, need_truncate ? BM_SEND_TRUNCATE_SIZE : BM_SEND_TRUNCATE_ALWAYS);
		/* without it every regular file is truncated to its size */
		if ((need_truncate || !TOGGLE(ctx, SEND_SKIP_TRUNCATE)) &&
		    send_truncate(ctx, ctx->cur_inode_size) < 0)
			return ctx->fault->code;
	}
	because_inode(ctx, is_new ? BM_SEND_OWNER_NEW : BM_SEND_OWNER_CHANGED);
	if (need_chown && send_chown(ctx, info.uid, info.gid) < 0)
		return ctx->fault->code;
	because_of_rule(ctx, is_new ? BM_SEND_MODE_NEW : BM_SEND_MODE_CHANGED);
	if (need_chmod && !is_link && send_chmod(ctx, info.mode) < 0)
		return ctx->fault->code;
	because_of_rule(ctx, BM_SEND_FLAGS_CHANGED);
	return need_fileattr && !is_link ? send_fileattr(ctx, info.flags) : BM_OK;
}

/* Everything of the current inode that comes after its items: attributes, times. */
static int finish_inode(struct send_ctx *ctx)
{
	if (finish_attributes(ctx) < 0)
		return ctx->fault->code;
	if (ctx->args->proto >= 3 && ctx->cur_inode_needs_verity && process_verity(ctx) < 0)
		return ctx->fault->code;
	if (send_capabilities(ctx) < 0)
		return ctx->fault->code;
	/* a directory that waits gets its times when it has been moved */
	if (is_waiting_for_move(ctx, ctx->cur_ino))
		return BM_OK;
	if (apply_children_dir_moves(ctx) < 0)
		return ctx->fault->code;
	ctx->send_progress = ctx->cur_ino + 1;
	because_inode(ctx, BM_SEND_TIMES_INODE);
	/* more names may still come into a directory; an empty one is done */
	if (is_type(ctx->cur_inode_mode, MODE_DIR) && ctx->cur_inode_size > 0 &&
	    TOGGLE(ctx, SEND_UTIMES_CACHE))
		return cache_dir_utimes(ctx, ctx->cur_ino, ctx->cur_inode_gen);
	return send_utimes(ctx, ctx->cur_ino, ctx->cur_inode_gen);
}

/* Make the recorded names when they are complete: with the first item that is none. */
static int process_recorded_refs_if_needed(struct send_ctx *ctx, bool at_end)
{
	bool pending_move = false;

	if (!at_end && ctx->key.objectid == ctx->cur_ino && ctx->key.type <= BTRFS_INODE_EXTREF_KEY)
		return BM_OK;
	if (!ctx->new_refs.count && !ctx->deleted_refs.count)
		return BM_OK;
	if (process_recorded_refs(ctx, &pending_move) < 0)
		return ctx->fault->code;
	/* until it is moved, a directory that waits has its old path */
	if (!pending_move)
		ctx->send_progress = ctx->cur_ino + 1;
	return BM_OK;
}

static int finish_inode_if_needed(struct send_ctx *ctx, bool at_end)
{
	COUNT(ctx->image, finish_inode_if_needed);
	if (ctx->ignore_cur_inode)
		return BM_OK;
	if (ctx->cur_ino) {
		bool next_inode = at_end || ctx->key.objectid != ctx->cur_ino;

		if (process_recorded_refs_if_needed(ctx, at_end) < 0 ||
		    (next_inode && !ctx->cur_inode_deleted && finish_inode(ctx) < 0))
			return ctx->fault->code;
	}
	return trim_dir_utimes_cache(ctx);
}

/* ----------------------------------------------------------------------------------- walk -- */

static bool is_ref(const struct bm_key *key)
{
	return key->type == BTRFS_INODE_REF_KEY || key->type == BTRFS_INODE_EXTREF_KEY;
}

static int changed_extent(struct send_ctx *ctx)
{
	bool skip = ctx->cur_inode_new_gen || ctx->cur_inode_deleted;

	if (ctx->cur_ino != ctx->key.objectid || skip || ctx->result == BM_CHANGE_DELETED)
		return BM_OK;
	return process_extent(ctx);
}

static void changed_verity(struct send_ctx *ctx)
{
	bool skip = ctx->cur_inode_new_gen || ctx->cur_inode_deleted;

	if (!skip && ctx->result == BM_CHANGE_NEW)
		ctx->cur_inode_needs_verity = true;
}

static int changed_cb(struct send_ctx *ctx)
{
	int ret;

	COUNT(ctx->image, changed_cb);
	if (ctx->result == BM_CHANGE_SAME) {
		if (ctx->key.type == BTRFS_EXTENT_DATA_KEY)
			return maybe_send_hole(ctx);
		if (!is_ref(&ctx->key))
			return BM_OK;
		/* the same name in another directory of the same number */
		ret = compare_refs(ctx);
		if (ret <= 0)
			return ret;
		ctx->result = BM_CHANGE_CHANGED;
	}
	ret = finish_inode_if_needed(ctx, false);
	if (ret < 0 || ctx->key.objectid == free_ino_objectid ||
	    ctx->key.objectid == free_space_objectid)
		return ret;
	if (ctx->key.type == BTRFS_INODE_ITEM_KEY)
		return changed_inode(ctx);
	if (ctx->ignore_cur_inode)
		return BM_OK;
	if (is_ref(&ctx->key))
		return changed_ref(ctx);
	if (ctx->key.type == BTRFS_XATTR_ITEM_KEY)
		return changed_xattr(ctx);
	if (ctx->key.type == BTRFS_EXTENT_DATA_KEY)
		return changed_extent(ctx);
	if (ctx->key.type == BTRFS_VERITY_DESC_ITEM_KEY && !ctx->key.offset)
		changed_verity(ctx);
	return BM_OK;
}

static int btrfs_compare_trees(struct send_ctx *ctx)
{
	struct bm_compare *compare = bm_compare_create(&ctx->root, &ctx->parent, ctx->fault);
	struct bm_step step;
	int ret;

	if (!compare)
		return ctx->fault->code;
	if (TOGGLE(ctx, SEND_READA_COMPARE))
		bm_compare_read_ahead(compare);
	while ((ret = bm_compare_step(compare, &step, ctx->fault)) > 0) {
		ctx->key = step.key;
		ctx->result = step.change;
		ctx->leaf = step.left;
		ctx->slot = step.left_slot;
		ctx->right_leaf = step.right;
		ctx->right_slot = step.right_slot;
		ret = changed_cb(ctx);
		if (ret < 0)
			break;
	}
	bm_compare_destroy(compare);
	return ret < 0 ? ret : finish_inode_if_needed(ctx, true);
}

struct bm_path full_send_path(const struct send_ctx *ctx)
{
	struct bm_path path = alloc_path_for_send(ctx);

	if (TOGGLE(ctx, SEND_READA_ALWAYS))
		path.reada = BM_READA_FORWARD_ALWAYS;
	else if (TOGGLE(ctx, SEND_READA))
		path.reada = BM_READA_FORWARD;
	return path;
}

static int full_send_tree(struct send_ctx *ctx)
{
	struct bm_key first = {.objectid = BTRFS_FIRST_FREE_OBJECTID, .type = BTRFS_INODE_ITEM_KEY};
	struct bm_path path = full_send_path(ctx);
	int ret;

	ret = bm_search_slot_for_read(&ctx->root, &first, 1, &path, ctx->fault);
	while (!ret) {
		ctx->leaf = path.node[0];
		ctx->slot = path.slot[0];
		ctx->key = to_key(&leaf_item(ctx->leaf, ctx->slot)->key);
		ctx->result = BM_CHANGE_NEW;
		ret = changed_cb(ctx);
		if (ret < 0)
			return ret;
		COUNT(ctx->image, btrfs_next_old_item);
		if (++path.slot[0] >= block_header(path.node[0])->nritems)
			ret = bm_next_leaf(&ctx->root, &path, ctx->fault);
	}
	return ret < 0 ? ret : finish_inode_if_needed(ctx, true);
}

/* SUBVOL or SNAPSHOT, with the name under which the tree of roots has the subvolume. */
static int send_subvol_begin(struct send_ctx *ctx)
{
	const struct bm_root *roots = bm_forest_root(ctx->args->forest, BTRFS_ROOT_TREE_OBJECTID);
	struct bm_key key = {.objectid = ctx->root.objectid, .type = BTRFS_ROOT_BACKREF_KEY};
	const struct bm_send_root *source = NULL, *parent = ctx->args->parent;
	struct bm_path path = alloc_path_for_send(ctx);
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
	because(ctx, BM_SEND_SUBVOL_BEGIN, BTRFS_FIRST_FREE_OBJECTID, (struct bm_send_item){0});
	if (begin_cmd(ctx, parent ? BTRFS_SEND_C_SNAPSHOT : BTRFS_SEND_C_SUBVOL) < 0 ||
	    tlv_put(ctx, BTRFS_SEND_A_PATH, ref + 1, ref->name_len) < 0 ||
	    tlv_put(ctx, BTRFS_SEND_A_UUID, source->uuid, sizeof(source->uuid)) < 0 ||
	    tlv_put_u64(ctx, BTRFS_SEND_A_CTRANSID, source->ctransid) < 0)
		return ctx->fault->code;
	if (parent &&
	    (tlv_put(ctx, BTRFS_SEND_A_CLONE_UUID, parent->uuid, sizeof(parent->uuid)) < 0 ||
	     tlv_put_u64(ctx, BTRFS_SEND_A_CLONE_CTRANSID, parent->ctransid) < 0))
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

static int send_all(struct send_ctx *ctx)
{
	if (!(ctx->args->flags & BM_SEND_OMIT_STREAM_HEADER) && send_header(ctx) < 0)
		return ctx->fault->code;
	if (send_subvol_begin(ctx) < 0 ||
	    (has_parent(ctx) ? btrfs_compare_trees(ctx) : full_send_tree(ctx)) < 0 ||
	    flush_dir_utimes(ctx) < 0)
		return ctx->fault->code;
	if (ctx->args->flags & BM_SEND_OMIT_END_CMD)
		return BM_OK;
	because(ctx, BM_SEND_STREAM_END, 0, (struct bm_send_item){0});
	return begin_cmd(ctx, BTRFS_SEND_C_END) < 0 ? BM_NOMEM : send_cmd(ctx);
}

int bm_send(const struct bm_send_args *args, struct bm_fault *fault)
{
	struct send_ctx *ctx = calloc(1, sizeof(*ctx));
	struct bm_fault flush_fault;
	int ret;

	if (!ctx)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	ret = send_ctx_init(ctx, args, fault);
	if (!ret)
		ret = send_all(ctx);
	/* a send that fails leaves the commands that it finished before */
	ctx->fault = ret ? &flush_fault : fault;
	if (send_flush(ctx) < 0 && !ret)
		ret = fault->code;
	send_ctx_deinit(ctx);
	free(ctx);
	return ret;
}

int bm_send_reads(const struct bm_send_args *args, struct bm_fault *fault)
{
	struct send_ctx *ctx = calloc(1, sizeof(*ctx));
	int ret;

	if (!ctx)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	ret = send_ctx_init(ctx, args, fault);
	if (!ret)
		ret = send_subvol_begin(ctx);
	if (!ret && !has_parent(ctx))
		ret = send_plain_reads(ctx);
	send_ctx_deinit(ctx);
	free(ctx);
	return ret;
}
