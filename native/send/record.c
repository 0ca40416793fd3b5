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
static void *grow(struct send_ctx *ctx, void *rows, size_t count, size_t *capacity, size_t size)
{
	rows = grown(rows, count, capacity, 4, size);
	if (!rows)
		bm_fail(ctx->fault, (struct bm_fault){.code = BM_NOMEM});
	return rows;
}

int add_dir_ref(struct send_ctx *ctx, struct dir_refs *refs, const struct dir_ref *ref)
{
	struct dir_ref *rows =
	    grow(ctx, refs->rows, refs->count, &refs->capacity, sizeof(*refs->rows));

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

void free_recorded_refs(struct recorded_refs *refs)
{
	while (refs->count)
		free(refs->rows[--refs->count].path);
	free(refs->rows);
	*refs = (struct recorded_refs){0};
}

/* Give a recorded name the path that its directory has now. */
static int set_ref_path(struct send_ctx *ctx, struct recorded_ref *ref, const char *name,
			size_t size)
{
	struct fs_path path;
	char *copy;

	if (get_cur_path(ctx, ref->in.dir, ref->in.dir_gen, &path) < 0 ||
	    fs_path_add(ctx, &path, name, size) < 0)
		return ctx->fault->code;
	/* an inode can have many names, so each takes no more than its length */
	copy = malloc(path.size + 1);
	if (!copy)
		return bm_fail(ctx->fault, (struct bm_fault){.code = BM_NOMEM});
	memcpy(copy, path.text, path.size);
	free(ref->path);
	ref->path = copy;
	ref->path_size = path.size;
	ref->name_size = size;
	return BM_OK;
}

/* refresh_ref_path(), update_ref_path(): an ancestor may have got its orphan name meanwhile. */
int update_ref_path(struct send_ctx *ctx, struct recorded_ref *ref)
{
	struct fs_path name = {.size = ref->name_size};

	memcpy(name.text, ref_name(ref), name.size);
	return set_ref_path(ctx, ref, name.text, name.size);
}

static int record_ref(struct send_ctx *ctx, struct recorded_refs *refs, const struct dir_ref *in,
		      const char *name, size_t size)
{
	struct recorded_ref *rows =
	    grow(ctx, refs->rows, refs->count, &refs->capacity, sizeof(*refs->rows));

	if (!rows)
		return BM_NOMEM;
	refs->rows = rows;
	rows[refs->count] = (struct recorded_ref){.in = *in};
	if (set_ref_path(ctx, &rows[refs->count], name, size) < 0)
		return ctx->fault->code;
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

/*
 * Without SEND_REFS_RBTREE: whether the item on the other side has an equal name, of
 * the same generation of the directory.
 */
static int find_iref(struct send_ctx *ctx, const struct bm_root *root, const uint8_t *leaf,
		     uint32_t slot, const struct dir_ref *in, const char *name, size_t size)
{
	struct ref_name other;
	uint32_t at = 0;
	uint64_t gen;
	int ret;

	while ((ret = next_ref_name(ctx, leaf, slot, &at, &other)) > 0) {
		if (other.dir != in->dir || other.size != size || memcmp(other.name, name, size))
			continue;
		if (get_inode_gen(ctx, root, other.dir, &gen) < 0)
			return ctx->fault->code;
		if (gen == in->dir_gen)
			return 1;
	}
	return ret;
}

/*
 * Record the names of an item of the snapshot (`is_new`) or of its parent. A name that both have is
 * no change: since v6.0 it cancels one that was recorded for the other side; before, only the two
 * items of a BM_CHANGE_CHANGED were compared.
 */
static int record_item(struct send_ctx *ctx, const uint8_t *leaf, uint32_t slot, bool is_new,
		       bool other_side)
{
	const struct btrfs_disk_key *key = &leaf_item(leaf, slot)->key;
	const struct bm_root *root = is_new ? &ctx->root : &ctx->parent;
	struct recorded_refs *refs = is_new ? &ctx->new_refs : &ctx->deleted_refs;
	struct ref_name ref;
	uint32_t at = 0;
	int ret;

	while ((ret = next_ref_name(ctx, leaf, slot, &at, &ref)) > 0) {
		struct dir_ref in = {.dir = ref.dir,
				     .item = {.objectid = key->objectid,
					      .type = key->type,
					      .offset = key->offset,
					      .change = other_side ? BM_CHANGE_CHANGED
							: is_new   ? BM_CHANGE_NEW
								   : BM_CHANGE_DELETED}};
		uint64_t gen;

		if (get_inode_gen(ctx, root, ref.dir, &gen) < 0)
			return ctx->fault->code;
		in.dir_gen = gen;
		if (TOGGLE(ctx, SEND_REFS_RBTREE)) {
			if (cancel_ref(is_new ? &ctx->deleted_refs : &ctx->new_refs, &in, ref.name,
				       ref.size))
				continue;
		} else if (other_side) {
			ret = find_iref(ctx, is_new ? &ctx->parent : &ctx->root,
					is_new ? ctx->right_leaf : ctx->leaf,
					is_new ? ctx->right_slot : ctx->slot, &in, ref.name,
					ref.size);
			if (ret < 0)
				return ret;
			if (ret)
				continue;
			/* record_ref() of these kernels searches it once more */
			if (get_inode_gen(ctx, root, ref.dir, &gen) < 0)
				return ctx->fault->code;
		}
		if (record_ref(ctx, refs, &in, ref.name, ref.size) < 0)
			return ctx->fault->code;
	}
	return ret;
}

int changed_ref(struct send_ctx *ctx)
{
	bool changed = ctx->result == BM_CHANGE_CHANGED;

	if (ctx->cur_inode_new_gen || ctx->cur_ino == BTRFS_FIRST_FREE_OBJECTID)
		return BM_OK;
	if (ctx->result != BM_CHANGE_DELETED &&
	    record_item(ctx, ctx->leaf, ctx->slot, true, changed) < 0)
		return ctx->fault->code;
	if (ctx->result != BM_CHANGE_NEW &&
	    record_item(ctx, ctx->right_leaf, ctx->right_slot, false, changed) < 0)
		return ctx->fault->code;
	return BM_OK;
}

static int dir_changed(struct send_ctx *ctx, uint64_t dir)
{
	uint64_t new_gen, old_gen;

	if (get_inode_gen(ctx, &ctx->root, dir, &new_gen) < 0 ||
	    get_inode_gen(ctx, &ctx->parent, dir, &old_gen) < 0)
		return ctx->fault->code;
	return new_gen != old_gen;
}

int compare_refs(struct send_ctx *ctx)
{
	struct ref_name ref;
	uint64_t last = 0;
	uint32_t at = 0;
	int ret;

	if (ctx->key.type == BTRFS_INODE_REF_KEY)
		return dir_changed(ctx, ctx->key.offset);
	while ((ret = next_ref_name(ctx, ctx->leaf, ctx->slot, &at, &ref)) > 0) {
		if (ref.dir == last)
			continue;
		ret = dir_changed(ctx, ref.dir);
		if (ret)
			return ret;
		last = ref.dir;
	}
	return ret;
}

int process_all_refs(struct send_ctx *ctx, enum bm_change change)
{
	const struct bm_root *root = change == BM_CHANGE_NEW ? &ctx->root : &ctx->parent;
	struct bm_key key = {.objectid = ctx->key.objectid, .type = BTRFS_INODE_REF_KEY};
	struct bm_path path = send_path(ctx);
	bool pending_move = false;
	int ret;

	if (bm_search_slot(root, &key, &path, ctx->fault) < 0)
		return ctx->fault->code;
	while (!(ret = next_valid_item(ctx, root, &path))) {
		const struct btrfs_disk_key *at = &leaf_item(path.node[0], path.slot[0])->key;

		if (at->objectid != key.objectid ||
		    (at->type != BTRFS_INODE_REF_KEY && at->type != BTRFS_INODE_EXTREF_KEY))
			break;
		ret = record_item(ctx, path.node[0], path.slot[0], change == BM_CHANGE_NEW, false);
		if (ret < 0)
			return ret;
		path.slot[0]++;
	}
	/* the inode is created again, so nothing has to wait */
	return ret < 0 ? ret : process_recorded_refs(ctx, &pending_move);
}

/* btrfs_unlink_all_paths(): before v6.1 an inode without links lost every name it had. */
int unlink_all_paths(struct send_ctx *ctx)
{
	struct bm_key key = {.objectid = ctx->cur_ino, .type = BTRFS_INODE_REF_KEY};
	struct bm_path path = send_path(ctx);
	int ret;

	because_inode(ctx, BM_SEND_LINKS_GONE);
	ret = bm_search_slot(&ctx->parent, &key, &path, ctx->fault);
	while (ret >= 0 && !(ret = next_valid_item(ctx, &ctx->parent, &path))) {
		const struct btrfs_disk_key *at = &leaf_item(path.node[0], path.slot[0])->key;
		struct ref_name ref;
		uint32_t start = 0;

		if (at->objectid != key.objectid ||
		    (at->type != BTRFS_INODE_REF_KEY && at->type != BTRFS_INODE_EXTREF_KEY))
			break;
		while ((ret = next_ref_name(ctx, path.node[0], path.slot[0], &start, &ref)) > 0) {
			struct fs_path directory;

			ret = get_inode_path(ctx, &ctx->parent, ref.dir, &directory);
			if (!ret)
				ret = fs_path_add(ctx, &directory, ref.name, ref.size);
			if (!ret)
				ret = send_path_only(ctx, BTRFS_SEND_C_UNLINK, &directory);
			if (ret < 0)
				break;
		}
		path.slot[0]++;
	}
	return ret < 0 ? ret : BM_OK;
}
