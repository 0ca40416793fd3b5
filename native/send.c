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

static bool is_type(uint32_t mode, uint32_t type)
{
	return (mode & MODE_FMT) == type;
}

/* ------------------------------------------------------------------------ simple commands -- */

static int send_two_paths(struct send_ctx *ctx, int cmd, const struct fs_path *path, int attribute,
			  const struct fs_path *other)
{
	if (begin_cmd(ctx, cmd) < 0 || tlv_put_path(ctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put_path(ctx, attribute, other) < 0)
		return ctx->fault->code;
	return send_cmd(ctx);
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

static int send_set_xattr(struct send_ctx *ctx, const void *name, size_t name_size,
			  const void *data, size_t data_size)
{
	const struct fs_path *path;

	if (get_cur_inode_path(ctx, &path) < 0 || begin_cmd(ctx, BTRFS_SEND_C_SET_XATTR) < 0 ||
	    tlv_put_path(ctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put(ctx, BTRFS_SEND_A_XATTR_NAME, name, name_size) < 0 ||
	    tlv_put(ctx, BTRFS_SEND_A_XATTR_DATA, data, data_size) < 0)
		return ctx->fault->code;
	return send_cmd(ctx);
}

static int tlv_put_timespec(struct send_ctx *ctx, int attribute, const struct btrfs_timespec *time)
{
	return tlv_put(ctx, attribute, time, sizeof(*time));
}

static int send_utimes(struct send_ctx *ctx, uint64_t ino, uint64_t gen)
{
	struct bm_key key = {.objectid = ino, .type = BTRFS_INODE_ITEM_KEY};
	struct bm_path search = send_path(ctx);
	const struct btrfs_inode_item *item;
	const struct fs_path *path;
	struct fs_path other;
	int ret;

	COUNT(ctx->image, send_utimes);
	if (ino == ctx->cur_ino && gen == ctx->cur_inode_gen) {
		ret = get_cur_inode_path(ctx, &path);
	} else {
		path = &other;
		ret = get_cur_path(ctx, ino, gen, &other);
	}
	if (ret < 0)
		return ret;
	ret = bm_search_slot(&ctx->root, &key, &search, ctx->fault);
	if (ret)
		return ret < 0 ? ret : send_errno(ctx, ENOENT);
	item = (const void *)item_data(search.node[0], search.slot[0]);
	if (leaf_item(search.node[0], search.slot[0])->size < sizeof(*item))
		return send_bad_item(ctx, BM_BAD_ITEM_SIZE, search.node[0], search.slot[0],
				     leaf_item(search.node[0], search.slot[0])->size,
				     sizeof(*item));
	if (begin_cmd(ctx, BTRFS_SEND_C_UTIMES) < 0 ||
	    tlv_put_path(ctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put_timespec(ctx, BTRFS_SEND_A_ATIME, &item->atime) < 0 ||
	    tlv_put_timespec(ctx, BTRFS_SEND_A_MTIME, &item->mtime) < 0 ||
	    tlv_put_timespec(ctx, BTRFS_SEND_A_CTIME, &item->ctime) < 0 ||
	    (ctx->args->proto >= 2 && tlv_put_timespec(ctx, BTRFS_SEND_A_OTIME, &item->otime) < 0))
		return ctx->fault->code;
	return send_cmd(ctx);
}

/* ----------------------------------------------------------------------------- directories -- */

static int lru_add(struct send_ctx *ctx, struct lru_cache *cache, uint64_t key, uint64_t generation)
{
	struct lru_entry *entry = malloc(sizeof(*entry));

	if (!entry)
		return bm_fail(ctx->fault, (struct bm_fault){.code = BM_NOMEM});
	entry->key = key;
	entry->generation = generation;
	COUNT(ctx->image, btrfs_lru_cache_store);
	lru_store(cache, entry);
	return BM_OK;
}

/* UTIMES of a directory: put off until it is not likely to change any more, or at once. */
static int cache_dir_utimes(struct send_ctx *ctx, uint64_t dir, uint64_t gen)
{
	if (!TOGGLE(ctx, SEND_UTIMES_CACHE))
		return send_utimes(ctx, dir, gen);
	COUNT(ctx->image, cache_dir_utimes);
	COUNT(ctx->image, btrfs_lru_cache_lookup);
	if (lru_lookup(&ctx->dir_utimes_cache, dir, gen))
		return BM_OK;
	return lru_add(ctx, &ctx->dir_utimes_cache, dir, gen);
}

static int trim_dir_utimes_cache(struct send_ctx *ctx, size_t size)
{
	while (ctx->dir_utimes_cache.size > size) {
		struct lru_entry *oldest = ctx->dir_utimes_cache.oldest;

		if (send_utimes(ctx, oldest->key, oldest->generation) < 0)
			return ctx->fault->code;
		lru_remove(&ctx->dir_utimes_cache, oldest);
	}
	return BM_OK;
}

static int cache_dir_created(struct send_ctx *ctx, uint64_t dir)
{
	if (!TOGGLE(ctx, SEND_DIR_CREATED_CACHE))
		return BM_OK;
	/* storing one that is there already changes nothing, not even its place in the list */
	for (struct lru_entry *entry = ctx->dir_created_cache.newest; entry; entry = entry->older)
		if (entry->key == dir)
			return BM_OK;
	return lru_add(ctx, &ctx->dir_created_cache, dir, 0);
}

/* 1: the directory was created already, out of its turn, as the parent of a lower inode. */
static int did_create_dir(struct send_ctx *ctx, uint64_t dir)
{
	struct bm_key key = {.objectid = dir, .type = BTRFS_DIR_INDEX_KEY};
	struct bm_path path = send_path(ctx);
	int ret;

	COUNT(ctx->image, did_create_dir);
	if (TOGGLE(ctx, SEND_DIR_CREATED_CACHE)) {
		COUNT(ctx->image, btrfs_lru_cache_lookup);
		if (lru_lookup(&ctx->dir_created_cache, dir, 0))
			return 1;
	}
	ret = bm_search_slot(&ctx->root, &key, &path, ctx->fault);
	if (ret < 0)
		return ret;
	for (;; path.slot[0]++) {
		const struct btrfs_dir_item *entry;
		const struct btrfs_disk_key *at;
		uint32_t start = 0;

		if (path.slot[0] >= block_header(path.node[0])->nritems) {
			ret = bm_next_leaf(&ctx->root, &path, ctx->fault);
			if (ret)
				return ret < 0 ? ret : 0;
		}
		at = &leaf_item(path.node[0], path.slot[0])->key;
		if (at->objectid != dir || at->type != BTRFS_DIR_INDEX_KEY)
			return 0;
		ret = next_dir_entry(ctx, path.node[0], path.slot[0], &start, &entry);
		if (ret < 0)
			return ret;
		if (ret && entry->location.type != BTRFS_ROOT_ITEM_KEY &&
		    entry->location.objectid < ctx->send_progress) {
			ret = cache_dir_created(ctx, dir);
			return ret < 0 ? ret : 1;
		}
	}
}

/* --------------------------------------------------------------------------------- inodes -- */

static uint64_t new_encode_dev(uint64_t dev)
{
	uint64_t major = dev >> 20 & 0xfff, minor = dev & 0xfffff;

	return (minor & 0xff) | major << 8 | (minor & ~(uint64_t)0xff) << 12;
}

static int read_symlink(struct send_ctx *ctx, uint64_t ino, struct fs_path *target)
{
	struct bm_key key = {.objectid = ino, .type = BTRFS_EXTENT_DATA_KEY};
	struct bm_path path = send_path(ctx);
	struct file_extent extent;
	int ret;

	ret = bm_search_slot(&ctx->root, &key, &path, ctx->fault);
	if (ret)
		return ret < 0 ? ret : send_errno(ctx, EIO);
	ret = parse_file_extent(ctx, path.node[0], path.slot[0], &extent);
	if (ret < 0)
		return ret;
	if (!extent.inline_data || extent.compression)
		return send_errno(ctx, EUCLEAN);
	if (extent.ram_bytes > extent.inline_size)
		return send_bad_item(ctx, BM_BAD_ITEM_SIZE, path.node[0], path.slot[0],
				     extent.inline_size, extent.ram_bytes);
	target->size = 0;
	return fs_path_add(ctx, target, (const char *)extent.inline_data, extent.ram_bytes);
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

static int send_create_inode(struct send_ctx *ctx, uint64_t ino)
{
	struct inode_info info = {.generation = ctx->cur_inode_gen,
				  .mode = ctx->cur_inode_mode,
				  .rdev = ctx->cur_inode_rdev};
	struct fs_path path = {.size = 0};
	int cmd, ret;

	COUNT(ctx->image, send_create_inode);
	if (ino != ctx->cur_ino) {
		ret = get_inode_info(ctx, &ctx->root, ino, &info);
		if (ret)
			return ret < 0 ? ret : send_errno(ctx, ENOENT);
	}
	cmd = create_command(info.mode);
	if (!cmd)
		return send_errno(ctx, EOPNOTSUPP);
	if (begin_cmd(ctx, cmd) < 0 || gen_unique_name(ctx, ino, info.generation, &path) < 0 ||
	    tlv_put_path(ctx, BTRFS_SEND_A_PATH, &path) < 0 ||
	    tlv_put_u64(ctx, BTRFS_SEND_A_INO, ino) < 0)
		return ctx->fault->code;
	if (cmd == BTRFS_SEND_C_SYMLINK) {
		if (read_symlink(ctx, ino, &path) < 0 ||
		    tlv_put_path(ctx, BTRFS_SEND_A_PATH_LINK, &path) < 0)
			return ctx->fault->code;
	} else if (cmd != BTRFS_SEND_C_MKFILE && cmd != BTRFS_SEND_C_MKDIR) {
		if (tlv_put_u64(ctx, BTRFS_SEND_A_RDEV, new_encode_dev(info.rdev)) < 0 ||
		    tlv_put_u64(ctx, BTRFS_SEND_A_MODE, info.mode) < 0)
			return ctx->fault->code;
	}
	return send_cmd(ctx);
}

static int send_create_inode_if_needed(struct send_ctx *ctx)
{
	bool is_dir = is_type(ctx->cur_inode_mode, MODE_DIR);
	int ret;

	if (is_dir) {
		ret = did_create_dir(ctx, ctx->cur_ino);
		if (ret)
			return ret < 0 ? ret : BM_OK;
	}
	ret = send_create_inode(ctx, ctx->cur_ino);
	if (!ret && is_dir)
		ret = cache_dir_created(ctx, ctx->cur_ino);
	return ret;
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

/* ---------------------------------------------------------------------------------- names -- */

static int record_new_ref(struct send_ctx *ctx, uint64_t dir, const char *name, size_t size)
{
	struct recorded_ref *ref;
	uint64_t gen;

	if (get_inode_gen(ctx, &ctx->root, dir, &gen) < 0)
		return ctx->fault->code;
	if (ctx->new_ref_count == ctx->new_ref_capacity) {
		size_t capacity = ctx->new_ref_capacity ? 2 * ctx->new_ref_capacity : 4;

		ref = realloc(ctx->new_refs, capacity * sizeof(*ref));
		if (!ref)
			return bm_fail(ctx->fault, (struct bm_fault){.code = BM_NOMEM});
		ctx->new_refs = ref;
		ctx->new_ref_capacity = capacity;
	}
	ref = &ctx->new_refs[ctx->new_ref_count];
	ref->dir = dir;
	ref->dir_gen = gen;
	if (get_cur_path(ctx, dir, gen, &ref->full_path) < 0 ||
	    fs_path_add(ctx, &ref->full_path, name, size) < 0)
		return ctx->fault->code;
	ctx->new_ref_count++;
	return BM_OK;
}

/* Record every name of an INODE_REF or INODE_EXTREF item (iterate_inode_ref()). */
static int changed_ref(struct send_ctx *ctx)
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

static int process_recorded_refs(struct send_ctx *ctx)
{
	struct fs_path valid_path = {.size = 0};
	bool is_orphan = true;
	int ret;

	COUNT(ctx->image, process_recorded_refs);
	if (ctx->cur_ino <= BTRFS_FIRST_FREE_OBJECTID)
		return send_errno(ctx, EINVAL);
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
		const struct fs_path *full_path = &ctx->new_refs[i].full_path;

		ret = create_parent_if_needed(ctx, i);
		if (ret < 0)
			return ret;
		if (is_orphan || is_type(ctx->cur_inode_mode, MODE_DIR)) {
			ret = send_two_paths(ctx, BTRFS_SEND_C_RENAME, &valid_path,
					     BTRFS_SEND_A_PATH_TO, full_path);
			fs_path_copy(&valid_path, full_path);
			/* rename_current_inode() */
			if (TOGGLE(ctx, SEND_CUR_INODE_PATH))
				fs_path_copy(&ctx->cur_inode_path, full_path);
			is_orphan = false;
		} else {
			ret = send_two_paths(ctx, BTRFS_SEND_C_LINK, full_path,
					     BTRFS_SEND_A_PATH_LINK, &valid_path);
		}
		if (ret < 0)
			return ret;
	}
	ret = update_check_dirs(ctx);
	ctx->new_ref_count = 0;
	return ret;
}

/* --------------------------------------------------------------------------------- xattrs -- */

static bool is_prefix_of(const void *name, size_t size, const char *whole)
{
	return size <= strlen(whole) && !memcmp(name, whole, size);
}

static int changed_xattr(struct send_ctx *ctx)
{
	static const uint8_t empty_acl[4] = {EMPTY_ACL};
	const struct btrfs_dir_item *entry;
	uint32_t at = 0;
	int ret;

	while ((ret = next_dir_entry(ctx, ctx->leaf, ctx->slot, &at, &entry)) > 0) {
		const uint8_t *name = (const uint8_t *)(entry + 1);
		const uint8_t *data = name + entry->name_len;
		size_t size = entry->data_len;

		/* sent last, because a chown would drop it; the kernel compares by strncmp() */
		if (is_prefix_of(name, entry->name_len, caps_name))
			continue;
		/* an empty acl is stored as nothing, which receivers refuse */
		if (!size && (is_prefix_of(name, entry->name_len, acl_access_name) ||
			      is_prefix_of(name, entry->name_len, acl_default_name))) {
			data = empty_acl;
			size = sizeof(empty_acl);
		}
		ret = send_set_xattr(ctx, name, entry->name_len, data, size);
		if (ret < 0)
			return ret;
	}
	return ret;
}

static int send_capabilities(struct send_ctx *ctx)
{
	size_t size = strlen(caps_name);
	struct bm_key key = {.objectid = ctx->cur_ino,
			     .type = BTRFS_XATTR_ITEM_KEY,
			     .offset = bm_crc32c(0xfffffffe, caps_name, size)};
	const struct btrfs_dir_item *entry;
	int ret;

	COUNT(ctx->image, btrfs_lookup_xattr);
	ret = lookup_name(ctx, &key, caps_name, size, &entry);
	if (ret < 0 || !entry)
		return ret;
	return send_set_xattr(ctx, caps_name, size, (const uint8_t *)(entry + 1) + entry->name_len,
			      entry->data_len);
}

/* --------------------------------------------------------------------------------- verity -- */

/* The descriptor, gathered from the items behind the one that holds its size. */
static int read_verity_descriptor(struct send_ctx *ctx, uint8_t *descriptor, size_t *size)
{
	struct bm_key key = {
	    .objectid = ctx->cur_ino, .type = BTRFS_VERITY_DESC_ITEM_KEY, .offset = 1};
	struct bm_path path = send_path(ctx);
	int ret = bm_search_slot(&ctx->root, &key, &path, ctx->fault);

	*size = 0;
	for (; ret >= 0; path.slot[0]++) {
		const struct btrfs_item *item;

		if (path.slot[0] >= block_header(path.node[0])->nritems) {
			ret = bm_next_leaf(&ctx->root, &path, ctx->fault);
			if (ret)
				break;
		}
		item = leaf_item(path.node[0], path.slot[0]);
		if (item->key.objectid != key.objectid || item->key.type != key.type)
			break;
		if (item->size > VERITY_MAX - *size)
			return send_errno(ctx, EMSGSIZE);
		memcpy(descriptor + *size, item_data(path.node[0], path.slot[0]), item->size);
		*size += item->size;
	}
	return ret < 0 ? ret : BM_OK;
}

static int process_verity(struct send_ctx *ctx)
{
	uint8_t descriptor[VERITY_MAX] = {0};
	const struct fs_path *path;
	uint32_t signature_size;
	size_t size;

	if (read_verity_descriptor(ctx, descriptor, &size) < 0)
		return ctx->fault->code;
	memcpy(&signature_size, descriptor + VERITY_SIG_SIZE, 4);
	if (size < VERITY_SIGNATURE || signature_size > size - VERITY_SIGNATURE ||
	    descriptor[VERITY_SALT_SIZE] > 32 || descriptor[VERITY_LOG_BLOCKSIZE] > 31)
		return send_errno(ctx, EUCLEAN);
	if (get_cur_inode_path(ctx, &path) < 0 || begin_cmd(ctx, BTRFS_SEND_C_ENABLE_VERITY) < 0 ||
	    tlv_put_path(ctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put(ctx, BTRFS_SEND_A_VERITY_ALGORITHM, descriptor + VERITY_HASH_ALGORITHM, 1) <
		0 ||
	    tlv_put_u32(ctx, BTRFS_SEND_A_VERITY_BLOCK_SIZE,
			1u << descriptor[VERITY_LOG_BLOCKSIZE]) < 0 ||
	    tlv_put(ctx, BTRFS_SEND_A_VERITY_SALT_DATA, descriptor + VERITY_SALT,
		    descriptor[VERITY_SALT_SIZE]) < 0 ||
	    tlv_put(ctx, BTRFS_SEND_A_VERITY_SIG_DATA, descriptor + VERITY_SIGNATURE,
		    signature_size) < 0)
		return ctx->fault->code;
	return send_cmd(ctx);
}

/* ----------------------------------------------------------------------------------- walk -- */

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
