// SPDX-License-Identifier: GPL-2.0-only
/*
 * BTRFS_IOC_SEND of the kernel's send.c.
 *
 * Without a parent snapshot the tree of the snapshot is walked item by item in key order, and every
 * item is new; with one, the trees of both are compared, and only what differs is met. All items of
 * an inode stand together, so the walk meets, inode by inode:
 *
 *   INODE_ITEM         create it under its orphan name
 *   INODE_REF, EXTREF  record its names; they are made when the first other item comes
 *   XATTR_ITEM         SET_XATTR
 *   EXTENT_DATA        WRITE or CLONE
 *   the next inode     finish it: size, owner, mode, capabilities, times
 */
#include "image/pool.h"
#include "send/send.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* objectids that are not inodes: the v1 free space and inode caches */
static const uint64_t free_space_objectid = 0 - (uint64_t)11;
static const uint64_t free_ino_objectid = 0 - (uint64_t)12;

/*
 * Inodes of a turn, of sends that go on side by side: so few that what all of them look at stays in the
 * cache of a processor, and so many that their own state does not come and go too often.
 */
enum { STRIDE = 512 };

/* ------------------------------------------------------------------------------- an inode -- */

static const struct btrfs_inode_item *inode_item(struct send_ctx *sctx, const uint8_t *leaf,
						 uint32_t slot)
{
	uint32_t size = leaf_item(leaf, slot)->size;

	if (size >= sizeof(struct btrfs_inode_item))
		return (const void *)item_data(leaf, slot);
	send_bad_item(sctx, BM_BAD_ITEM_SIZE, leaf, slot, size, sizeof(struct btrfs_inode_item));
	return NULL;
}

/* Take the inode for the current one: as new, as deleted, or (neither) as changed. */
static void set_cur_inode(struct send_ctx *sctx, const struct btrfs_inode_item *item, bool is_new,
			  bool is_deleted)
{
	sctx->cur_inode_gen = item->generation;
	sctx->cur_inode_size = item->size;
	sctx->cur_inode_mode = item->mode;
	sctx->cur_inode_flags = item->flags;
	sctx->cur_inode_new = is_new;
	sctx->cur_inode_deleted = is_deleted;
	if (is_new)
		sctx->cur_inode_rdev = item->rdev;
}

/* The number was used again, or its links went or came: the old inode goes, the new one comes. */
static int replace_inode(struct send_ctx *sctx, const struct btrfs_inode_item *left,
			 const struct btrfs_inode_item *right)
{
	sctx->cur_inode_new_gen = true;
	if (right->nlink || !TOGGLE(sctx, SEND_NLINK_ZERO)) {
		set_cur_inode(sctx, right, false, true);
		if (process_all_refs(sctx, BM_CHANGE_DELETED) < 0)
			return sctx->fault->code;
	}
	if (!left->nlink && TOGGLE(sctx, SEND_NO_LINKS))
		return BM_OK;
	set_cur_inode(sctx, left, true, false);
	because_inode(sctx, BM_SEND_INODE_REPLACED);
	if (send_create_inode_if_needed(sctx) < 0 || process_all_refs(sctx, BM_CHANGE_NEW) < 0)
		return sctx->fault->code;
	sctx->send_progress = sctx->cur_ino + 1;
	if (process_all_extents(sctx) < 0)
		return sctx->fault->code;
	return process_all_new_xattrs(sctx);
}

static int changed_in_both(struct send_ctx *sctx, const struct btrfs_inode_item *left,
			   const struct btrfs_inode_item *right)
{
	bool other_inode =
	    left->generation != right->generation && sctx->cur_ino != BTRFS_FIRST_FREE_OBJECTID;

	if (!TOGGLE(sctx, SEND_NLINK_ZERO)) {
		if (!left->nlink && TOGGLE(sctx, SEND_NO_LINKS)) {
			sctx->ignore_cur_inode = true;
			return btrfs_unlink_all_paths(sctx);
		}
	} else if (!left->nlink && !right->nlink) {
		sctx->ignore_cur_inode = true;
		return BM_OK;
	} else if (!left->nlink || !right->nlink) {
		other_inode = true;
	}
	if (other_inode)
		return replace_inode(sctx, left, right);
	set_cur_inode(sctx, left, false, false);
	return BM_OK;
}

static int changed_inode(struct send_ctx *sctx)
{
	const struct btrfs_inode_item *left = NULL, *right = NULL;

	if (sctx->result != BM_CHANGE_DELETED && !(left = inode_item(sctx, sctx->leaf, sctx->slot)))
		return sctx->fault->code;
	if (sctx->result != BM_CHANGE_NEW &&
	    !(right = inode_item(sctx, sctx->right_leaf, sctx->right_slot)))
		return sctx->fault->code;
	sctx->cur_ino = sctx->key.objectid;
	sctx->inode_change = sctx->result;
	sctx->cur_inode_new_gen = false;
	sctx->cur_inode_last_extent = UINT64_MAX;
	sctx->cur_inode_next_write_offset = 0;
	sctx->cur_inode_path.size = 0;
	sctx->cur_inode_open = false;
	sctx->cur_inode_needs_verity = false;
	sctx->ignore_cur_inode = false;
	sctx->send_progress = sctx->cur_ino;
	if (left && right)
		return changed_in_both(sctx, left, right);
	if (right) {
		set_cur_inode(sctx, right, false, true);
		return BM_OK;
	}
	/* unlinked but open when the snapshot was taken */
	sctx->ignore_cur_inode = !left->nlink && TOGGLE(sctx, SEND_NO_LINKS);
	if (sctx->ignore_cur_inode)
		return BM_OK;
	set_cur_inode(sctx, left, true, false);
	if (sctx->cur_ino == BTRFS_FIRST_FREE_OBJECTID)
		return BM_OK;
	because_inode(sctx, BM_SEND_INODE_NEW);
	return send_create_inode_if_needed(sctx);
}

/* Size, owner, mode and flags of the current inode, where the receiver has others. */
static int finish_attributes(struct send_ctx *sctx)
{
	bool is_link = is_type(sctx->cur_inode_mode, MODE_LNK);
	bool has_its_size = sctx->cur_inode_next_write_offset == sctx->cur_inode_size;
	bool is_new = !has_parent(sctx) || sctx->cur_inode_new;
	bool need_truncate = !has_its_size, need_chown = true, need_chmod = true;
	bool need_fileattr = false;
	struct inode_info info, old;

	if (get_inode_info(sctx, &sctx->root, sctx->cur_ino, &info) < 0)
		return sctx->fault->code;
	if (!is_new) {
		if (get_inode_info(sctx, &sctx->parent, sctx->cur_ino, &old) < 0)
			return sctx->fault->code;
		need_chown = info.uid != old.uid || info.gid != old.gid;
		need_chmod = info.mode != old.mode;
		need_fileattr = info.flags != old.flags;
		need_truncate = old.size != sctx->cur_inode_size &&
				(sctx->cur_inode_size < old.size || !has_its_size);
	}
	if (is_type(sctx->cur_inode_mode, MODE_REG)) {
		if (send_trailing_hole(sctx) < 0)
			return sctx->fault->code;
		because_inode(sctx,
			      need_truncate ? BM_SEND_TRUNCATE_SIZE : BM_SEND_TRUNCATE_ALWAYS);
		/* without it every regular file is truncated to its size */
		if ((need_truncate || !TOGGLE(sctx, SEND_SKIP_TRUNCATE)) &&
		    send_truncate(sctx, sctx->cur_inode_size) < 0)
			return sctx->fault->code;
	}
	because_inode(sctx, is_new ? BM_SEND_OWNER_NEW : BM_SEND_OWNER_CHANGED);
	if (need_chown && send_chown(sctx, info.uid, info.gid) < 0)
		return sctx->fault->code;
	because_of_rule(sctx, is_new ? BM_SEND_MODE_NEW : BM_SEND_MODE_CHANGED);
	if (need_chmod && !is_link && send_chmod(sctx, info.mode) < 0)
		return sctx->fault->code;
	because_of_rule(sctx, BM_SEND_FLAGS_CHANGED);
	return need_fileattr && !is_link ? send_fileattr(sctx, info.flags) : BM_OK;
}

/* Everything of the current inode that comes after its items: attributes, times. */
static int finish_inode(struct send_ctx *sctx)
{
	if (finish_attributes(sctx) < 0)
		return sctx->fault->code;
	if (sctx->args->proto >= 3 && sctx->cur_inode_needs_verity && process_verity(sctx) < 0)
		return sctx->fault->code;
	if (send_capabilities(sctx) < 0)
		return sctx->fault->code;
	/* a directory that waits gets its times when it has been moved */
	if (is_waiting_for_move(sctx, sctx->cur_ino))
		return BM_OK;
	if (apply_children_dir_moves(sctx) < 0)
		return sctx->fault->code;
	sctx->send_progress = sctx->cur_ino + 1;
	because_inode(sctx, BM_SEND_TIMES_INODE);
	/* more names may still come into a directory; an empty one is done */
	if (is_type(sctx->cur_inode_mode, MODE_DIR) && sctx->cur_inode_size > 0 &&
	    TOGGLE(sctx, SEND_UTIMES_CACHE))
		return cache_dir_utimes(sctx, sctx->cur_ino, sctx->cur_inode_gen);
	return send_utimes(sctx, sctx->cur_ino, sctx->cur_inode_gen);
}

/* Make the recorded names when they are complete: with the first item that is none. */
static int process_recorded_refs_if_needed(struct send_ctx *sctx, bool at_end)
{
	bool pending_move = false;

	if (!at_end && sctx->key.objectid == sctx->cur_ino &&
	    sctx->key.type <= BTRFS_INODE_EXTREF_KEY)
		return BM_OK;
	if (!sctx->new_refs.count && !sctx->deleted_refs.count)
		return BM_OK;
	if (process_recorded_refs(sctx, &pending_move) < 0)
		return sctx->fault->code;
	/* until it is moved, a directory that waits has its old path */
	if (!pending_move)
		sctx->send_progress = sctx->cur_ino + 1;
	return BM_OK;
}

static int finish_inode_if_needed(struct send_ctx *sctx, bool at_end)
{
	COUNT(sctx->image, finish_inode_if_needed);
	if (sctx->ignore_cur_inode)
		return BM_OK;
	if (sctx->cur_ino) {
		bool next_inode = at_end || sctx->key.objectid != sctx->cur_ino;

		if (process_recorded_refs_if_needed(sctx, at_end) < 0 ||
		    (next_inode && !sctx->cur_inode_deleted && finish_inode(sctx) < 0))
			return sctx->fault->code;
	}
	return trim_dir_utimes_cache(sctx);
}

/* ----------------------------------------------------------------------------------- walk -- */

static bool is_ref(const struct bm_key *key)
{
	return key->type == BTRFS_INODE_REF_KEY || key->type == BTRFS_INODE_EXTREF_KEY;
}

static int changed_extent(struct send_ctx *sctx)
{
	bool skip = sctx->cur_inode_new_gen || sctx->cur_inode_deleted;

	/* after a relocation the inode is the same, and so are the data */
	if (sctx->cur_ino != sctx->key.objectid && !TOGGLE(sctx, SEND_EXTENT_ALONE)) {
		if (sctx->result == BM_CHANGE_CHANGED && has_only_moved(sctx))
			return BM_OK;
		return send_errno(sctx, EIO);
	}
	if (sctx->cur_ino != sctx->key.objectid || skip || sctx->result == BM_CHANGE_DELETED)
		return BM_OK;
	return process_extent(sctx);
}

static void changed_verity(struct send_ctx *sctx)
{
	bool skip = sctx->cur_inode_new_gen || sctx->cur_inode_deleted;

	if (!skip && sctx->result == BM_CHANGE_NEW)
		sctx->cur_inode_needs_verity = true;
}

static int changed_cb(struct send_ctx *sctx)
{
	int ret;

	COUNT(sctx->image, changed_cb);
	if (sctx->result == BM_CHANGE_SAME) {
		if (sctx->key.type == BTRFS_EXTENT_DATA_KEY)
			return maybe_send_hole(sctx);
		if (!is_ref(&sctx->key))
			return BM_OK;
		/* the same name in another directory of the same number */
		ret = compare_refs(sctx);
		if (ret <= 0)
			return ret;
		sctx->result = BM_CHANGE_CHANGED;
	}
	ret = finish_inode_if_needed(sctx, false);
	if (ret < 0 || sctx->key.objectid == free_ino_objectid ||
	    sctx->key.objectid == free_space_objectid)
		return ret;
	if (sctx->key.type == BTRFS_INODE_ITEM_KEY)
		return changed_inode(sctx);
	if (sctx->ignore_cur_inode)
		return BM_OK;
	if (is_ref(&sctx->key))
		return changed_ref(sctx);
	if (sctx->key.type == BTRFS_XATTR_ITEM_KEY)
		return changed_xattr(sctx);
	if (sctx->key.type == BTRFS_EXTENT_DATA_KEY)
		return changed_extent(sctx);
	if (sctx->key.type == BTRFS_VERITY_DESC_ITEM_KEY && !sctx->key.offset)
		changed_verity(sctx);
	return BM_OK;
}

static void stand_on(struct send_ctx *sctx, const struct bm_step *step)
{
	sctx->key = step->key;
	sctx->result = step->change;
	sctx->leaf = step->left;
	sctx->slot = step->left_slot;
	sctx->right_leaf = step->right;
	sctx->right_slot = step->right_slot;
}

/* Items that are the same in both: most are nothing but counted. */
static int pass_run(struct send_ctx *sctx, const struct bm_run *run)
{
	uint64_t plain = 0, refs = 0;
	int ret = BM_OK;

	for (uint32_t i = 0; i < run->count && ret >= 0; i++) {
		const struct btrfs_disk_key *key = &leaf_item(run->left, run->left_slot + i)->key;
		/* the walk stands on the last one then */
		bool is_plain = i + 1 < run->count && key->type != BTRFS_INODE_EXTREF_KEY;

		if (is_plain && key->type == BTRFS_INODE_REF_KEY) {
			is_plain = is_in_same_dir(sctx, key->offset);
			refs += is_plain;
		} else if (is_plain && key->type == BTRFS_EXTENT_DATA_KEY) {
			is_plain = key->objectid != sctx->cur_ino;
		}
		if (is_plain) {
			plain++;
			continue;
		}
		stand_on(sctx, &(struct bm_step){.key = to_key(key),
						 .change = BM_CHANGE_SAME,
						 .left = run->left,
						 .left_slot = run->left_slot + i,
						 .right = run->right,
						 .right_slot = run->right_slot + i});
		ret = changed_cb(sctx);
	}
	COUNT_N(sctx->image, changed_cb, plain);
	count_same_dirs(sctx, refs);
	return ret < 0 ? ret : BM_OK;
}

static uint64_t lower(const uint8_t *a, const uint8_t *b)
{
	uint64_t left = block_header(a)->bytenr, right = block_header(b)->bytenr;

	return left < right ? left : right;
}

static uint64_t higher(const uint8_t *a, const uint8_t *b)
{
	uint64_t left = block_header(a)->bytenr, right = block_header(b)->bytenr;

	return left < right ? right : left;
}

/* To the leaves of a run, if they are others; what was found out of those before is kept. */
static void set_pair(struct send_ctx *sctx, const uint8_t *left, const uint8_t *right)
{
	struct leaf_pair *pair = &sctx->pair;

	if (pair->left == left && pair->right == right)
		return;
	if (pair->count)
		known_add_runs(sctx->args->known, lower(pair->left, pair->right),
			       higher(pair->left, pair->right), pair->rows, pair->count);
	pair->left = left;
	pair->right = right;
	pair->known =
	    left ? known_runs(sctx->args->known, lower(left, right), higher(left, right)) : NULL;
	pair->next = pair->count = 0;
}

/* bm_compare_run(), from what sends remember for each other. */
static void find_run(struct send_ctx *sctx, struct bm_run *run)
{
	struct leaf_pair *pair = &sctx->pair;
	struct known_run row = {(uint16_t)run->left_slot, (uint16_t)run->right_slot, 0}, *rows;

	set_pair(sctx, run->left, run->right);
	if (block_header(run->left)->bytenr > block_header(run->right)->bytenr) {
		row.low_slot = (uint16_t)run->right_slot;
		row.high_slot = (uint16_t)run->left_slot;
	}
	while (pair->known && pair->next < pair->known->count) {
		const struct known_run *found = &pair->known->rows[pair->next];

		if (found->low_slot == row.low_slot && found->high_slot == row.high_slot) {
			run->count = found->count;
			return;
		}
		if (found->low_slot >= row.low_slot)
			break;
		pair->next++;
	}
	bm_compare_run(run);
	row.count = (uint16_t)run->count;
	rows =
	    pair->known ? NULL : grown(pair->rows, pair->count, &pair->capacity, 64, sizeof(*rows));
	if (!rows)
		return;
	pair->rows = rows;
	rows[pair->count++] = row;
}

/* Compare both trees up to a key of the inode `until`: 1, or 0 at the end. */
static int btrfs_compare_trees(struct send_ctx *sctx, uint64_t until)
{
	struct bm_step step;
	struct bm_run run;
	int ret;

	do {
		ret = bm_compare_step(sctx->compare, &step, sctx->fault);
		if (ret <= 0)
			return ret;
		stand_on(sctx, &step);
		ret = changed_cb(sctx);
		while (ret >= 0 && (run = bm_compare_place(sctx->compare)).count) {
			if (sctx->args->known)
				find_run(sctx, &run);
			else
				bm_compare_run(&run);
			if (!run.count)
				break;
			ret = pass_run(sctx, &run);
			bm_compare_pass(sctx->compare, &run);
		}
		if (ret < 0)
			return ret;
	} while (sctx->key.objectid < until);
	return 1;
}

struct bm_path full_send_path(const struct send_ctx *sctx)
{
	struct bm_path path = alloc_path_for_send(sctx);

	if (TOGGLE(sctx, SEND_READA_ALWAYS))
		path.reada = BM_READA_FORWARD_ALWAYS;
	else if (TOGGLE(sctx, SEND_READA))
		path.reada = BM_READA_FORWARD;
	return path;
}

/* Go over all of the tree up to a key of the inode `until`: 1, or 0 at the end. */
static int full_send_tree(struct send_ctx *sctx, uint64_t until)
{
	struct bm_path *path = &sctx->walk;
	int ret;

	do {
		sctx->leaf = path->node[0];
		sctx->slot = path->slot[0];
		sctx->key = to_key(&leaf_item(sctx->leaf, sctx->slot)->key);
		sctx->result = BM_CHANGE_NEW;
		ret = changed_cb(sctx);
		if (ret < 0)
			return ret;
		COUNT(sctx->image, btrfs_next_old_item);
		if (++path->slot[0] >= block_header(path->node[0])->nritems)
			ret = bm_next_leaf(&sctx->root, path, sctx->fault);
		if (ret)
			return ret < 0 ? ret : 0;
	} while (sctx->key.objectid < until);
	return 1;
}

/* To where the walk over the tree, or over both, starts: 1, or 0 where there is nothing. */
static int start_walk(struct send_ctx *sctx)
{
	struct bm_key first = {.objectid = BTRFS_FIRST_FREE_OBJECTID, .type = BTRFS_INODE_ITEM_KEY};
	int ret;

	if (!has_parent(sctx)) {
		sctx->walk = full_send_path(sctx);
		ret = bm_search_slot_for_read(&sctx->root, &first, 1, &sctx->walk, sctx->fault);
		return ret < 0 ? ret : !ret;
	}
	sctx->compare = bm_compare_create(&sctx->root, &sctx->parent, sctx->fault);
	if (!sctx->compare)
		return sctx->fault->code;
	if (TOGGLE(sctx, SEND_READA_COMPARE))
		bm_compare_read_ahead(sctx->compare);
	return 1;
}

/* SUBVOL or SNAPSHOT, with the name under which the tree of roots has the subvolume. */
static int send_subvol_begin(struct send_ctx *sctx)
{
	const struct bm_root *roots = bm_forest_root(sctx->args->forest, BTRFS_ROOT_TREE_OBJECTID);
	struct bm_key key = {.objectid = sctx->root.objectid, .type = BTRFS_ROOT_BACKREF_KEY};
	const struct bm_send_root *source = NULL, *parent = sctx->args->parent;
	struct bm_path path = alloc_path_for_send(sctx);
	const struct btrfs_root_ref *ref;
	const struct btrfs_item *item;
	int ret;

	for (size_t i = 0; i < sctx->clone_root_count; i++)
		if (sctx->clone_roots[i].root.objectid == sctx->root.objectid)
			source = sctx->clone_roots[i].source;
	if (!roots || !source)
		return send_errno(sctx, ENOENT);
	ret = bm_search_slot_for_read(roots, &key, 1, &path, sctx->fault);
	if (ret < 0)
		return ret;
	item = ret ? NULL : leaf_item(path.node[0], path.slot[0]);
	if (!item || item->key.type != key.type || item->key.objectid != key.objectid)
		return send_errno(sctx, ENOENT);
	ref = (const void *)item_data(path.node[0], path.slot[0]);
	if (item->size < sizeof(*ref) || item->size - sizeof(*ref) < ref->name_len)
		return send_bad_item(sctx, BM_BAD_ITEM_SIZE, path.node[0], path.slot[0], item->size,
				     sizeof(*ref));
	because(sctx, BM_SEND_SUBVOL_BEGIN, BTRFS_FIRST_FREE_OBJECTID, (struct bm_send_item){0});
	if (begin_cmd(sctx, parent ? BTRFS_SEND_C_SNAPSHOT : BTRFS_SEND_C_SUBVOL) < 0 ||
	    tlv_put(sctx, BTRFS_SEND_A_PATH, ref + 1, ref->name_len) < 0 ||
	    tlv_put(sctx, BTRFS_SEND_A_UUID, source->uuid, sizeof(source->uuid)) < 0 ||
	    tlv_put_u64(sctx, BTRFS_SEND_A_CTRANSID, source->ctransid) < 0)
		return sctx->fault->code;
	if (parent &&
	    (tlv_put(sctx, BTRFS_SEND_A_CLONE_UUID, parent->uuid, sizeof(parent->uuid)) < 0 ||
	     tlv_put_u64(sctx, BTRFS_SEND_A_CLONE_CTRANSID, parent->ctransid) < 0))
		return sctx->fault->code;
	return send_cmd(sctx);
}

static int send_header(struct send_ctx *sctx)
{
	uint8_t header[STREAM_HEADER_SIZE] = BTRFS_SEND_STREAM_MAGIC;

	memcpy(header + STREAM_HEADER_SIZE - 4, &sctx->args->proto, 4);
	return hand_out(sctx, header, sizeof(header));
}

/* What comes before the items: as start_walk(). */
static int begin_send(struct send_ctx *sctx)
{
	if (!(sctx->args->flags & BM_SEND_OMIT_STREAM_HEADER) && send_header(sctx) < 0)
		return sctx->fault->code;
	if (send_subvol_begin(sctx) < 0)
		return sctx->fault->code;
	return start_walk(sctx);
}

/* What comes behind the last item. */
static int end_send(struct send_ctx *sctx)
{
	if (sctx->compare && sctx->args->known)
		set_pair(sctx, NULL, NULL);
	if (finish_inode_if_needed(sctx, true) < 0 || flush_dir_utimes(sctx) < 0)
		return sctx->fault->code;
	if (sctx->args->flags & BM_SEND_OMIT_END_CMD)
		return BM_OK;
	because(sctx, BM_SEND_STREAM_END, 0, (struct bm_send_item){0});
	return begin_cmd(sctx, BTRFS_SEND_C_END) < 0 ? BM_NOMEM : send_cmd(sctx);
}

/* One of several sends. */
struct running_send {
	struct send_ctx *sctx; /* NULL: it ended */
	struct bm_fault *fault;
};

static int run_ends(struct running_send *run, int ret)
{
	struct send_ctx *sctx = run->sctx;
	struct bm_fault flush_fault;

	/* a send that fails leaves the commands that it finished before */
	sctx->fault = ret ? &flush_fault : run->fault;
	if (send_flush(sctx) < 0 && !ret)
		ret = run->fault->code;
	send_ctx_deinit(sctx);
	free(sctx);
	run->sctx = NULL;
	/* what another copy of a block had wrong is forgotten */
	run->fault->code = ret;
	return ret;
}

static int run_starts(struct running_send *run, const struct bm_send_args *args,
		      struct bm_fault *fault)
{
	int ret;

	run->fault = fault;
	run->sctx = calloc(1, sizeof(*run->sctx));
	if (!run->sctx)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	ret = send_ctx_init(run->sctx, args, fault);
	if (!ret)
		ret = begin_send(run->sctx);
	if (!ret)
		ret = end_send(run->sctx);
	return ret <= 0 ? run_ends(run, ret) : BM_OK;
}

static int run_goes_on(struct running_send *run, uint64_t until)
{
	struct send_ctx *sctx = run->sctx;
	int ret = has_parent(sctx) ? btrfs_compare_trees(sctx, until) : full_send_tree(sctx, until);

	if (!ret)
		ret = end_send(sctx);
	return ret <= 0 ? run_ends(run, ret) : BM_OK;
}

/* The lowest inode that one of the sends stands on; UINT64_MAX: all ended. */
static uint64_t lowest_inode(const struct running_send *runs, size_t count, bool *goes_on)
{
	uint64_t lowest = UINT64_MAX;

	*goes_on = false;
	for (size_t i = 0; i < count; i++) {
		const struct send_ctx *sctx = runs[i].sctx;

		if (!sctx)
			continue;
		*goes_on = true;
		if (sctx->key.objectid < lowest)
			lowest = sctx->key.objectid;
	}
	return lowest;
}

/* Each send goes on for `stride` inodes, then the next one does, until all ended. */
static int take_turns(struct running_send *runs, const struct bm_send_args *args, size_t count,
		      uint64_t stride, struct bm_fault *faults)
{
	struct bm_image *image = bm_forest_image(args->forest);
	uint64_t *work = image->work, lowest = 0;
	bool goes_on = true;
	int ret = BM_OK;

	for (bool started = false; goes_on && ret != BM_CALLBACK; started = true) {
		uint64_t until = UINT64_MAX - lowest < stride ? UINT64_MAX : lowest + stride;

		for (size_t i = 0; i < count && ret != BM_CALLBACK; i++) {
			image->work = args[i].work ? args[i].work : work;
			if (!started)
				ret = run_starts(&runs[i], &args[i], &faults[i]);
			else if (runs[i].sctx && runs[i].sctx->key.objectid - lowest < stride)
				ret = run_goes_on(&runs[i], until);
		}
		lowest = lowest_inode(runs, count, &goes_on);
	}
	image->work = work;
	return ret == BM_CALLBACK ? ret : BM_OK;
}

int bm_send_side_by_side(const struct bm_send_args *args, size_t count, struct bm_fault *faults)
{
	struct running_send *runs = calloc(count, sizeof(*runs));
	int ret;

	memset(faults, 0, count * sizeof(*faults));
	if (!runs)
		return bm_fail(faults, (struct bm_fault){.code = BM_NOMEM});
	ret = take_turns(runs, args, count, count > 1 ? STRIDE : UINT64_MAX, faults);
	/* where one was told to stop, the others stop, too */
	for (size_t i = 0; i < count; i++)
		if (runs[i].sctx)
			run_ends(&runs[i], BM_CALLBACK);
	free(runs);
	return ret;
}

int bm_send(const struct bm_send_args *args, struct bm_fault *fault)
{
	int ret = bm_send_side_by_side(args, 1, fault);

	return ret < 0 ? ret : fault->code;
}

int bm_send_reads(const struct bm_send_args *args, struct bm_fault *fault)
{
	struct send_ctx *sctx = calloc(1, sizeof(*sctx));
	int ret;

	if (!sctx)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	ret = send_ctx_init(sctx, args, fault);
	if (!ret)
		ret = send_subvol_begin(sctx);
	if (!ret && !has_parent(sctx))
		ret = send_plain_reads(sctx);
	send_ctx_deinit(sctx);
	free(sctx);
	return ret;
}
