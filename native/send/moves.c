// SPDX-License-Identifier: GPL-2.0-only
/*
 * Directories that move or go, but cannot do so yet.
 *
 * Inodes are processed in the order of their numbers, so the rename of a directory may have to wait
 * for that of one with a higher number: because that is to become its ancestor, or because it still
 * has the name. The rename is put off (a pending move, listed under the inode that it waits for)
 * and until then the directory keeps its old path (waiting_dir_move). A directory that was removed
 * but has entries that are still to be processed gets its orphan name (orphan_dir_info).
 */
#include "send/send.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A directory whose rename waits. */
struct pending_dir_move {
	struct pending_dir_move *next;
	uint64_t ino, gen;
	struct dir_refs update_refs; /* whose times change with the rename */
	struct bm_send_item item;    /* has the new name */
};

/* The moves that wait for one inode, in the order in which they came. */
struct pending_list {
	struct lru_entry lru;
	struct pending_dir_move *first, *last;
};

/* ------------------------------------------------------------------------------- can_rmdir -- */

/*
 * Look at the last entry of a directory of the parent snapshot: 1: there is none, 0: there is, its
 * inode is *ino.
 */
static int last_entry(struct send_ctx *sctx, uint64_t dir, uint64_t *ino)
{
	struct bm_key key = {.objectid = dir, .type = BTRFS_DIR_INDEX_KEY, .offset = UINT64_MAX};
	struct bm_path path = alloc_path_for_send(sctx);
	const struct btrfs_dir_item *entry;
	const struct btrfs_disk_key *at;
	uint32_t start = 0;
	int ret = bm_search_slot(&sctx->parent, &key, &path, sctx->fault);

	if (ret < 0)
		return ret;
	/* the inode item of the directory comes before its entries */
	if (ret && path.slot[0]-- == 0)
		return send_errno(sctx, EUCLEAN);
	at = &leaf_item(path.node[0], path.slot[0])->key;
	if (at->objectid != dir || at->type != BTRFS_DIR_INDEX_KEY)
		return 1;
	ret = iterate_dir_item(sctx, path.node[0], path.slot[0], &start, &entry);
	if (ret <= 0)
		return ret < 0 ? ret : 1;
	*ino = entry->location.objectid;
	return 0;
}

/* What is known of a directory after a look at its entries. */
struct dir_scan {
	uint64_t last_index, high_ino;
	bool waits; /* it ended at an entry that waits for its move */
};

/* Go over the entries from an index on: 1: all have been processed. */
static int scan_entries(struct send_ctx *sctx, uint64_t dir, uint64_t dir_gen, uint64_t index,
			struct dir_scan *scan)
{
	struct bm_key key = {.objectid = dir, .type = BTRFS_DIR_INDEX_KEY, .offset = index};
	struct bm_path path = alloc_path_for_send(sctx);
	int ret;

	if (bm_search_slot(&sctx->parent, &key, &path, sctx->fault) < 0)
		return sctx->fault->code;
	while (!(ret = btrfs_get_next_valid_item(sctx, &sctx->parent, &path))) {
		const struct btrfs_disk_key *at = &leaf_item(path.node[0], path.slot[0])->key;
		const struct btrfs_dir_item *entry;
		struct waiting_dir_move *waiting;
		uint32_t start = 0;

		if (at->objectid != dir || at->type != BTRFS_DIR_INDEX_KEY)
			return 1;
		ret = iterate_dir_item(sctx, path.node[0], path.slot[0], &start, &entry);
		if (ret <= 0)
			return ret < 0 ? ret : 1;
		if (entry->location.objectid > scan->high_ino)
			scan->high_ino = entry->location.objectid;
		scan->last_index = at->offset;
		waiting = get_waiting_dir_move(sctx, entry->location.objectid);
		if (waiting) {
			waiting->rmdir_ino = dir;
			waiting->rmdir_gen = dir_gen;
			scan->waits = true;
			return 0;
		}
		if (entry->location.objectid > sctx->cur_ino)
			return 0;
		path.slot[0]++;
	}
	return ret < 0 ? ret : 1;
}

/* Without SEND_RMDIR_RESUME: look at all entries each time; 1: all have been processed. */
static int can_rmdir_from_start(struct send_ctx *sctx, uint64_t dir, uint64_t dir_gen)
{
	struct orphan_dir_info *info;
	struct dir_scan scan = {0};
	int ret = scan_entries(sctx, dir, dir_gen, 0, &scan);

	if (ret)
		return ret;
	/* only one that waits for its move is remembered */
	if (scan.waits)
		return add_orphan_dir_info(sctx, dir, dir_gen) ? 0 : sctx->fault->code;
	info = get_orphan_dir_info(sctx, dir, dir_gen);
	if (info)
		free_orphan_dir_info(sctx, info);
	return 0;
}

int can_rmdir(struct send_ctx *sctx, uint64_t dir, uint64_t dir_gen)
{
	bool look_at_last = TOGGLE(sctx, SEND_RMDIR_LAST_ENTRY);
	struct orphan_dir_info *info;
	struct dir_scan scan = {0};
	int ret = -1;

	COUNT(sctx->image, can_rmdir);
	if (dir == BTRFS_FIRST_FREE_OBJECTID)
		return 0;
	if (!TOGGLE(sctx, SEND_RMDIR_RESUME))
		return can_rmdir_from_start(sctx, dir, dir_gen);
	info = get_orphan_dir_info(sctx, dir, dir_gen);
	/* entries that are still to come are known without a look */
	if (look_at_last && info && sctx->cur_ino < info->dir_high_seq_ino)
		return 0;
	if (look_at_last && !info) {
		ret = last_entry(sctx, dir, &scan.high_ino);
		if (ret)
			return ret;
		if (sctx->cur_ino < scan.high_ino)
			goto remember;
	}
	ret = scan_entries(sctx, dir, dir_gen, info ? info->last_dir_index_offset : 0, &scan);
	if (ret < 0)
		return ret;
	if (ret) {
		if (info)
			free_orphan_dir_info(sctx, info);
		return 1;
	}
remember:
	/* no second descent for one that was found */
	if (!info || !TOGGLE(sctx, SEND_RMDIR_ONE_DESCENT))
		info = add_orphan_dir_info(sctx, dir, dir_gen);
	if (!info)
		return sctx->fault->code;
	info->last_dir_index_offset = scan.last_index;
	if (scan.high_ino > info->dir_high_seq_ino)
		info->dir_high_seq_ino = scan.high_ino;
	return 0;
}

int rmdir_if_possible(struct send_ctx *sctx, uint64_t ino, uint64_t gen, enum bm_send_cause cause,
		      struct bm_send_item item)
{
	struct fs_path path;
	int ret = can_rmdir(sctx, ino, gen);

	if (ret <= 0)
		return ret;
	if (get_cur_path(sctx, ino, gen, &path) < 0)
		return sctx->fault->code;
	because(sctx, cause, ino, item);
	return send_rmdir(sctx, &path) < 0 ? sctx->fault->code : 1;
}

/* --------------------------------------------------------------------------- pending moves -- */

static void free_pending_move(struct pending_dir_move *move)
{
	free(move->update_refs.rows);
	free(move);
}

static int add_waiting_dir_move(struct send_ctx *sctx, uint64_t ino, bool orphanized)
{
	struct waiting_dir_move *waiting;

	if (lru_lookup(&sctx->waiting_dir_moves, ino, 0))
		return send_errno(sctx, EEXIST);
	waiting = calloc(1, sizeof(*waiting));
	if (!waiting)
		return bm_fail(sctx->fault, (struct bm_fault){.code = BM_NOMEM});
	waiting->lru.key = ino;
	waiting->orphanized = orphanized;
	lru_store(&sctx->waiting_dir_moves, &waiting->lru);
	return BM_OK;
}

/* Have `move` wait for `parent_ino`; it is freed on failure. */
static int add_pending_dir_move(struct send_ctx *sctx, struct pending_dir_move *move,
				uint64_t parent_ino, bool is_orphan)
{
	struct pending_list *list;

	if (add_waiting_dir_move(sctx, move->ino, is_orphan) < 0)
		goto fail;
	list = (struct pending_list *)lru_lookup(&sctx->pending_dir_moves, parent_ino, 0);
	if (!list) {
		list = calloc(1, sizeof(*list));
		if (!list) {
			bm_fail(sctx->fault, (struct bm_fault){.code = BM_NOMEM});
			goto fail;
		}
		list->lru.key = parent_ino;
		lru_store(&sctx->pending_dir_moves, &list->lru);
	}
	*(list->last ? &list->last->next : &list->first) = move;
	list->last = move;
	return BM_OK;
fail:
	free_pending_move(move);
	return sctx->fault->code;
}

/* The move of the current inode, with the directories of its deleted and its new names. */
static int wait_for(struct send_ctx *sctx, const struct recorded_ref *ref, uint64_t parent_ino,
		    bool is_orphan)
{
	struct pending_dir_move *move = calloc(1, sizeof(*move));
	const struct recorded_refs *lists[] = {&sctx->deleted_refs, &sctx->new_refs};

	if (!move)
		return bm_fail(sctx->fault, (struct bm_fault){.code = BM_NOMEM});
	move->ino = sctx->cur_ino;
	move->gen = sctx->cur_inode_gen;
	move->item = ref->in.item;
	for (int i = 0; i < 2; i++)
		for (size_t j = 0; j < lists[i]->count; j++)
			if (add_dir_ref(sctx, &move->update_refs, &lists[i]->rows[j].in) < 0) {
				free_pending_move(move);
				return BM_NOMEM;
			}
	return add_pending_dir_move(sctx, move, parent_ino, is_orphan) < 0 ? sctx->fault->code : 1;
}

/* Take the moves that wait for an inode out of the table and put them behind `*last`. */
static void take_pending_dir_moves(struct send_ctx *sctx, uint64_t ino,
				   struct pending_dir_move **first, struct pending_dir_move **last)
{
	struct pending_list *list =
	    (struct pending_list *)lru_lookup(&sctx->pending_dir_moves, ino, 0);

	if (!list)
		return;
	*(*last ? &(*last)->next : first) = list->first;
	*last = list->last;
	lru_remove(&sctx->pending_dir_moves, &list->lru);
}

void free_pending_dir_moves(struct send_ctx *sctx)
{
	while (sctx->pending_dir_moves.oldest) {
		struct pending_dir_move *first = NULL, *last = NULL;

		take_pending_dir_moves(sctx, sctx->pending_dir_moves.oldest->key, &first, &last);
		while (first) {
			struct pending_dir_move *next = first->next;

			free_pending_move(first);
			first = next;
		}
	}
}

/* --------------------------------------------------------------------------------- waiting -- */

int wait_for_dest_dir_move(struct send_ctx *sctx, const struct recorded_ref *ref, bool is_orphan)
{
	const char *name = ref->path + ref->path_size - ref->name_size;
	struct bm_key key = {.objectid = ref->in.dir,
			     .type = BTRFS_DIR_ITEM_KEY,
			     .offset = bm_crc32c(0xfffffffe, name, ref->name_size)};
	const struct btrfs_dir_item *entry;
	struct waiting_dir_move *waiting;
	uint64_t ino, gen, old_gen;
	int ret;

	if (!sctx->waiting_dir_moves.size)
		return 0;
	ret = lookup_name(sctx, &sctx->parent, &key, name, ref->name_size, &entry);
	if (ret < 0 || !entry || entry->location.type != BTRFS_INODE_ITEM_KEY)
		return ret < 0 ? ret : 0;
	ino = entry->location.objectid;
	if (get_inode_gen(sctx, &sctx->parent, ino, &old_gen) < 0)
		return sctx->fault->code;
	ret = find_inode_gen(sctx, &sctx->root, ino, &gen);
	if (ret < 0)
		return ret;
	if (ret || gen != old_gen)
		return 0;
	waiting = get_waiting_dir_move(sctx, ino);
	if (!waiting || waiting->orphanized)
		return 0;
	return wait_for(sctx, ref, ino, is_orphan);
}

/* Whether (ino1, gen1) is (ino2, gen2) or above it by first names. */
static int check_ino_in_path(struct send_ctx *sctx, uint64_t ino1, uint64_t gen1, uint64_t ino2,
			     uint64_t gen2)
{
	uint64_t parent, parent_gen;
	struct fs_path name;

	if (ino1 == ino2)
		return gen1 == gen2;
	for (int depth = 0; ino2 > BTRFS_FIRST_FREE_OBJECTID; depth++, ino2 = parent) {
		name.size = 0;
		if (check_depth(sctx, depth, &sctx->parent, ino2) < 0 ||
		    get_first_ref(sctx, &sctx->parent, ino2, &parent, &parent_gen, &name) < 0)
			return sctx->fault->code;
		if (parent == ino1)
			return parent_gen == gen1;
	}
	return 0;
}

int is_ancestor(struct send_ctx *sctx, uint64_t ino1, uint64_t gen1, uint64_t ino2)
{
	struct bm_key key = {.objectid = ino2, .type = BTRFS_INODE_REF_KEY};
	struct bm_path path = alloc_path_for_send(sctx);
	int ret;

	if (bm_search_slot(&sctx->parent, &key, &path, sctx->fault) < 0)
		return sctx->fault->code;
	while (!(ret = btrfs_get_next_valid_item(sctx, &sctx->parent, &path))) {
		const struct btrfs_disk_key *at = &leaf_item(path.node[0], path.slot[0])->key;
		struct ref_name ref;
		uint32_t start = 0;

		if (at->objectid != ino2 ||
		    (at->type != BTRFS_INODE_REF_KEY && at->type != BTRFS_INODE_EXTREF_KEY))
			return 0;
		while ((ret = iterate_inode_ref(sctx, path.node[0], path.slot[0], &start, &ref)) >
		       0) {
			uint64_t gen;

			if (get_inode_gen(sctx, &sctx->parent, ref.dir, &gen) < 0)
				return sctx->fault->code;
			ret = check_ino_in_path(sctx, ino1, gen1, ref.dir, gen);
			if (ret)
				return ret;
			/* all names of an INODE_REF are in one directory */
			if (at->type == BTRFS_INODE_REF_KEY)
				break;
		}
		if (ret < 0)
			return ret;
		path.slot[0]++;
	}
	return ret < 0 ? ret : 0;
}

/*
 * Whether the directory `ino`, an ancestor to be, will itself move or be renamed later: 1: it will,
 * 0: it will not, 2: it is not in the parent snapshot. *after: its parent in the snapshot.
 */
static int moves_later(struct send_ctx *sctx, const struct dir_ref *at, struct dir_ref *after)
{
	struct fs_path name_before, name_after;
	uint64_t before, gen;
	int ret;

	name_before.size = name_after.size = 0;
	if (get_first_ref(sctx, &sctx->root, at->dir, &after->dir, &after->dir_gen, &name_after) <
	    0)
		return sctx->fault->code;
	COUNT(sctx->image, get_first_ref);
	ret = find_first_ref(sctx, &sctx->parent, at->dir, &before, &name_before);
	if (ret)
		return ret < 0 ? ret : 2;
	if (at->dir <= sctx->cur_ino ||
	    (before == after->dir && name_before.size == name_after.size &&
	     !memcmp(name_before.text, name_after.text, name_after.size)))
		return 0;
	if (get_inode_gen(sctx, &sctx->parent, at->dir, &gen) < 0)
		return sctx->fault->code;
	return gen == at->dir_gen;
}

int wait_for_parent_move(struct send_ctx *sctx, const struct recorded_ref *ref, bool is_orphan)
{
	struct dir_ref at = ref->in, after;
	int ret = 0;

	for (int depth = 0; at.dir > BTRFS_FIRST_FREE_OBJECTID; depth++, at = after) {
		if (check_depth(sctx, depth, &sctx->root, at.dir) < 0)
			return sctx->fault->code;
		if (is_waiting_for_move(sctx, at.dir)) {
			ret = is_ancestor(sctx, sctx->cur_ino, sctx->cur_inode_gen, at.dir);
			if (ret)
				break;
		}
		ret = moves_later(sctx, &at, &after);
		if (ret)
			break;
	}
	if (ret != 1)
		return ret < 0 ? ret : 0;
	return wait_for(sctx, ref, at.dir, is_orphan);
}

/* -------------------------------------------------------------------------------- applying -- */

/* 1: with the present names the directory would be inside itself; *ancestor is what to wait for. */
static int path_loop(struct send_ctx *sctx, uint64_t ino, uint64_t gen, uint64_t *ancestor)
{
	uint64_t start = ino, parent = 0, parent_gen = 0;
	struct fs_path name;

	*ancestor = 0;
	for (int depth = 0; ino != BTRFS_FIRST_FREE_OBJECTID; depth++) {
		int ret;

		name.size = 0;
		if (check_depth(sctx, depth, &sctx->root, ino) < 0)
			return sctx->fault->code;
		if (is_waiting_for_rm(sctx, ino, gen))
			return 0;
		if (is_waiting_for_move(sctx, ino)) {
			if (!*ancestor)
				*ancestor = ino;
			ret = get_first_ref(sctx, &sctx->parent, ino, &parent, &parent_gen, &name);
		} else {
			ret = get_cur_name_and_parent(sctx, ino, gen, &parent, &parent_gen, &name);
			if (ret > 0)
				return 0;
		}
		if (ret < 0)
			return ret;
		if (parent == start) {
			if (!*ancestor)
				*ancestor = ino;
			return 1;
		}
		ino = parent;
		gen = parent_gen;
	}
	return 0;
}

/* The path that a directory has had so far. */
static int path_before_move(struct send_ctx *sctx, const struct pending_dir_move *move,
			    bool is_orphan, struct fs_path *path)
{
	uint64_t parent, parent_gen;
	struct fs_path name;

	path->size = name.size = 0;
	if (is_orphan)
		return gen_unique_name(sctx, move->ino, move->gen, path);
	if (get_first_ref(sctx, &sctx->parent, move->ino, &parent, &parent_gen, &name) < 0 ||
	    get_cur_path(sctx, parent, parent_gen, path) < 0)
		return sctx->fault->code;
	return fs_path_add(sctx, path, name.text, name.size);
}

/* Let the move wait for another inode; it belongs to the table again. */
static int wait_longer(struct send_ctx *sctx, struct pending_dir_move **move, uint64_t ancestor,
		       const struct waiting_dir_move *before)
{
	struct pending_dir_move *again = *move;
	struct waiting_dir_move *waiting;
	uint64_t ino = again->ino;

	*move = NULL;
	again->next = NULL;
	if (add_pending_dir_move(sctx, again, ancestor, before->orphanized) < 0)
		return sctx->fault->code;
	if (before->rmdir_ino) {
		waiting = get_waiting_dir_move(sctx, ino);
		waiting->rmdir_ino = before->rmdir_ino;
		waiting->rmdir_gen = before->rmdir_gen;
	}
	return BM_OK;
}

/* apply_dir_move(); *move becomes NULL where it has to wait again. */
static int apply_dir_move(struct send_ctx *sctx, struct pending_dir_move **pending)
{
	struct pending_dir_move *move = *pending;
	struct waiting_dir_move *found = get_waiting_dir_move(sctx, move->ino), waiting;
	struct orphan_dir_info *info = NULL;
	struct fs_path from, to;
	uint64_t ancestor;
	int ret;

	if (!found)
		return send_errno(sctx, ENOENT);
	waiting = *found;
	lru_remove(&sctx->waiting_dir_moves, &found->lru);
	if (path_before_move(sctx, move, waiting.orphanized, &from) < 0)
		return sctx->fault->code;
	sctx->send_progress = sctx->cur_ino + 1;
	ret = path_loop(sctx, move->ino, move->gen, &ancestor);
	if (ret)
		return ret < 0 ? ret : wait_longer(sctx, pending, ancestor, &waiting);
	because(sctx, BM_SEND_DIR_MOVED_LATER, move->ino, move->item);
	if (get_cur_path(sctx, move->ino, move->gen, &to) < 0 || send_rename(sctx, &from, &to) < 0)
		return sctx->fault->code;
	/* the directory that only waited for this one to leave it */
	if (waiting.rmdir_ino)
		info = get_orphan_dir_info(sctx, waiting.rmdir_ino, waiting.rmdir_gen);
	if (info) {
		ret = rmdir_if_possible(sctx, waiting.rmdir_ino, info->gen, BM_SEND_DIR_LEFT,
					move->item);
		if (ret < 0)
			return ret;
		if (ret && !TOGGLE(sctx, SEND_RMDIR_RESUME))
			free_orphan_dir_info(sctx, info);
	}
	because(sctx, BM_SEND_TIMES_MOVE, move->ino, move->item);
	if (cache_dir_utimes(sctx, move->ino, move->gen) < 0)
		return sctx->fault->code;
	for (size_t i = 0; i < move->update_refs.count; i++) {
		const struct dir_ref *in = &move->update_refs.rows[i];
		struct inode_info info;

		because(sctx, BM_SEND_TIMES_MOVE, in->dir, in->item);
		/* the parent may have been removed meanwhile */
		ret = find_inode_info(sctx, &sctx->root, in->dir, &info);
		if (!ret)
			ret = cache_dir_utimes(sctx, in->dir, in->dir_gen);
		if (ret < 0)
			return ret;
	}
	return BM_OK;
}

int apply_children_dir_moves(struct send_ctx *sctx)
{
	struct pending_dir_move *first = NULL, *last = NULL;
	int ret = BM_OK;

	take_pending_dir_moves(sctx, sctx->cur_ino, &first, &last);
	while (first) {
		struct pending_dir_move *move = first;
		uint64_t progress = sctx->send_progress, ino = move->ino;

		first = move->next;
		if (!first)
			last = NULL;
		if (!ret) {
			ret = apply_dir_move(sctx, &move);
			sctx->send_progress = progress;
			if (!ret)
				take_pending_dir_moves(sctx, ino, &first, &last);
		}
		if (move)
			free_pending_move(move);
	}
	return ret;
}
