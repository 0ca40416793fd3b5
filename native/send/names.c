// SPDX-License-Identifier: GPL-2.0-only
/*
 * Inodes, names and paths as send looks them up.
 *
 * A path is that of the receiver at this moment of the stream: an inode whose number is below
 * send_progress has its name of the snapshot, one that is still to come exists only under its
 * orphan name (o<ino>-<generation>-<n>), if at all.
 */
#include "send/send.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { XATTR_NAME_LIMIT = 255 };

int fs_path_add(struct send_ctx *ctx, struct fs_path *path, const char *name, size_t size)
{
	size_t slash = path->size ? 1 : 0;

	if (path->size + slash + size >= PATH_LIMIT)
		return send_errno(ctx, ENAMETOOLONG);
	if (slash)
		path->text[path->size++] = '/';
	memcpy(path->text + path->size, name, size);
	path->size += size;
	return BM_OK;
}

void fs_path_copy(struct fs_path *dest, const struct fs_path *from)
{
	memcpy(dest->text, from->text, from->size);
	dest->size = from->size;
}

/* Put a name in front of a path. */
static int fs_path_prepend(struct send_ctx *ctx, struct fs_path *path, const struct fs_path *name)
{
	size_t slash = path->size ? 1 : 0;

	if (path->size + slash + name->size >= PATH_LIMIT)
		return send_errno(ctx, ENAMETOOLONG);
	memmove(path->text + name->size + slash, path->text, path->size);
	memcpy(path->text, name->text, name->size);
	if (slash)
		path->text[name->size] = '/';
	path->size += slash + name->size;
	return BM_OK;
}

int get_inode_info(struct send_ctx *ctx, const struct bm_root *root, uint64_t ino,
		   struct inode_info *info)
{
	struct bm_key key = {.objectid = ino, .type = BTRFS_INODE_ITEM_KEY};
	struct bm_path path = send_path(ctx);
	const struct btrfs_inode_item *item;
	int ret;

	COUNT(ctx->image, get_inode_info);
	ret = bm_search_slot(root, &key, &path, ctx->fault);
	if (ret)
		return ret;
	item = (const void *)item_data(path.node[0], path.slot[0]);
	if (leaf_item(path.node[0], path.slot[0])->size < sizeof(*item))
		return send_bad_item(ctx, BM_BAD_ITEM_SIZE, path.node[0], path.slot[0],
				     leaf_item(path.node[0], path.slot[0])->size, sizeof(*item));
	*info = (struct inode_info){.size = item->size,
				    .generation = item->generation,
				    .rdev = item->rdev,
				    .flags = item->flags,
				    .mode = item->mode,
				    .uid = item->uid,
				    .gid = item->gid,
				    .nlink = item->nlink};
	return BM_OK;
}

int get_inode_gen(struct send_ctx *ctx, const struct bm_root *root, uint64_t ino, uint64_t *gen)
{
	struct inode_info info;
	int ret = get_inode_info(ctx, root, ino, &info);

	COUNT(ctx->image, get_inode_gen);
	if (ret)
		return ret < 0 ? ret : send_errno(ctx, ENOENT);
	*gen = info.generation;
	return BM_OK;
}

int next_dir_entry(struct send_ctx *ctx, const uint8_t *leaf, uint32_t slot, uint32_t *at,
		   const struct btrfs_dir_item **entry)
{
	uint32_t size = leaf_item(leaf, slot)->size, limit;
	const struct btrfs_dir_item *item = (const void *)(item_data(leaf, slot) + *at);

	if (*at >= size)
		return 0;
	if (size - *at < sizeof(*item))
		return send_bad_item(ctx, BM_BAD_ITEM_SIZE, leaf, slot, size, *at + sizeof(*item));
	if (size - *at - sizeof(*item) < (uint32_t)item->name_len + item->data_len)
		return send_bad_item(ctx, BM_BAD_ITEM_SIZE, leaf, slot, size,
				     *at + sizeof(*item) + item->name_len + item->data_len);
	limit = item->type == BTRFS_FT_XATTR ? XATTR_NAME_LIMIT : PATH_LIMIT;
	if (item->name_len > limit)
		return send_errno(ctx, ENAMETOOLONG);
	*at += sizeof(*item) + item->name_len + item->data_len;
	*entry = item;
	return 1;
}

int lookup_name(struct send_ctx *ctx, const struct bm_root *root, const struct bm_key *key,
		const char *name, size_t size, const struct btrfs_dir_item **entry)
{
	struct bm_path path = send_path(ctx);
	uint32_t at = 0;
	int ret;

	*entry = NULL;
	ret = bm_search_slot(root, key, &path, ctx->fault);
	if (ret)
		return ret < 0 ? ret : BM_OK;
	while ((ret = next_dir_entry(ctx, path.node[0], path.slot[0], &at, entry)) > 0)
		if ((*entry)->name_len == size && !memcmp(*entry + 1, name, size))
			return BM_OK;
	*entry = NULL;
	return ret;
}

int next_ref_name(struct send_ctx *ctx, const uint8_t *leaf, uint32_t slot, uint32_t *at,
		  struct ref_name *ref)
{
	const struct btrfs_item *item = leaf_item(leaf, slot);
	const uint8_t *data = item_data(leaf, slot) + *at;
	uint32_t left = item->size - *at, head;

	if (*at >= item->size)
		return 0;
	head = item->key.type == BTRFS_INODE_REF_KEY ? sizeof(struct btrfs_inode_ref)
						     : sizeof(struct btrfs_inode_extref);
	if (left < head)
		return send_bad_item(ctx, BM_BAD_ITEM_SIZE, leaf, slot, item->size, *at + head);
	if (item->key.type == BTRFS_INODE_REF_KEY) {
		ref->dir = item->key.offset;
		ref->size = ((const struct btrfs_inode_ref *)data)->name_len;
	} else {
		ref->dir = ((const struct btrfs_inode_extref *)data)->parent_objectid;
		ref->size = ((const struct btrfs_inode_extref *)data)->name_len;
	}
	if (left - head < ref->size)
		return send_bad_item(ctx, BM_BAD_ITEM_SIZE, leaf, slot, item->size,
				     *at + head + ref->size);
	ref->name = (const char *)data + head;
	*at += head + (uint32_t)ref->size;
	return 1;
}

int next_valid_item(struct send_ctx *ctx, const struct bm_root *root, struct bm_path *path)
{
	COUNT(ctx->image, btrfs_get_next_valid_item);
	if (path->slot[0] < block_header(path->node[0])->nritems)
		return 0;
	return bm_next_leaf(root, path, ctx->fault);
}

/* 1: an entry of the top directory has the name, in the snapshot or in its parent. */
static int is_name_taken(struct send_ctx *ctx, const char *name, size_t size)
{
	const struct bm_root *roots[] = {&ctx->root, has_parent(ctx) ? &ctx->parent : NULL};
	struct bm_key key = {.objectid = BTRFS_FIRST_FREE_OBJECTID,
			     .type = BTRFS_DIR_ITEM_KEY,
			     .offset = bm_crc32c(0xfffffffe, name, size)};

	for (int i = 0; i < 2 && roots[i]; i++) {
		const struct btrfs_dir_item *entry;

		COUNT(ctx->image, btrfs_lookup_dir_item);
		if (lookup_name(ctx, roots[i], &key, name, size, &entry) < 0)
			return ctx->fault->code;
		if (entry)
			return 1;
	}
	return 0;
}

int gen_unique_name(struct send_ctx *ctx, uint64_t ino, uint64_t gen, struct fs_path *dest)
{
	for (uint64_t i = 0;; i++) {
		char name[72];
		size_t size;
		int ret;

		size =
		    (size_t)snprintf(name, sizeof(name), "o%llu-%llu-%llu", (unsigned long long)ino,
				     (unsigned long long)gen, (unsigned long long)i);
		ret = is_name_taken(ctx, name, size);
		if (ret <= 0)
			return ret < 0 ? ret : fs_path_add(ctx, dest, name, size);
	}
}

/* get_first_ref() without the generation of the directory. 1: the inode has no name. */
static int find_first_ref(struct send_ctx *ctx, const struct bm_root *root, uint64_t ino,
			  uint64_t *dir, struct fs_path *name)
{
	struct bm_key key = {.objectid = ino, .type = BTRFS_INODE_REF_KEY};
	struct bm_path path = send_path(ctx);
	const struct btrfs_item *item;
	struct ref_name ref;
	uint32_t at = 0;
	int ret;

	ret = bm_search_slot_for_read(root, &key, 1, &path, ctx->fault);
	if (ret)
		return ret;
	item = leaf_item(path.node[0], path.slot[0]);
	if (item->key.objectid != ino ||
	    (item->key.type != BTRFS_INODE_REF_KEY && item->key.type != BTRFS_INODE_EXTREF_KEY))
		return 1;
	ret = next_ref_name(ctx, path.node[0], path.slot[0], &at, &ref);
	if (ret <= 0)
		return ret < 0 ? ret
			       : send_bad_item(ctx, BM_BAD_ITEM_SIZE, path.node[0], path.slot[0], 0,
					       sizeof(struct btrfs_inode_ref));
	*dir = ref.dir;
	return fs_path_add(ctx, name, ref.name, ref.size);
}

int get_first_ref(struct send_ctx *ctx, const struct bm_root *root, uint64_t ino, uint64_t *dir,
		  uint64_t *dir_gen, struct fs_path *name)
{
	int ret;

	COUNT(ctx->image, get_first_ref);
	ret = find_first_ref(ctx, root, ino, dir, name);
	if (ret || !dir_gen)
		return ret;
	return get_inode_gen(ctx, root, *dir, dir_gen);
}

int is_first_ref(struct send_ctx *ctx, uint64_t ino, uint64_t dir, const char *name, size_t size)
{
	struct fs_path first;
	uint64_t first_dir;
	int ret;

	first.size = 0;
	ret = get_first_ref(ctx, &ctx->parent, ino, &first_dir, NULL, &first);
	if (ret)
		return ret < 0 ? ret : send_errno(ctx, ENOENT);
	return first_dir == dir && first.size == size && !memcmp(first.text, name, size);
}

/* The path of an inode in a root that is not being sent, by first names. */
int get_inode_path(struct send_ctx *ctx, const struct bm_root *root, uint64_t ino,
		   struct fs_path *dest)
{
	struct fs_path name;
	int ret;

	dest->size = 0;
	/* a directory cannot be deeper than the longest path has room for */
	for (int depth = 0; ino != BTRFS_FIRST_FREE_OBJECTID; depth++) {
		name.size = 0;
		if (depth > PATH_LIMIT / 2)
			return bm_fail(ctx->fault, (struct bm_fault){.code = BM_LOOP,
								     .tree = root->objectid,
								     .found = ino});
		ret = find_first_ref(ctx, root, ino, &ino, &name);
		if (ret)
			return ret < 0 ? ret : send_errno(ctx, ENOENT);
		if (fs_path_prepend(ctx, dest, &name) < 0)
			return ctx->fault->code;
	}
	return BM_OK;
}

struct name_entry {
	struct lru_entry lru;
	uint64_t parent_ino, parent_gen;
	bool need_later_update;
	bool is_orphan;
	size_t size;
	char name[];
};

static int name_cache_store(struct send_ctx *ctx, uint64_t ino, uint64_t gen, uint64_t parent_ino,
			    uint64_t parent_gen, bool is_orphan, const struct fs_path *name)
{
	struct lru_cache *cache = &ctx->name_cache;
	struct name_entry *entry = malloc(sizeof(*entry) + name->size);

	if (!entry)
		return bm_fail(ctx->fault, (struct bm_fault){.code = BM_NOMEM});
	*entry = (struct name_entry){.lru = {.key = ino, .generation = gen},
				     .parent_ino = parent_ino,
				     .parent_gen = parent_gen,
				     .need_later_update = ino >= ctx->send_progress,
				     .is_orphan = is_orphan,
				     .size = name->size};
	memcpy(entry->name, name->text, name->size);
	if (TOGGLE(ctx, SEND_NAME_CACHE_LRU))
		COUNT(ctx->image, btrfs_lru_cache_store);
	lru_store(cache, &entry->lru);
	/* name_cache_clean_unused(): the cache without the kernel's LRU is emptied by half */
	if (!TOGGLE(ctx, SEND_NAME_CACHE_LRU) && cache->size >= NAME_CACHE_SIZE)
		while (cache->size > NAME_CACHE_KEPT)
			lru_remove(cache, cache->oldest);
	return BM_OK;
}

void name_cache_drop(struct send_ctx *ctx, uint64_t ino, uint64_t gen)
{
	struct lru_entry *entry;

	COUNT(ctx->image, name_cache_search);
	if (TOGGLE(ctx, SEND_NAME_CACHE_LRU))
		COUNT(ctx->image, btrfs_lru_cache_lookup);
	entry = lru_lookup(&ctx->name_cache, ino, gen);
	if (entry)
		lru_remove(&ctx->name_cache, entry);
}

/*
 * __get_cur_name_and_parent(): the name that the receiver has for an inode now. 1: it is an orphan
 * name, which stands at the top; 0: a name in the directory *parent_ino.
 */
int get_cur_name_and_parent(struct send_ctx *ctx, uint64_t ino, uint64_t gen, uint64_t *parent_ino,
			    uint64_t *parent_gen, struct fs_path *name)
{
	struct inode_generations found;
	struct name_entry *entry;
	bool is_orphan;
	int ret;

	COUNT(ctx->image, __get_cur_name_and_parent);
	COUNT(ctx->image, name_cache_search);
	if (TOGGLE(ctx, SEND_NAME_CACHE_LRU))
		COUNT(ctx->image, btrfs_lru_cache_lookup);
	entry = (struct name_entry *)lru_lookup(&ctx->name_cache, ino, gen);
	if (entry && ino < ctx->send_progress && entry->need_later_update) {
		lru_remove(&ctx->name_cache, &entry->lru);
		entry = NULL;
	}
	if (entry) {
		*parent_ino = entry->parent_ino;
		*parent_gen = entry->parent_gen;
		ret = fs_path_add(ctx, name, entry->name, entry->size);
		return ret < 0 ? ret : entry->is_orphan;
	}
	ret = is_inode_existent(ctx, ino, gen, &found);
	if (ret < 0)
		return ret;
	is_orphan = !ret;
	if (ret) {
		/* what is still to come has the name that the parent snapshot gave it */
		const struct bm_root *root = ino < ctx->send_progress ? &ctx->root : &ctx->parent;
		struct dir_ref in;

		if (!root->image)
			return send_errno(ctx, ENOENT);
		ret = get_first_ref(ctx, root, ino, parent_ino, parent_gen, name);
		if (ret)
			return ret < 0 ? ret : send_errno(ctx, ENOENT);
		in = (struct dir_ref){.dir = *parent_ino, .dir_gen = *parent_gen};
		ret = did_overwrite_ref(ctx, &in, ino, gen, name->text, name->size);
		if (ret < 0)
			return ret;
		is_orphan = ret;
	}
	if (is_orphan) {
		name->size = 0;
		ret = gen_unique_name(ctx, ino, gen, name);
		if (ret < 0)
			return ret;
	}
	ret = name_cache_store(ctx, ino, gen, *parent_ino, *parent_gen, is_orphan, name);
	return ret < 0 ? ret : is_orphan;
}

static bool is_cur_inode(const struct send_ctx *ctx, uint64_t ino, uint64_t gen)
{
	return ino == ctx->cur_ino && gen == ctx->cur_inode_gen;
}

/*
 * The name of an inode now, and in (*ino, *gen) its directory. 1: the name is an orphan name, so
 * the path starts with it.
 */
static int get_cur_component(struct send_ctx *ctx, uint64_t *ino, uint64_t *gen,
			     struct fs_path *name)
{
	uint64_t parent_ino = 0, parent_gen = 0;
	const struct waiting_dir_move *waiting;
	int ret;

	name->size = 0;
	/* is_waiting_for_rm() */
	if (get_orphan_dir_info(ctx, *ino, *gen)) {
		ret = gen_unique_name(ctx, *ino, *gen, name);
		return ret < 0 ? ret : 1;
	}
	waiting = get_waiting_dir_move(ctx, *ino);
	if (waiting && waiting->orphanized) {
		ret = gen_unique_name(ctx, *ino, *gen, name);
		return ret < 0 ? ret : 1;
	}
	if (waiting) {
		ret = get_first_ref(ctx, &ctx->parent, *ino, &parent_ino, &parent_gen, name);
		if (ret > 0)
			ret = send_errno(ctx, ENOENT);
	} else {
		ret = get_cur_name_and_parent(ctx, *ino, *gen, &parent_ino, &parent_gen, name);
	}
	*ino = parent_ino;
	*gen = parent_gen;
	return ret;
}

int get_cur_path(struct send_ctx *ctx, uint64_t ino, uint64_t gen, struct fs_path *dest)
{
	bool remember = TOGGLE(ctx, SEND_CUR_INODE_PATH) && is_cur_inode(ctx, ino, gen);
	struct fs_path name;
	int ret = 0;

	COUNT(ctx->image, get_cur_path);
	if (remember && ctx->cur_inode_path.size) {
		if (dest != &ctx->cur_inode_path)
			fs_path_copy(dest, &ctx->cur_inode_path);
		return BM_OK;
	}
	dest->size = 0;
	for (int depth = 0; ret != 1 && ino != BTRFS_FIRST_FREE_OBJECTID; depth++) {
		if (depth > PATH_LIMIT / 2)
			return bm_fail(ctx->fault, (struct bm_fault){.code = BM_LOOP,
								     .tree = ctx->root.objectid,
								     .found = ino});
		ret = get_cur_component(ctx, &ino, &gen, &name);
		if (ret < 0 || fs_path_prepend(ctx, dest, &name) < 0)
			return ctx->fault->code;
	}
	if (remember && dest != &ctx->cur_inode_path)
		fs_path_copy(&ctx->cur_inode_path, dest);
	return BM_OK;
}

int get_cur_inode_path(struct send_ctx *ctx, const struct fs_path **path)
{
	*path = &ctx->cur_inode_path;
	COUNT(ctx->image, get_cur_inode_path);
	if (TOGGLE(ctx, SEND_CUR_INODE_PATH) && ctx->cur_inode_path.size)
		return BM_OK;
	return get_cur_path(ctx, ctx->cur_ino, ctx->cur_inode_gen, &ctx->cur_inode_path);
}
