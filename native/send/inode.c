// SPDX-License-Identifier: GPL-2.0-only
/*
 * Inodes as send makes them: created under their orphan names, directories before their turn where
 * a name needs one, times at the end.
 *
 * The times of a directory change with each name that is made in it, so kernels since v6.3 put
 * UTIMES of directories off (send-utimes-cache).
 */
#include "send/send.h"

#include <errno.h>
#include <stdlib.h>

static int tlv_put_timespec(struct send_ctx *sctx, int attribute, const struct btrfs_timespec *time)
{
	return tlv_put(sctx, attribute, time, sizeof(*time));
}

int send_utimes(struct send_ctx *sctx, uint64_t ino, uint64_t gen)
{
	const struct btrfs_inode_item *item;
	const struct fs_path *path;
	const uint8_t *found;
	struct fs_path other;
	int ret;

	COUNT(sctx->image, send_utimes);
	if (ino == sctx->cur_ino && gen == sctx->cur_inode_gen) {
		ret = get_cur_inode_path(sctx, &path);
	} else {
		path = &other;
		ret = get_cur_path(sctx, ino, gen, &other);
	}
	if (ret < 0)
		return ret;
	ret = find_inode_item(sctx, &sctx->root, ino, &found);
	if (ret)
		return ret < 0 ? ret : send_errno(sctx, ENOENT);
	item = (const void *)found;
	if (begin_cmd(sctx, BTRFS_SEND_C_UTIMES) < 0 ||
	    tlv_put_path(sctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put_timespec(sctx, BTRFS_SEND_A_ATIME, &item->atime) < 0 ||
	    tlv_put_timespec(sctx, BTRFS_SEND_A_MTIME, &item->mtime) < 0 ||
	    tlv_put_timespec(sctx, BTRFS_SEND_A_CTIME, &item->ctime) < 0 ||
	    (sctx->args->proto >= 2 &&
	     tlv_put_timespec(sctx, BTRFS_SEND_A_OTIME, &item->otime) < 0))
		return sctx->fault->code;
	return send_cmd(sctx);
}

/* ----------------------------------------------------------------------------- directories -- */

/* A directory whose UTIMES was put off, and why it is to be sent. */
struct utimes_entry {
	struct lru_entry lru;
	struct bm_send_why why;
};

/* UTIMES of a directory: put off until it is not likely to change any more, or at once. */
int cache_dir_utimes(struct send_ctx *sctx, uint64_t dir, uint64_t gen)
{
	struct utimes_entry *entry;

	if (!TOGGLE(sctx, SEND_UTIMES_CACHE))
		return send_utimes(sctx, dir, gen);
	COUNT(sctx->image, cache_dir_utimes);
	COUNT(sctx->image, btrfs_lru_cache_lookup);
	if (lru_lookup(&sctx->dir_utimes_cache, dir, gen))
		return BM_OK;
	entry = malloc(sizeof(*entry));
	if (entry)
		entry->why = sctx->why;
	return lru_add(sctx, &sctx->dir_utimes_cache, (struct lru_entry *)entry, dir, gen);
}

static int send_put_off_utimes(struct send_ctx *sctx, const struct lru_entry *entry)
{
	sctx->why = ((const struct utimes_entry *)entry)->why;
	return send_utimes(sctx, entry->key, entry->generation);
}

int trim_dir_utimes_cache(struct send_ctx *sctx)
{
	while (sctx->dir_utimes_cache.size > sctx->args->limits.dir_utimes_cache) {
		struct lru_entry *oldest = sctx->dir_utimes_cache.oldest;

		if (send_put_off_utimes(sctx, oldest) < 0)
			return sctx->fault->code;
		lru_remove(&sctx->dir_utimes_cache, oldest);
	}
	return BM_OK;
}

/* The directories whose times are still to be sent, the most recently used first. */
int flush_dir_utimes(struct send_ctx *sctx)
{
	for (struct lru_entry *entry = sctx->dir_utimes_cache.newest; entry; entry = entry->older)
		if (send_put_off_utimes(sctx, entry) < 0)
			return sctx->fault->code;
	return BM_OK;
}

/* --------------------------------------------------------------------------------- inodes -- */

static uint64_t new_encode_dev(uint64_t dev)
{
	uint64_t major = dev >> 20 & 0xfff, minor = dev & 0xfffff;

	return (minor & 0xff) | major << 8 | (minor & ~(uint64_t)0xff) << 12;
}

static int read_symlink(struct send_ctx *sctx, uint64_t ino, struct fs_path *target)
{
	struct bm_key key = {.objectid = ino, .type = BTRFS_EXTENT_DATA_KEY};
	struct bm_path path = alloc_path_for_send(sctx);
	struct file_extent extent;
	int ret;

	ret = bm_search_slot(&sctx->root, &key, &path, sctx->fault);
	if (ret)
		return ret < 0 ? ret : send_errno(sctx, EIO);
	ret = parse_file_extent(sctx, path.node[0], path.slot[0], &extent);
	if (ret < 0)
		return ret;
	if (!extent.inline_data || extent.compression)
		return send_errno(sctx, EUCLEAN);
	if (extent.ram_bytes > extent.inline_size)
		return send_bad_item(sctx, BM_BAD_ITEM_SIZE, path.node[0], path.slot[0],
				     extent.inline_size, extent.ram_bytes);
	target->size = 0;
	return fs_path_add(sctx, target, (const char *)extent.inline_data, extent.ram_bytes);
}

static int create_command(uint32_t mode)
{
	switch (mode & MODE_FMT) {
	case MODE_REG:
		return BTRFS_SEND_C_MKFILE;
	case MODE_DIR:
		return BTRFS_SEND_C_MKDIR;
	case MODE_LNK:
		return BTRFS_SEND_C_SYMLINK;
	case MODE_CHR:
	case MODE_BLK:
		return BTRFS_SEND_C_MKNOD;
	case MODE_FIFO:
		return BTRFS_SEND_C_MKFIFO;
	case MODE_SOCK:
		return BTRFS_SEND_C_MKSOCK;
	default:
		return 0;
	}
}

int send_create_inode(struct send_ctx *sctx, uint64_t ino)
{
	struct inode_info info = {.generation = sctx->cur_inode_gen,
				  .mode = sctx->cur_inode_mode,
				  .rdev = sctx->cur_inode_rdev};
	struct fs_path path;
	int cmd;

	COUNT(sctx->image, send_create_inode);
	if (ino != sctx->cur_ino && get_inode_info(sctx, &sctx->root, ino, &info) < 0)
		return sctx->fault->code;
	cmd = create_command(info.mode);
	if (!cmd)
		return send_errno(sctx, EOPNOTSUPP);
	path.size = 0;
	if (begin_cmd(sctx, cmd) < 0 || gen_unique_name(sctx, ino, info.generation, &path) < 0 ||
	    tlv_put_path(sctx, BTRFS_SEND_A_PATH, &path) < 0 ||
	    tlv_put_u64(sctx, BTRFS_SEND_A_INO, ino) < 0)
		return sctx->fault->code;
	if (cmd == BTRFS_SEND_C_SYMLINK) {
		if (read_symlink(sctx, ino, &path) < 0 ||
		    tlv_put_path(sctx, BTRFS_SEND_A_PATH_LINK, &path) < 0)
			return sctx->fault->code;
	} else if (cmd != BTRFS_SEND_C_MKFILE && cmd != BTRFS_SEND_C_MKDIR) {
		if (tlv_put_u64(sctx, BTRFS_SEND_A_RDEV, new_encode_dev(info.rdev)) < 0 ||
		    tlv_put_u64(sctx, BTRFS_SEND_A_MODE, info.mode) < 0)
			return sctx->fault->code;
	}
	return send_cmd(sctx);
}

int send_create_inode_if_needed(struct send_ctx *sctx)
{
	bool is_dir = is_type(sctx->cur_inode_mode, MODE_DIR);
	int ret;

	if (is_dir) {
		ret = did_create_dir(sctx, sctx->cur_ino);
		if (ret)
			return ret < 0 ? ret : BM_OK;
	}
	ret = send_create_inode(sctx, sctx->cur_ino);
	if (!ret && is_dir)
		ret = cache_dir_created(sctx, sctx->cur_ino);
	return ret;
}
