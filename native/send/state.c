// SPDX-License-Identifier: GPL-2.0-only
/*
 * In which state an inode is at this moment of the stream, and whether a name is, or was, taken by
 * another one.
 *
 * What the receiver has follows from two things: in which of the two snapshots the inode is (by
 * number and generation, because numbers are used again in some), and whether its number is below
 * send_progress.
 */
#include "send/send.h"

#include <errno.h>

/* The generation of an inode in one root; with links only, where such inodes count as absent. */
static int find_generation(struct send_ctx *ctx, const struct bm_root *root, uint64_t ino,
			   bool *exists, uint64_t *gen)
{
	struct inode_info info;
	int ret = get_inode_info(ctx, root, ino, &info);

	if (ret < 0)
		return ret;
	*exists = !ret && (info.nlink || !TOGGLE(ctx, SEND_NLINK_ZERO));
	*gen = *exists ? info.generation : 0;
	return BM_OK;
}

static int inode_state(struct send_ctx *ctx, uint64_t ino, uint64_t gen,
		       struct inode_generations *found)
{
	bool processed = ino < ctx->send_progress;

	*found = (struct inode_generations){0};
	COUNT(ctx->image, get_cur_inode_state);
	if (find_generation(ctx, &ctx->root, ino, &found->in_send, &found->send) < 0)
		return ctx->fault->code;
	if (has_parent(ctx) &&
	    find_generation(ctx, &ctx->parent, ino, &found->in_parent, &found->parent) < 0)
		return ctx->fault->code;
	if (found->in_send && found->in_parent && found->send == gen && found->parent == gen)
		return INODE_NO_CHANGE;
	if (found->in_send && found->send == gen)
		return processed ? INODE_DID_CREATE : INODE_WILL_CREATE;
	if (found->in_parent && found->parent == gen)
		return processed ? INODE_DID_DELETE : INODE_WILL_DELETE;
	return send_errno(ctx, ENOENT);
}

int get_cur_inode_state(struct send_ctx *ctx, uint64_t ino, uint64_t gen)
{
	struct inode_generations found;

	return inode_state(ctx, ino, gen, &found);
}

int is_inode_existent(struct send_ctx *ctx, uint64_t ino, uint64_t gen,
		      struct inode_generations *found)
{
	int ret;

	COUNT(ctx->image, is_inode_existent);
	if (ino == BTRFS_FIRST_FREE_OBJECTID)
		return 1;
	ret = inode_state(ctx, ino, gen, found);
	if (ret < 0)
		return ret;
	return ret == INODE_NO_CHANGE || ret == INODE_DID_CREATE || ret == INODE_WILL_DELETE;
}

/*
 * Whether a directory is, in one root, the one that is meant. Without SEND_OVERWRITE_GEN_ONCE its
 * generation is searched once more.
 */
static int is_same_dir(struct send_ctx *ctx, const struct bm_root *root, const struct dir_ref *in,
		       uint64_t gen)
{
	struct inode_info info;
	int ret;

	if (in->dir == BTRFS_FIRST_FREE_OBJECTID)
		return 1;
	if (TOGGLE(ctx, SEND_OVERWRITE_GEN_ONCE))
		return gen == in->dir_gen;
	COUNT(ctx->image, get_inode_gen);
	ret = get_inode_info(ctx, root, in->dir, &info);
	if (ret)
		return ret < 0 ? ret : 0;
	return info.generation == in->dir_gen;
}

/* The inode that an entry of a directory leads to; 1: there is no such entry, or a subvolume. */
static int lookup_dir_item_inode(struct send_ctx *ctx, const struct bm_root *root, uint64_t dir,
				 const char *name, size_t size, uint64_t *ino)
{
	struct bm_key key = {.objectid = dir,
			     .type = BTRFS_DIR_ITEM_KEY,
			     .offset = bm_crc32c(0xfffffffe, name, size)};
	const struct btrfs_dir_item *entry;
	int ret;

	COUNT(ctx->image, btrfs_lookup_dir_item);
	ret = lookup_name(ctx, root, &key, name, size, &entry);
	if (ret < 0)
		return ret;
	if (!entry || entry->location.type == BTRFS_ROOT_ITEM_KEY)
		return 1;
	*ino = entry->location.objectid;
	return BM_OK;
}

int will_overwrite_ref(struct send_ctx *ctx, const struct dir_ref *in, const char *name,
		       size_t size, struct overwritten *who)
{
	struct inode_generations found = {0};
	struct inode_info info;
	uint64_t other;
	int ret;

	COUNT(ctx->image, will_overwrite_ref);
	if (!has_parent(ctx))
		return 0;
	ret = is_inode_existent(ctx, in->dir, in->dir_gen, &found);
	if (ret <= 0)
		return ret;
	ret = is_same_dir(ctx, &ctx->parent, in, found.parent);
	if (ret <= 0)
		return ret;
	ret = lookup_dir_item_inode(ctx, &ctx->parent, in->dir, name, size, &other);
	if (ret)
		return ret < 0 ? ret : 0;
	/* what was processed before has left the name already */
	if (other <= ctx->send_progress && !get_waiting_dir_move(ctx, other))
		return 0;
	ret = get_inode_info(ctx, &ctx->parent, other, &info);
	if (ret)
		return ret < 0 ? ret : send_errno(ctx, ENOENT);
	*who = (struct overwritten){.ino = other, .gen = info.generation, .mode = info.mode};
	return 1;
}

int did_overwrite_ref(struct send_ctx *ctx, const struct dir_ref *in, uint64_t ino, uint64_t gen,
		      const char *name, size_t size)
{
	bool late = TOGGLE(ctx, SEND_OVERWRITE_GEN_LATE);
	struct inode_generations found = {0};
	uint64_t other, other_gen = 0;
	int ret;

	COUNT(ctx->image, did_overwrite_ref);
	if (!has_parent(ctx))
		return 0;
	ret = is_inode_existent(ctx, in->dir, in->dir_gen, &found);
	if (ret <= 0)
		return ret;
	ret = is_same_dir(ctx, &ctx->root, in, found.send);
	if (ret <= 0)
		return ret;
	ret = lookup_dir_item_inode(ctx, &ctx->root, in->dir, name, size, &other);
	if (ret)
		return ret < 0 ? ret : 0;
	/* the generation only where it decides */
	if (!late || other == ino) {
		if (get_inode_gen(ctx, &ctx->root, other, &other_gen) < 0)
			return ctx->fault->code;
		if (other == ino && other_gen == gen)
			return 0;
	}
	if (other < ctx->send_progress)
		return 1;
	/* the current inode may be the one that took the name */
	if (ino == ctx->cur_ino || other != ctx->cur_ino)
		return 0;
	if (!other_gen && get_inode_gen(ctx, &ctx->root, other, &other_gen) < 0)
		return ctx->fault->code;
	return other_gen == ctx->cur_inode_gen;
}

int did_overwrite_first_ref(struct send_ctx *ctx, uint64_t ino, uint64_t gen)
{
	struct fs_path name;
	struct dir_ref in;
	int ret;

	if (!has_parent(ctx))
		return 0;
	name.size = 0;
	ret = get_first_ref(ctx, &ctx->parent, ino, &in.dir, &in.dir_gen, &name);
	if (ret)
		return ret < 0 ? ret : send_errno(ctx, ENOENT);
	return did_overwrite_ref(ctx, &in, ino, gen, name.text, name.size);
}
