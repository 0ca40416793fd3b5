// SPDX-License-Identifier: GPL-2.0-only
/*
 * Extended attributes, capabilities, and the descriptors of fs-verity.
 */
#include "send/send.h"

#include <errno.h>
#include <string.h>

enum {
	/* version 2 of posix_acl_xattr_header: what stands for an empty acl */
	EMPTY_ACL = 2,
	/* fsverity_descriptor: where its fields are */
	VERITY_HASH_ALGORITHM = 1,
	VERITY_LOG_BLOCKSIZE = 2,
	VERITY_SALT_SIZE = 3,
	VERITY_SIG_SIZE = 4,
	VERITY_SALT = 80,
	VERITY_SIGNATURE = 256,
	VERITY_MAX = 16384,
};

static const char caps_name[] = "security.capability";
static const char acl_access_name[] = "system.posix_acl_access";
static const char acl_default_name[] = "system.posix_acl_default";

static int send_set_xattr(struct send_ctx *sctx, const void *name, size_t name_size,
			  const void *data, size_t data_size)
{
	const struct fs_path *path;

	if (get_cur_inode_path(sctx, &path) < 0 || begin_cmd(sctx, BTRFS_SEND_C_SET_XATTR) < 0 ||
	    tlv_put_path(sctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put(sctx, BTRFS_SEND_A_XATTR_NAME, name, name_size) < 0 ||
	    tlv_put(sctx, BTRFS_SEND_A_XATTR_DATA, data, data_size) < 0)
		return sctx->fault->code;
	return send_cmd(sctx);
}

static bool is_prefix_of(const void *name, size_t size, const char *whole)
{
	return size <= strlen(whole) && !memcmp(name, whole, size);
}

/* __process_new_xattr() */
static int process_new_xattr(struct send_ctx *sctx, const struct btrfs_dir_item *entry)
{
	static const uint8_t empty_acl[4] = {EMPTY_ACL};
	const uint8_t *name = (const uint8_t *)(entry + 1);
	const uint8_t *data = name + entry->name_len;
	size_t size = entry->data_len;

	/* sent last, because a chown would drop it; the kernel compares by strncmp() */
	if (TOGGLE(sctx, SEND_CAPS_LAST) && is_prefix_of(name, entry->name_len, caps_name))
		return BM_OK;
	/* an empty acl is stored as nothing, which receivers refuse */
	if (!size && (is_prefix_of(name, entry->name_len, acl_access_name) ||
		      is_prefix_of(name, entry->name_len, acl_default_name))) {
		data = empty_acl;
		size = sizeof(empty_acl);
	}
	return send_set_xattr(sctx, name, entry->name_len, data, size);
}

static int send_remove_xattr(struct send_ctx *sctx, const void *name, size_t size)
{
	const struct fs_path *path;

	if (get_cur_inode_path(sctx, &path) < 0 || begin_cmd(sctx, BTRFS_SEND_C_REMOVE_XATTR) < 0 ||
	    tlv_put_path(sctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put(sctx, BTRFS_SEND_A_XATTR_NAME, name, size) < 0)
		return sctx->fault->code;
	return send_cmd(sctx);
}

/* The xattr of the same name in the item on the other side; NULL: none. */
static int find_xattr(struct send_ctx *sctx, const uint8_t *leaf, uint32_t slot,
		      const struct btrfs_dir_item *like, const struct btrfs_dir_item **found)
{
	uint32_t at = 0;
	int ret;

	while ((ret = iterate_dir_item(sctx, leaf, slot, &at, found)) > 0)
		if ((*found)->name_len == like->name_len &&
		    !memcmp(*found + 1, like + 1, like->name_len))
			return BM_OK;
	*found = NULL;
	return ret;
}

static bool same_value(const struct btrfs_dir_item *a, const struct btrfs_dir_item *b)
{
	return a->data_len == b->data_len &&
	       !memcmp((const uint8_t *)(a + 1) + a->name_len,
		       (const uint8_t *)(b + 1) + b->name_len, a->data_len);
}

/* The xattrs of the snapshot's item, less those that the parent's has with the same value. */
static int set_xattrs(struct send_ctx *sctx, const uint8_t *leaf, uint32_t slot,
		      enum bm_change change)
{
	const struct btrfs_disk_key *key = &leaf_item(leaf, slot)->key;
	const struct btrfs_dir_item *entry, *old = NULL;
	bool compare = change == BM_CHANGE_CHANGED;
	uint32_t at = 0;
	int ret;

	because(sctx, BM_SEND_XATTR_SET, sctx->cur_ino,
		(struct bm_send_item){.objectid = key->objectid,
				      .type = key->type,
				      .offset = key->offset,
				      .change = (uint8_t)change});
	while ((ret = iterate_dir_item(sctx, leaf, slot, &at, &entry)) > 0) {
		if (compare &&
		    find_xattr(sctx, sctx->right_leaf, sctx->right_slot, entry, &old) < 0)
			return sctx->fault->code;
		if (old && same_value(entry, old))
			continue;
		ret = process_new_xattr(sctx, entry);
		if (ret < 0)
			return ret;
	}
	return ret;
}

/* The xattrs of the parent's item, less those that the snapshot's has too. */
static int remove_xattrs(struct send_ctx *sctx, bool compare)
{
	const struct btrfs_dir_item *entry, *now = NULL;
	uint32_t at = 0;
	int ret;

	because(sctx, BM_SEND_XATTR_REMOVED, sctx->cur_ino, walk_item(sctx));
	while ((ret = iterate_dir_item(sctx, sctx->right_leaf, sctx->right_slot, &at, &entry)) >
	       0) {
		if (compare && find_xattr(sctx, sctx->leaf, sctx->slot, entry, &now) < 0)
			return sctx->fault->code;
		if (now)
			continue;
		ret = send_remove_xattr(sctx, entry + 1, entry->name_len);
		if (ret < 0)
			return ret;
	}
	return ret;
}

int changed_xattr(struct send_ctx *sctx)
{
	bool changed = sctx->result == BM_CHANGE_CHANGED;

	/* "inconsistent snapshot": an item without its inode */
	if (sctx->cur_ino != sctx->key.objectid)
		return send_errno(sctx, EIO);
	if (sctx->cur_inode_new_gen || sctx->cur_inode_deleted)
		return BM_OK;
	if (sctx->result != BM_CHANGE_DELETED &&
	    set_xattrs(sctx, sctx->leaf, sctx->slot, sctx->result) < 0)
		return sctx->fault->code;
	if (sctx->result != BM_CHANGE_NEW && remove_xattrs(sctx, changed) < 0)
		return sctx->fault->code;
	return BM_OK;
}

/* process_all_new_xattrs(): of an inode that was created again. */
int process_all_new_xattrs(struct send_ctx *sctx)
{
	struct bm_key key = {.objectid = sctx->key.objectid, .type = BTRFS_XATTR_ITEM_KEY};
	struct bm_path path = alloc_path_for_send(sctx);
	int ret;

	if (bm_search_slot(&sctx->root, &key, &path, sctx->fault) < 0)
		return sctx->fault->code;
	while (!(ret = btrfs_get_next_valid_item(sctx, &sctx->root, &path))) {
		const struct btrfs_disk_key *at = &leaf_item(path.node[0], path.slot[0])->key;

		if (at->objectid != key.objectid || at->type != key.type)
			return BM_OK;
		ret = set_xattrs(sctx, path.node[0], path.slot[0], BM_CHANGE_NEW);
		if (ret < 0)
			return ret;
		path.slot[0]++;
	}
	return ret < 0 ? ret : BM_OK;
}

int send_capabilities(struct send_ctx *sctx)
{
	size_t size = strlen(caps_name);
	struct bm_key key = {.objectid = sctx->cur_ino, .type = BTRFS_XATTR_ITEM_KEY};
	const struct btrfs_dir_item *entry;
	int ret;

	if (!TOGGLE(sctx, SEND_CAPS_LAST))
		return BM_OK;
	COUNT(sctx->image, btrfs_lookup_xattr);
	if (was_searched(sctx, KNOWN_NO_CAPABILITIES))
		return BM_OK;
	key.offset = bm_crc32c(0xfffffffe, caps_name, size);
	ret = lookup_name(sctx, &sctx->root, &key, caps_name, size, &entry);
	if (!ret && !entry)
		set_searched(sctx, KNOWN_NO_CAPABILITIES);
	if (ret < 0 || !entry)
		return ret;
	because_inode(sctx, BM_SEND_CAPABILITIES);
	return send_set_xattr(sctx, caps_name, size, (const uint8_t *)(entry + 1) + entry->name_len,
			      entry->data_len);
}

/* --------------------------------------------------------------------------------- verity -- */

/* The descriptor, gathered from the items behind the one that holds its size. */
static int read_verity_descriptor(struct send_ctx *sctx, uint8_t *descriptor, size_t *size)
{
	struct bm_key key = {
	    .objectid = sctx->cur_ino, .type = BTRFS_VERITY_DESC_ITEM_KEY, .offset = 1};
	struct bm_path path = alloc_path_for_send(sctx);
	int ret = bm_search_slot(&sctx->root, &key, &path, sctx->fault);

	*size = 0;
	for (; ret >= 0; path.slot[0]++) {
		const struct btrfs_item *item;

		if (path.slot[0] >= block_header(path.node[0])->nritems) {
			ret = bm_next_leaf(&sctx->root, &path, sctx->fault);
			if (ret)
				break;
		}
		item = leaf_item(path.node[0], path.slot[0]);
		if (item->key.objectid != key.objectid || item->key.type != key.type)
			break;
		if (item->size > VERITY_MAX - *size)
			return send_errno(sctx, EMSGSIZE);
		memcpy(descriptor + *size, item_data(path.node[0], path.slot[0]), item->size);
		*size += item->size;
	}
	return ret < 0 ? ret : BM_OK;
}

int process_verity(struct send_ctx *sctx)
{
	uint8_t descriptor[VERITY_MAX] = {0};
	const struct fs_path *path;
	uint32_t signature_size;
	size_t size;

	because(sctx, BM_SEND_VERITY, sctx->cur_ino,
		(struct bm_send_item){.objectid = sctx->cur_ino,
				      .type = BTRFS_VERITY_DESC_ITEM_KEY,
				      .change = BM_CHANGE_NEW});
	if (read_verity_descriptor(sctx, descriptor, &size) < 0)
		return sctx->fault->code;
	memcpy(&signature_size, descriptor + VERITY_SIG_SIZE, 4);
	if (size < VERITY_SIGNATURE || signature_size > size - VERITY_SIGNATURE ||
	    descriptor[VERITY_SALT_SIZE] > 32 || descriptor[VERITY_LOG_BLOCKSIZE] > 31)
		return send_errno(sctx, EUCLEAN);
	if (get_cur_inode_path(sctx, &path) < 0 ||
	    begin_cmd(sctx, BTRFS_SEND_C_ENABLE_VERITY) < 0 ||
	    tlv_put_path(sctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put(sctx, BTRFS_SEND_A_VERITY_ALGORITHM, descriptor + VERITY_HASH_ALGORITHM, 1) <
		0 ||
	    tlv_put_u32(sctx, BTRFS_SEND_A_VERITY_BLOCK_SIZE,
			1u << descriptor[VERITY_LOG_BLOCKSIZE]) < 0 ||
	    tlv_put(sctx, BTRFS_SEND_A_VERITY_SALT_DATA, descriptor + VERITY_SALT,
		    descriptor[VERITY_SALT_SIZE]) < 0 ||
	    tlv_put(sctx, BTRFS_SEND_A_VERITY_SIG_DATA, descriptor + VERITY_SIGNATURE,
		    signature_size) < 0)
		return sctx->fault->code;
	return send_cmd(sctx);
}
