// SPDX-License-Identifier: GPL-2.0-only
/*
 * Paths as the receiver has them at this moment of the stream.
 *
 * An inode whose number is below send_progress has its name of the snapshot, another one that of
 * the parent snapshot. One that is not there yet, whose name was taken by another or whose removal
 * waits, is in the top directory under its orphan name (o<ino>-<generation>-<n>).
 */
#include "send/send.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct name_entry {
	struct lru_entry lru;
	uint64_t parent_ino, parent_gen;
	bool need_later_update;
	bool is_orphan;
	size_t size;
	char name[];
};

static struct name_entry *name_cache_search(struct send_ctx *sctx, uint64_t ino, uint64_t gen)
{
	COUNT(sctx->image, name_cache_search);
	if (TOGGLE(sctx, SEND_NAME_CACHE_LRU))
		COUNT(sctx->image, btrfs_lru_cache_lookup);
	return (struct name_entry *)lru_lookup(&sctx->name_cache, ino, gen);
}

/* The name is that of the parent snapshot, and it is another one's turn by now. */
static bool is_outdated(const struct send_ctx *sctx, const struct name_entry *entry)
{
	return entry->lru.key < sctx->send_progress && entry->need_later_update;
}

static int name_cache_insert(struct send_ctx *sctx, uint64_t ino, uint64_t gen, uint64_t parent_ino,
			     uint64_t parent_gen, bool is_orphan, const struct fs_path *name)
{
	struct lru_cache *cache = &sctx->name_cache;
	struct name_entry *entry =
	    (struct name_entry *)lru_alloc(cache, sizeof(*entry) + name->size);

	if (!entry)
		return bm_fail(sctx->fault, (struct bm_fault){.code = BM_NOMEM});
	*entry =
	    (struct name_entry){.lru = {.key = ino, .generation = gen, .room = entry->lru.room},
				.parent_ino = parent_ino,
				.parent_gen = parent_gen,
				.need_later_update = ino >= sctx->send_progress,
				.is_orphan = is_orphan,
				.size = name->size};
	memcpy(entry->name, name->text, name->size);
	if (TOGGLE(sctx, SEND_NAME_CACHE_LRU))
		COUNT(sctx->image, btrfs_lru_cache_store);
	lru_store(cache, &entry->lru);
	/* name_cache_clean_unused(): the cache without the kernel's LRU is emptied by half */
	if (!TOGGLE(sctx, SEND_NAME_CACHE_LRU) && cache->size >= sctx->args->limits.name_cache)
		while (cache->size > sctx->args->limits.name_cache_kept)
			lru_remove(cache, cache->oldest);
	return BM_OK;
}

void name_cache_delete(struct send_ctx *sctx, uint64_t ino, uint64_t gen)
{
	struct name_entry *entry = name_cache_search(sctx, ino, gen);

	sctx->dir_path.depth = 0;
	if (entry)
		lru_remove(&sctx->name_cache, &entry->lru);
}

/*
 * __get_cur_name_and_parent(): the name that the receiver has for an inode now. 1: it is an orphan
 * name, which stands at the top; 0: a name in the directory *parent_ino.
 */
int get_cur_name_and_parent(struct send_ctx *sctx, uint64_t ino, uint64_t gen, uint64_t *parent_ino,
			    uint64_t *parent_gen, struct fs_path *name)
{
	struct inode_generations found;
	struct name_entry *entry;
	bool is_orphan;
	int ret;

	COUNT(sctx->image, __get_cur_name_and_parent);
	entry = name_cache_search(sctx, ino, gen);
	if (entry && is_outdated(sctx, entry)) {
		lru_remove(&sctx->name_cache, &entry->lru);
		entry = NULL;
	}
	if (entry) {
		*parent_ino = entry->parent_ino;
		*parent_gen = entry->parent_gen;
		ret = fs_path_add(sctx, name, entry->name, entry->size);
		return ret < 0 ? ret : entry->is_orphan;
	}
	ret = is_inode_existent(sctx, ino, gen, &found);
	if (ret < 0)
		return ret;
	is_orphan = !ret;
	if (ret) {
		/* what is still to come has the name that the parent snapshot gave it */
		const struct bm_root *root =
		    ino < sctx->send_progress ? &sctx->root : &sctx->parent;
		struct dir_ref in;

		if (!root->image)
			return send_errno(sctx, ENOENT);
		if (get_first_ref(sctx, root, ino, parent_ino, parent_gen, name) < 0)
			return sctx->fault->code;
		in = (struct dir_ref){.dir = *parent_ino, .dir_gen = *parent_gen};
		ret = did_overwrite_ref(sctx, &in, ino, gen, name->text, name->size);
		if (ret < 0)
			return ret;
		is_orphan = ret;
	}
	if (is_orphan) {
		name->size = 0;
		ret = gen_unique_name(sctx, ino, gen, name);
		if (ret < 0)
			return ret;
	}
	ret = name_cache_insert(sctx, ino, gen, *parent_ino, *parent_gen, is_orphan, name);
	return ret < 0 ? ret : is_orphan;
}

static bool is_cur_inode(const struct send_ctx *sctx, uint64_t ino, uint64_t gen)
{
	return ino == sctx->cur_ino && gen == sctx->cur_inode_gen;
}

/*
 * The name of an inode now, and in (*ino, *gen) its directory. 1: the name is an orphan name, so
 * the path starts with it.
 */
static int get_cur_component(struct send_ctx *sctx, uint64_t *ino, uint64_t *gen,
			     struct fs_path *name)
{
	uint64_t parent_ino = 0, parent_gen = 0;
	const struct waiting_dir_move *waiting;
	int ret;

	name->size = 0;
	if (is_waiting_for_rm(sctx, *ino, *gen)) {
		ret = gen_unique_name(sctx, *ino, *gen, name);
		return ret < 0 ? ret : 1;
	}
	waiting = get_waiting_dir_move(sctx, *ino);
	if (waiting && waiting->orphanized) {
		ret = gen_unique_name(sctx, *ino, *gen, name);
		return ret < 0 ? ret : 1;
	}
	if (waiting)
		ret = get_first_ref(sctx, &sctx->parent, *ino, &parent_ino, &parent_gen, name);
	else
		ret = get_cur_name_and_parent(sctx, *ino, *gen, &parent_ino, &parent_gen, name);
	*ino = parent_ino;
	*gen = parent_gen;
	return ret;
}

static void count_cached_components(struct send_ctx *sctx, size_t count)
{
	COUNT_N(sctx->image, get_orphan_dir_info, count);
	COUNT_N(sctx->image, get_waiting_dir_move, count);
	COUNT_N(sctx->image, __get_cur_name_and_parent, count);
	COUNT_N(sctx->image, name_cache_search, count);
	if (TOGGLE(sctx, SEND_NAME_CACHE_LRU))
		COUNT_N(sctx->image, btrfs_lru_cache_lookup, count);
}

/*
 * The same where the name cache has it, and neither a move nor a removal waits: the entry, or NULL, and
 * then get_cur_component() is to look.
 */
static const struct name_entry *get_cached_component(struct send_ctx *sctx, uint64_t ino,
						     uint64_t gen)
{
	const struct name_entry *entry;

	if (sctx->orphan_dirs.size || sctx->waiting_dir_moves.size)
		return NULL;
	entry = (const struct name_entry *)lru_lookup(&sctx->name_cache, ino, gen);
	if (!entry || is_outdated(sctx, entry))
		return NULL;
	count_cached_components(sctx, 1);
	return entry;
}

/*
 * Whether sctx->dir_path is the path of a directory now, above `depth` names of `size` bytes: the name
 * cache has all of it, as it was when it had moved entries `moves` times.
 */
static bool is_dir_path(const struct send_ctx *sctx, uint64_t ino, uint64_t gen, uint64_t moves,
			size_t depth, size_t size)
{
	const struct dir_path *dir = &sctx->dir_path;

	return dir->ino == ino && dir->gen == gen && dir->depth && dir->moves == moves &&
	       sctx->send_progress <= dir->until && !sctx->orphan_dirs.size &&
	       !sctx->waiting_dir_moves.size && dir->depth + depth < sctx->name_cache.max_size &&
	       dir->depth + depth < PATH_LIMIT / 2 && dir->path.size + size < PATH_LIMIT - 1;
}

/* Remember a directory and what the name cache has of its path, if it has all. */
static void set_dir_path(struct send_ctx *sctx, const struct dir_path *dir, const char *path,
			 size_t size)
{
	if (sctx->orphan_dirs.size || sctx->waiting_dir_moves.size ||
	    dir->depth >= sctx->name_cache.max_size)
		return;
	memcpy(&sctx->dir_path, dir, offsetof(struct dir_path, path));
	sctx->dir_path.moves = sctx->name_cache.moves;
	sctx->dir_path.path.size = size;
	memcpy(sctx->dir_path.path.text, path, size);
}

/* Put a name in front of a path that fills `text` from its end. */
static int put_in_front(struct send_ctx *sctx, char *text, size_t *size, const char *name,
			size_t name_size)
{
	size_t slash = *size ? 1 : 0;

	if (*size + slash + name_size >= PATH_LIMIT)
		return send_errno(sctx, ENAMETOOLONG);
	if (slash)
		text[PATH_LIMIT - ++*size] = '/';
	*size += name_size;
	memcpy(text + PATH_LIMIT - *size, name, name_size);
	return BM_OK;
}

int get_cur_path(struct send_ctx *sctx, uint64_t ino, uint64_t gen, struct fs_path *dest)
{
	bool remember = TOGGLE(sctx, SEND_CUR_INODE_PATH) && is_cur_inode(sctx, ino, gen);
	uint64_t moves = sctx->name_cache.moves;
	size_t size = 0, last = 0; /* the last name's with its slash */
	char text[PATH_LIMIT];	   /* filled from its end */
	struct dir_path dir;
	struct fs_path name;
	int ret = 0;

	COUNT(sctx->image, get_cur_path);
	if (remember && sctx->cur_inode_path.size) {
		if (dest != &sctx->cur_inode_path)
			fs_path_copy(dest, &sctx->cur_inode_path);
		return BM_OK;
	}
	dir.depth = 0;
	dir.until = UINT64_MAX;
	for (size_t depth = 0; ret != 1 && ino != BTRFS_FIRST_FREE_OBJECTID; depth++) {
		const struct name_entry *cached;
		const char *part = name.text;
		size_t part_size;

		if (depth < 2 && is_dir_path(sctx, ino, gen, moves, depth, size)) {
			/* its names would become the newest once more */
			if (depth)
				lru_move_behind(&sctx->name_cache, sctx->dir_path.lowest);
			sctx->dir_path.moves = sctx->name_cache.moves;
			count_cached_components(sctx, sctx->dir_path.depth);
			put_in_front(sctx, text, &size, sctx->dir_path.path.text,
				     sctx->dir_path.path.size);
			break;
		}
		if (check_depth(sctx, (int)depth, &sctx->root, ino) < 0)
			return sctx->fault->code;
		cached = get_cached_component(sctx, ino, gen);
		if (cached) {
			part = cached->name;
			part_size = cached->size;
			ino = cached->parent_ino;
			gen = cached->parent_gen;
			ret = cached->is_orphan;
		} else {
			ret = get_cur_component(sctx, &ino, &gen, &name);
			part_size = name.size;
		}
		if (ret < 0 || put_in_front(sctx, text, &size, part, part_size) < 0)
			return sctx->fault->code;
		if (!depth) {
			dir.ino = ino;
			dir.gen = gen;
			last = part_size + 1;
			continue;
		}
		cached = (const struct name_entry *)sctx->name_cache.newest;
		if (!dir.depth++)
			dir.lowest = sctx->name_cache.newest;
		if (cached && cached->need_later_update && cached->lru.key < dir.until)
			dir.until = cached->lru.key;
	}
	if (dir.depth)
		set_dir_path(sctx, &dir, text + PATH_LIMIT - size, size - last);
	dest->size = size;
	memcpy(dest->text, text + PATH_LIMIT - size, size);
	if (remember && dest != &sctx->cur_inode_path)
		fs_path_copy(&sctx->cur_inode_path, dest);
	return BM_OK;
}

int get_cur_inode_path(struct send_ctx *sctx, const struct fs_path **path)
{
	*path = &sctx->cur_inode_path;
	COUNT(sctx->image, get_cur_inode_path);
	if (TOGGLE(sctx, SEND_CUR_INODE_PATH) && sctx->cur_inode_path.size)
		return BM_OK;
	return get_cur_path(sctx, sctx->cur_ino, sctx->cur_inode_gen, &sctx->cur_inode_path);
}
