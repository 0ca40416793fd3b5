// SPDX-License-Identifier: GPL-2.0-only
/*
 * The reads of a full send without the send, for snapshots where that can be told.
 *
 * Whatever a full send looks up aside from its walk over the tree lies, in a plain snapshot, in
 * leaves that the walk has been to: parents have lower numbers than what is in them, data is inline.
 * But for two things, which are looked up here too: the entries of a new directory and the target of
 * a symlink. So the walk reads the same blocks in the same order. What is not plain ends it.
 */
#include "image/pool.h"
#include "send/send.h"

#include <stdlib.h>

/* Sends with longer paths, targets of links or xattrs might fail. */
enum { MAX_PATH = PATH_LIMIT / 2, MAX_NAME = 255, MAX_XATTR = 16384 };

struct plain_dir {
	uint64_t ino;
	uint32_t path_size;
};

struct plain_walk {
	uint64_t ino;
	uint32_t mode;
	bool has_name;
	bool has_data;
	uint32_t path_size;
	struct plain_dir *dirs; /* ascending */
	size_t dir_count;
	size_t dir_capacity;
};

static const struct plain_dir *find_dir(const struct plain_walk *walk, uint64_t ino)
{
	size_t low = 0, high = walk->dir_count;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (walk->dirs[middle].ino < ino)
			low = middle + 1;
		else
			high = middle;
	}
	return low < walk->dir_count && walk->dirs[low].ino == ino ? &walk->dirs[low] : NULL;
}

static bool keep_dir(struct plain_walk *walk)
{
	struct plain_dir *dirs =
	    grown(walk->dirs, walk->dir_count, &walk->dir_capacity, 64, sizeof(*dirs));

	if (!dirs)
		return false;
	walk->dirs = dirs;
	walk->dirs[walk->dir_count++] = (struct plain_dir){walk->ino, walk->path_size};
	return true;
}

/* Whether the inode, which is complete, has had its name. */
static bool end_inode(const struct plain_walk *walk)
{
	return !walk->ino || walk->has_name || walk->ino == BTRFS_FIRST_FREE_OBJECTID;
}

/* send_create_inode_if_needed(): what is looked up to create an inode. */
static bool plain_create(struct send_ctx *sctx, const struct plain_walk *walk)
{
	struct bm_key key = {.objectid = walk->ino, .type = BTRFS_EXTENT_DATA_KEY};
	struct bm_path path = alloc_path_for_send(sctx);

	switch (walk->mode & MODE_FMT) {
	case MODE_DIR:
		sctx->send_progress = walk->ino;
		return did_create_dir(sctx, walk->ino) == 0;
	case MODE_LNK:
		return bm_search_slot(&sctx->root, &key, &path, sctx->fault) == 0;
	case MODE_REG:
	case MODE_CHR:
	case MODE_BLK:
	case MODE_FIFO:
	case MODE_SOCK:
		return true;
	}
	return false;
}

static bool plain_inode(struct send_ctx *sctx, struct plain_walk *walk,
			const struct btrfs_item *item, const struct btrfs_inode_item *inode)
{
	if (!end_inode(walk) || item->key.offset || item->size != sizeof(*inode) || !inode->nlink)
		return false;
	*walk = (struct plain_walk){.ino = item->key.objectid,
				    .mode = inode->mode,
				    .dirs = walk->dirs,
				    .dir_count = walk->dir_count,
				    .dir_capacity = walk->dir_capacity};
	if (walk->ino == BTRFS_FIRST_FREE_OBJECTID)
		return is_type(walk->mode, MODE_DIR) && keep_dir(walk);
	return plain_create(sctx, walk);
}

static bool plain_ref(struct plain_walk *walk, const struct btrfs_item *item,
		      const struct btrfs_inode_ref *ref)
{
	const struct plain_dir *parent;

	if (item->size < sizeof(*ref) || item->size != sizeof(*ref) + ref->name_len)
		return false;
	if (walk->ino == BTRFS_FIRST_FREE_OBJECTID)
		return item->key.offset == walk->ino;
	parent = find_dir(walk, item->key.offset);
	if (!parent || walk->has_name || !ref->name_len)
		return false;
	walk->has_name = true;
	walk->path_size = parent->path_size + ref->name_len + 1;
	return walk->path_size <= MAX_PATH && (!is_type(walk->mode, MODE_DIR) || keep_dir(walk));
}

static bool plain_xattr(const struct plain_walk *walk, const struct btrfs_item *item,
			const struct btrfs_dir_item *xattr)
{
	return (walk->has_name || walk->ino == BTRFS_FIRST_FREE_OBJECTID) &&
	       item->size >= sizeof(*xattr) && xattr->name_len <= MAX_NAME &&
	       xattr->data_len <= MAX_XATTR &&
	       item->size == sizeof(*xattr) + xattr->name_len + xattr->data_len;
}

static bool plain_extent(struct plain_walk *walk, const struct btrfs_item *item,
			 const struct btrfs_file_extent_item *extent)
{
	size_t head = offsetof(struct btrfs_file_extent_item, disk_bytenr);

	if (walk->has_data || item->key.offset || item->size <= head ||
	    extent->type != BTRFS_FILE_EXTENT_INLINE || extent->compression ||
	    extent->ram_bytes != item->size - head)
		return false;
	walk->has_data = true;
	if (is_type(walk->mode, MODE_LNK))
		return walk->has_name && extent->ram_bytes <= MAX_PATH;
	return walk->has_name && is_type(walk->mode, MODE_REG);
}

static bool plain_item(struct send_ctx *sctx, struct plain_walk *walk, const uint8_t *leaf,
		       uint32_t slot)
{
	const struct btrfs_item *item = leaf_item(leaf, slot);
	const void *data = item_data(leaf, slot);

	if (item->key.type == BTRFS_INODE_ITEM_KEY)
		return plain_inode(sctx, walk, item, data);
	if (item->key.objectid != walk->ino)
		return false;
	switch (item->key.type) {
	case BTRFS_INODE_REF_KEY:
		return plain_ref(walk, item, data);
	case BTRFS_XATTR_ITEM_KEY:
		return plain_xattr(walk, item, data);
	case BTRFS_DIR_ITEM_KEY:
	case BTRFS_DIR_INDEX_KEY:
		return is_type(walk->mode, MODE_DIR);
	case BTRFS_EXTENT_DATA_KEY:
		return plain_extent(walk, item, data);
	}
	return false;
}

static int walk_leaves(struct send_ctx *sctx, struct plain_walk *walk)
{
	struct bm_path path = full_send_path(sctx);
	struct bm_key first = {.objectid = BTRFS_FIRST_FREE_OBJECTID, .type = BTRFS_INODE_ITEM_KEY};
	int ret = bm_search_slot_for_read(&sctx->root, &first, 1, &path, sctx->fault);

	while (!ret) {
		uint32_t nritems = block_header(path.node[0])->nritems;

		for (uint32_t slot = path.slot[0]; slot < nritems; slot++)
			if (!plain_item(sctx, walk, path.node[0], slot))
				return 0;
		ret = bm_next_leaf(&sctx->root, &path, sctx->fault);
	}
	return ret > 0 && end_inode(walk);
}

int send_plain_reads(struct send_ctx *sctx)
{
	struct plain_walk walk = {0};
	int ret = walk_leaves(sctx, &walk);

	free(walk.dirs);
	return ret;
}
