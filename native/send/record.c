// SPDX-License-Identifier: GPL-2.0-only
/*
 * Recording names: which names an inode gets and loses, with their paths at that moment.
 *
 * A name that both snapshots have is no change, even when the items that hold it differ.
 */
#include "image/pool.h"
#include "send/send.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Room for one more element of `size` bytes; the array, or NULL. */
static void *grow(struct send_ctx *sctx, void *rows, size_t count, size_t *capacity, size_t size)
{
	rows = grown(rows, count, capacity, 4, size);
	if (!rows)
		bm_fail(sctx->fault, (struct bm_fault){.code = BM_NOMEM});
	return rows;
}

int add_dir_ref(struct send_ctx *sctx, struct dir_refs *refs, const struct dir_ref *ref)
{
	struct dir_ref *rows =
	    grow(sctx, refs->rows, refs->count, &refs->capacity, sizeof(*refs->rows));

	if (!rows)
		return BM_NOMEM;
	refs->rows = rows;
	refs->rows[refs->count++] = *ref;
	return BM_OK;
}

const char *ref_name(const struct recorded_ref *ref)
{
	return ref->path + ref->path_size - ref->name_size;
}

void ref_path(const struct recorded_ref *ref, struct fs_path *path)
{
	memcpy(path->text, ref->path, ref->path_size);
	path->size = ref->path_size;
}

void free_recorded_refs(struct recorded_refs *refs)
{
	while (refs->count)
		free(refs->rows[--refs->count].path);
	free(refs->rows);
	*refs = (struct recorded_refs){0};
}

/* Give a recorded name the path that its directory has now. */
static int set_ref_path(struct send_ctx *sctx, struct recorded_ref *ref, const char *name,
			size_t size)
{
	struct fs_path path;
	char *copy;

	if (get_cur_path(sctx, ref->in.dir, ref->in.dir_gen, &path) < 0 ||
	    fs_path_add(sctx, &path, name, size) < 0)
		return sctx->fault->code;
	/* an inode can have many names, so each takes no more than its length */
	copy = malloc(path.size + 1);
	if (!copy)
		return bm_fail(sctx->fault, (struct bm_fault){.code = BM_NOMEM});
	memcpy(copy, path.text, path.size);
	free(ref->path);
	ref->path = copy;
	ref->path_size = path.size;
	ref->name_size = size;
	return BM_OK;
}

/* refresh_ref_path(), update_ref_path(): an ancestor may have got its orphan name meanwhile. */
int update_ref_path(struct send_ctx *sctx, struct recorded_ref *ref)
{
	struct fs_path name;

	name.size = ref->name_size;
	memcpy(name.text, ref_name(ref), name.size);
	return set_ref_path(sctx, ref, name.text, name.size);
}

static int record_ref(struct send_ctx *sctx, struct recorded_refs *refs, const struct dir_ref *in,
		      const char *name, size_t size)
{
	struct recorded_ref *rows =
	    grow(sctx, refs->rows, refs->count, &refs->capacity, sizeof(*refs->rows));

	if (!rows)
		return BM_NOMEM;
	refs->rows = rows;
	rows[refs->count] = (struct recorded_ref){.in = *in};
	if (set_ref_path(sctx, &rows[refs->count], name, size) < 0)
		return sctx->fault->code;
	refs->count++;
	return BM_OK;
}

/* Take an equal name out of `refs`; whether there was one. */
static bool cancel_ref(struct recorded_refs *refs, const struct dir_ref *in, const char *name,
		       size_t size)
{
	for (size_t i = 0; i < refs->count; i++) {
		struct recorded_ref *ref = &refs->rows[i];

		if (ref->in.dir != in->dir || ref->in.dir_gen != in->dir_gen ||
		    ref->name_size != size || memcmp(ref_name(ref), name, size) != 0)
			continue;
		free(ref->path);
		memmove(ref, ref + 1, (--refs->count - i) * sizeof(*ref));
		return true;
	}
	return false;
}

static int record_ref_if_needed(struct send_ctx *sctx, const struct ref_name *ref, bool is_new,
				struct bm_send_item item)
{
	struct dir_ref in = {.dir = ref->dir, .item = item};

	if (get_inode_gen(sctx, is_new ? &sctx->root : &sctx->parent, ref->dir, &in.dir_gen) < 0)
		return sctx->fault->code;
	/* what is new and deleted stays as it is */
	if (TOGGLE(sctx, SEND_REFS_RBTREE) &&
	    cancel_ref(is_new ? &sctx->deleted_refs : &sctx->new_refs, &in, ref->name, ref->size))
		return BM_OK;
	return record_ref(sctx, is_new ? &sctx->new_refs : &sctx->deleted_refs, &in, ref->name,
			  ref->size);
}

/* A name that the snapshot has. */
static int record_new_ref_if_needed(struct send_ctx *sctx, const struct ref_name *ref,
				    struct bm_send_item item)
{
	return record_ref_if_needed(sctx, ref, true, item);
}

/* A name that the parent snapshot has. */
static int record_deleted_ref_if_needed(struct send_ctx *sctx, const struct ref_name *ref,
					struct bm_send_item item)
{
	return record_ref_if_needed(sctx, ref, false, item);
}

/* 1: the item on the other side has the name too, in the same directory. */
static int find_iref(struct send_ctx *sctx, const struct ref_name *ref, bool is_new)
{
	const uint8_t *leaf = is_new ? sctx->right_leaf : sctx->leaf;
	uint32_t slot = is_new ? sctx->right_slot : sctx->slot, at = 0;
	uint64_t gen, other_gen;
	struct ref_name other;
	int ret;

	if (get_inode_gen(sctx, is_new ? &sctx->root : &sctx->parent, ref->dir, &gen) < 0)
		return sctx->fault->code;
	while ((ret = iterate_inode_ref(sctx, leaf, slot, &at, &other)) > 0) {
		if (other.dir != ref->dir || other.size != ref->size ||
		    memcmp(other.name, ref->name, ref->size) != 0)
			continue;
		if (get_inode_gen(sctx, is_new ? &sctx->parent : &sctx->root, other.dir,
				  &other_gen) < 0)
			return sctx->fault->code;
		if (gen == other_gen)
			return 1;
	}
	return ret;
}

/* Record the names of an item, less those that the item on the other side has, to `compare`. */
static int record_names(struct send_ctx *sctx, const uint8_t *leaf, uint32_t slot, bool is_new,
			bool compare, struct bm_send_item item)
{
	struct ref_name ref;
	uint32_t at = 0;
	int ret;

	while ((ret = iterate_inode_ref(sctx, leaf, slot, &at, &ref)) > 0) {
		ret = compare ? find_iref(sctx, &ref, is_new) : 0;
		if (!ret)
			ret = is_new ? record_new_ref_if_needed(sctx, &ref, item)
				     : record_deleted_ref_if_needed(sctx, &ref, item);
		if (ret < 0)
			return ret;
	}
	return ret;
}

int changed_ref(struct send_ctx *sctx)
{
	/* before v6.0 the names of both items were compared with each other */
	bool compare = sctx->result == BM_CHANGE_CHANGED && !TOGGLE(sctx, SEND_REFS_RBTREE);
	struct bm_send_item item = walk_item(sctx);

	/* "inconsistent snapshot": an item without its inode */
	if (sctx->cur_ino != sctx->key.objectid)
		return send_errno(sctx, EIO);
	if (sctx->cur_inode_new_gen || sctx->cur_ino == BTRFS_FIRST_FREE_OBJECTID)
		return BM_OK;
	if (sctx->result != BM_CHANGE_DELETED &&
	    record_names(sctx, sctx->leaf, sctx->slot, true, compare, item) < 0)
		return sctx->fault->code;
	if (sctx->result != BM_CHANGE_NEW &&
	    record_names(sctx, sctx->right_leaf, sctx->right_slot, false, compare, item) < 0)
		return sctx->fault->code;
	return BM_OK;
}

int record_all_refs(struct send_ctx *sctx, enum bm_change change)
{
	const struct bm_root *root = change == BM_CHANGE_NEW ? &sctx->root : &sctx->parent;
	struct bm_key key = {.objectid = sctx->cur_ino, .type = BTRFS_INODE_REF_KEY};
	struct bm_path path = alloc_path_for_send(sctx);
	int ret;

	if (bm_search_slot(root, &key, &path, sctx->fault) < 0)
		return sctx->fault->code;
	while (!(ret = btrfs_get_next_valid_item(sctx, root, &path))) {
		const struct btrfs_disk_key *at = &leaf_item(path.node[0], path.slot[0])->key;
		struct bm_send_item item = {.objectid = at->objectid,
					    .type = at->type,
					    .offset = at->offset,
					    .change = (uint8_t)change};

		if (at->objectid != key.objectid ||
		    (at->type != BTRFS_INODE_REF_KEY && at->type != BTRFS_INODE_EXTREF_KEY))
			break;
		if (record_names(sctx, path.node[0], path.slot[0], change == BM_CHANGE_NEW, false,
				 item) < 0)
			return sctx->fault->code;
		path.slot[0]++;
	}
	return ret < 0 ? ret : BM_OK;
}

static int dir_changed(struct send_ctx *sctx, uint64_t dir)
{
	uint64_t new_gen, old_gen;

	if (is_in_same_dir(sctx, dir)) {
		count_same_dirs(sctx, 1);
		return 0;
	}
	if (get_inode_gen(sctx, &sctx->root, dir, &new_gen) < 0 ||
	    get_inode_gen(sctx, &sctx->parent, dir, &old_gen) < 0)
		return sctx->fault->code;
	if (new_gen == old_gen)
		sctx->same_dirs[dir % SAME_INODES] = dir;
	return new_gen != old_gen;
}

void count_same_dirs(struct send_ctx *sctx, uint64_t times)
{
	COUNT_N(sctx->image, get_inode_gen, 2 * times);
	COUNT_N(sctx->image, get_inode_info, 2 * times);
	count_searches(&sctx->root, times);
	count_searches(&sctx->parent, times);
}

int compare_refs(struct send_ctx *sctx)
{
	struct ref_name ref;
	uint64_t last = 0;
	uint32_t at = 0;
	int ret;

	if (sctx->key.type == BTRFS_INODE_REF_KEY)
		return dir_changed(sctx, sctx->key.offset);
	while ((ret = iterate_inode_ref(sctx, sctx->leaf, sctx->slot, &at, &ref)) > 0) {
		if (ref.dir == last)
			continue;
		ret = dir_changed(sctx, ref.dir);
		if (ret)
			return ret;
		last = ref.dir;
	}
	return ret;
}

/* Record the names of an item of the parent snapshot, whole paths behind those of the directories. */
static int record_parent_refs(struct send_ctx *sctx, const struct bm_path *at,
			      struct recorded_refs *refs)
{
	struct fs_path whole;
	struct ref_name ref;
	uint32_t start = 0;
	int ret;

	while ((ret = iterate_inode_ref(sctx, at->node[0], at->slot[0], &start, &ref)) > 0) {
		struct dir_ref in = {.dir = ref.dir};

		if (get_inode_path(sctx, &sctx->parent, ref.dir, &whole) < 0 ||
		    fs_path_add(sctx, &whole, ref.name, ref.size) < 0 ||
		    get_inode_gen(sctx, &sctx->parent, ref.dir, &in.dir_gen) < 0 ||
		    record_ref(sctx, refs, &in, whole.text, whole.size) < 0)
			return sctx->fault->code;
	}
	return ret;
}

/*
 * Before v6.1 an inode without links lost every name it had. The kernel puts the whole path in the
 * parent snapshot behind that of the directory.
 */
int btrfs_unlink_all_paths(struct send_ctx *sctx)
{
	struct bm_key key = {.objectid = sctx->cur_ino, .type = BTRFS_INODE_REF_KEY};
	struct bm_path path = alloc_path_for_send(sctx);
	struct recorded_refs refs = {0};
	struct fs_path gone;
	int ret;

	ret = bm_search_slot(&sctx->parent, &key, &path, sctx->fault);
	while (ret >= 0 && !(ret = btrfs_get_next_valid_item(sctx, &sctx->parent, &path))) {
		const struct btrfs_disk_key *at = &leaf_item(path.node[0], path.slot[0])->key;

		if (at->objectid != key.objectid ||
		    (at->type != BTRFS_INODE_REF_KEY && at->type != BTRFS_INODE_EXTREF_KEY))
			break;
		ret = record_parent_refs(sctx, &path, &refs);
		path.slot[0]++;
	}
	because_inode(sctx, BM_SEND_LINKS_GONE);
	for (size_t i = 0; ret >= 0 && i < refs.count; i++) {
		ref_path(&refs.rows[i], &gone);
		ret = send_unlink(sctx, &gone);
	}
	free_recorded_refs(&refs);
	return ret < 0 ? ret : BM_OK;
}
