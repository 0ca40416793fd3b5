// SPDX-License-Identifier: GPL-2.0-only
/*
 * Names: recorded while the items of an inode go by, made when they are complete.
 *
 * The first name is a rename from the orphan name, the others are links. A parent directory that
 * the receiver does not have yet, because its number is higher, is created first.
 */
#include "send.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int send_two_paths(struct send_ctx *ctx, int cmd, const struct fs_path *path, int attribute,
			  const struct fs_path *other)
{
	if (begin_cmd(ctx, cmd) < 0 || tlv_put_path(ctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put_path(ctx, attribute, other) < 0)
		return ctx->fault->code;
	return send_cmd(ctx);
}

static int record_new_ref(struct send_ctx *ctx, uint64_t dir, const char *name, size_t size)
{
	struct recorded_ref *refs;
	struct fs_path path;
	uint64_t gen;
	char *copy;

	if (get_inode_gen(ctx, &ctx->root, dir, &gen) < 0)
		return ctx->fault->code;
	if (ctx->new_ref_count == ctx->new_ref_capacity) {
		size_t capacity = ctx->new_ref_capacity ? 2 * ctx->new_ref_capacity : 4;

		refs = realloc(ctx->new_refs, capacity * sizeof(*refs));
		if (!refs)
			return bm_fail(ctx->fault, (struct bm_fault){.code = BM_NOMEM});
		ctx->new_refs = refs;
		ctx->new_ref_capacity = capacity;
	}
	if (get_cur_path(ctx, dir, gen, &path) < 0 || fs_path_add(ctx, &path, name, size) < 0)
		return ctx->fault->code;
	/* an inode can have many names, so each takes no more than its length */
	copy = malloc(path.size + 1);
	if (!copy)
		return bm_fail(ctx->fault, (struct bm_fault){.code = BM_NOMEM});
	memcpy(copy, path.text, path.size);
	ctx->new_refs[ctx->new_ref_count++] =
	    (struct recorded_ref){.dir = dir, .dir_gen = gen, .path_size = path.size, .path = copy};
	return BM_OK;
}

void free_recorded_refs(struct send_ctx *ctx)
{
	while (ctx->new_ref_count)
		free(ctx->new_refs[--ctx->new_ref_count].path);
}

/* Record every name of an INODE_REF or INODE_EXTREF item (iterate_inode_ref()). */
int changed_ref(struct send_ctx *ctx)
{
	const uint8_t *data = item_data(ctx->leaf, ctx->slot);
	size_t size = leaf_item(ctx->leaf, ctx->slot)->size, at = 0, name_size, head;

	if (ctx->cur_ino == BTRFS_FIRST_FREE_OBJECTID)
		return BM_OK;
	while (at < size) {
		uint64_t dir = ctx->key.offset;

		head = ctx->key.type == BTRFS_INODE_REF_KEY ? sizeof(struct btrfs_inode_ref)
							    : sizeof(struct btrfs_inode_extref);
		if (size - at < head)
			return send_bad_item(ctx, BM_BAD_ITEM_SIZE, ctx->leaf, ctx->slot, size,
					     at + head);
		if (ctx->key.type == BTRFS_INODE_REF_KEY) {
			name_size = ((const struct btrfs_inode_ref *)(data + at))->name_len;
		} else {
			const struct btrfs_inode_extref *ref = (const void *)(data + at);

			name_size = ref->name_len;
			dir = ref->parent_objectid;
		}
		if (size - at - head < name_size)
			return send_bad_item(ctx, BM_BAD_ITEM_SIZE, ctx->leaf, ctx->slot, size,
					     at + head + name_size);
		if (record_new_ref(ctx, dir, (const char *)data + at + head, name_size) < 0)
			return ctx->fault->code;
		at += head + name_size;
	}
	return BM_OK;
}

static bool earlier_ref_has_dir(const struct send_ctx *ctx, size_t index)
{
	for (size_t i = 0; i < index; i++)
		if (ctx->new_refs[i].dir == ctx->new_refs[index].dir)
			return true;
	return false;
}

/* A parent directory with a higher number is created before its turn. */
static int create_parent_if_needed(struct send_ctx *ctx, size_t index)
{
	const struct recorded_ref *ref = &ctx->new_refs[index];
	int ret = get_cur_inode_state(ctx, ref->dir, ref->dir_gen);

	if (ret != INODE_WILL_CREATE)
		return ret < 0 ? ret : BM_OK;
	if (earlier_ref_has_dir(ctx, index))
		return BM_OK;
	ret = did_create_dir(ctx, ref->dir);
	if (ret)
		return ret < 0 ? ret : BM_OK;
	ret = send_create_inode(ctx, ref->dir);
	return ret < 0 ? ret : cache_dir_created(ctx, ref->dir);
}

/* The times of the directories in which the inode got its names. */
static int update_check_dirs(struct send_ctx *ctx)
{
	for (size_t i = 0; i < ctx->new_ref_count; i++) {
		const struct recorded_ref *ref = &ctx->new_refs[i];
		int ret;

		if (TOGGLE(ctx, SEND_CHECK_DIRS_UNIQUE) && earlier_ref_has_dir(ctx, i))
			continue;
		/* a directory with a higher number has its own turn */
		if (ref->dir > ctx->cur_ino)
			continue;
		ret = get_cur_inode_state(ctx, ref->dir, ref->dir_gen);
		if (ret == INODE_DID_CREATE)
			ret = cache_dir_utimes(ctx, ref->dir, ref->dir_gen);
		if (ret < 0)
			return ret;
	}
	return BM_OK;
}

int process_recorded_refs(struct send_ctx *ctx)
{
	struct fs_path valid_path, full_path;
	bool is_orphan = true;
	int ret;

	COUNT(ctx->image, process_recorded_refs);
	if (ctx->cur_ino <= BTRFS_FIRST_FREE_OBJECTID)
		return send_errno(ctx, EINVAL);
	valid_path.size = 0;
	ret = gen_unique_name(ctx, ctx->cur_ino, ctx->cur_inode_gen, &valid_path);
	if (ret < 0)
		return ret;
	/* a first pass would move away what has the name in the parent snapshot */
	for (size_t i = 0; i < ctx->new_ref_count; i++) {
		ret = get_cur_inode_state(ctx, ctx->new_refs[i].dir, ctx->new_refs[i].dir_gen);
		if (ret < 0)
			return ret;
		if (ret != INODE_WILL_CREATE)
			COUNT(ctx->image, will_overwrite_ref);
	}
	for (size_t i = 0; i < ctx->new_ref_count; i++) {
		full_path.size = ctx->new_refs[i].path_size;
		memcpy(full_path.text, ctx->new_refs[i].path, full_path.size);
		ret = create_parent_if_needed(ctx, i);
		if (ret < 0)
			return ret;
		if (is_orphan || is_type(ctx->cur_inode_mode, MODE_DIR)) {
			ret = send_two_paths(ctx, BTRFS_SEND_C_RENAME, &valid_path,
					     BTRFS_SEND_A_PATH_TO, &full_path);
			fs_path_copy(&valid_path, &full_path);
			/* rename_current_inode() */
			if (TOGGLE(ctx, SEND_CUR_INODE_PATH))
				fs_path_copy(&ctx->cur_inode_path, &full_path);
			is_orphan = false;
		} else {
			ret = send_two_paths(ctx, BTRFS_SEND_C_LINK, &full_path,
					     BTRFS_SEND_A_PATH_LINK, &valid_path);
		}
		if (ret < 0)
			return ret;
	}
	ret = update_check_dirs(ctx);
	free_recorded_refs(ctx);
	return ret;
}
