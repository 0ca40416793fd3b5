// SPDX-License-Identifier: GPL-2.0-only
/*
 * Is a data extent of a file shared? btrfs_is_data_extent_shared() of the kernel: a backref walk
 * that stops as soon as it has met a second file or a second tree.
 *
 *   data extent   two references of its own (reflinks)          -> shared
 *   leaf          referred to from another tree (a snapshot)    -> shared
 *   node ...      the same, up to the root node, which has one tree
 *
 * Neighbouring extents of a file have the path to the root in common, so its blocks are remembered
 * by level: one call of FIEMAP walks each path once.
 */
#include "backref/backref.h"

static int has(const struct share_context *context, int toggle)
{
	return (context->behaviour & (1ull << toggle)) != 0;
}

/* ------------------------------------------------------------------------------ path cache -- */

/* Sharing is inherited: what is below a shared block is shared. */
static void share_below(struct share_context *context, int level)
{
	while (level-- > 0)
		context->path[level].is_shared = 1;
}

/* 1 when the answer is known. */
static int lookup_backref_shared_cache(struct share_context *context, uint64_t bytenr, int level,
				       int *is_shared)
{
	if (!has(context, BM_TOGGLE_FIEMAP_PATH_CACHE))
		return 0;
	COUNT(context->walk->image, lookup_backref_shared_cache);
	/* no address: the leaf is not known where extent maps are walked */
	if (!bytenr || !context->use_path_cache || level >= BTRFS_MAX_LEVEL ||
	    context->path[level].bytenr != bytenr)
		return 0;
	*is_shared = context->path[level].is_shared;
	if (*is_shared)
		share_below(context, level);
	return 1;
}

static void store_backref_shared_cache(struct share_context *context, uint64_t bytenr, int level,
				       int is_shared)
{
	if (!has(context, BM_TOGGLE_FIEMAP_PATH_CACHE))
		return;
	COUNT(context->walk->image, store_backref_shared_cache);
	if (!context->use_path_cache || level >= BTRFS_MAX_LEVEL)
		return;
	context->path[level] = (struct shared_entry){.bytenr = bytenr, .is_shared = is_shared};
	if (is_shared)
		share_below(context, level);
}

/*
 * There was more than one path, so the cache was not used. Keep the answer where there was one
 * still; forget all levels above.
 */
static void repair_path_cache(struct share_context *context, int level, int ret)
{
	int i = 0;

	if (ret >= 0 && level >= 0) {
		context->use_path_cache = 1;
		store_backref_shared_cache(context, context->path[level].bytenr, level, ret);
		i = level + 1;
	}
	for (; i < BTRFS_MAX_LEVEL; i++)
		context->path[i].bytenr = 0;
}

/* ------------------------------------------------------------------- inside of the walk -- */

int update_share_count(struct walk *walk, int64_t old_count, int64_t new_count,
		       const struct prelim_ref *ref)
{
	struct share_check *share = walk->share;

	if (old_count == 0 && new_count < 1)
		return BM_OK;
	if (old_count > 0 && new_count < 1)
		share->share_count--;
	else if (old_count < 1 && new_count > 0)
		share->share_count++;
	if (ref->root_id == share->context->root_id && ref->wanted == share->data_bytenr &&
	    ref->key.objectid == share->context->inum)
		share->self_ref_count += ref->count;
	return share->share_count > 1 ? BACKREF_FOUND_SHARED : BM_OK;
}

int share_before_resolving(struct walk *walk)
{
	struct share_check *share = walk->share;
	struct share_context *context = share->context;
	int is_shared;

	if (walk->bytenr != share->data_bytenr)
		return BM_OK;
	/* newer than the last snapshot: no other tree can reach it through shared blocks */
	if (has(context, BM_TOGGLE_FIEMAP_SKIP_NEW_EXTENTS) &&
	    share->data_extent_gen > context->last_snapshot)
		return BACKREF_FOUND_NOT_SHARED;
	/* the same leaf as before, and the only file extent item: the path is known */
	if (has(context, BM_TOGGLE_FIEMAP_SKIP_SAME_LEAF) &&
	    context->curr_leaf_bytenr == context->prev_leaf_bytenr && share->self_ref_count == 1 &&
	    lookup_backref_shared_cache(context, context->curr_leaf_bytenr, 0, &is_shared))
		return is_shared ? BACKREF_FOUND_SHARED : BACKREF_FOUND_NOT_SHARED;
	return BM_OK;
}

/* ------------------------------------------------------------------------------ the check -- */

/* How far up a check has come. */
struct ascent {
	const struct ulist_node *node; /* the last block taken from the list of parents */
	int level;		       /* of the path; -1: the data extent */
};

/* One block was found not to be shared by itself: remember that, and go on to the next. */
static int ascend(struct share_check *share, struct ascent *at, size_t parents)
{
	struct share_context *context = share->context;
	struct walk *walk = context->walk;
	int is_shared;

	if (at->level == -1 && has(context, BM_TOGGLE_FIEMAP_NEW_EXTENTS) &&
	    share->data_extent_gen > context->last_snapshot)
		return BACKREF_FOUND_NOT_SHARED;
	if (parents > 1 && (at->level == -1 || has(context, BM_TOGGLE_FIEMAP_MULTIPLE_PATHS)))
		context->use_path_cache = 0;
	if (at->level >= 0)
		store_backref_shared_cache(context, walk->bytenr, at->level, 0);
	at->node = at->node ? at->node->next : walk->refs.head;
	if (!at->node)
		return BACKREF_FOUND_NOT_SHARED;
	walk->bytenr = at->node->val;
	walk->level = at->node->level;
	if (context->use_path_cache || !has(context, BM_TOGGLE_FIEMAP_MULTIPLE_PATHS)) {
		at->level++;
		if (lookup_backref_shared_cache(context, walk->bytenr, at->level, &is_shared))
			return is_shared ? BACKREF_FOUND_SHARED : BACKREF_FOUND_NOT_SHARED;
	}
	share->share_count = 0;
	return BM_OK;
}

/* From the data extent up, until a block is shared or there is none left. */
static int walk_up(struct share_check *share, struct ascent *at)
{
	struct share_context *context = share->context;
	struct walk *walk = context->walk;

	for (;;) {
		size_t before = walk->refs.count;
		int ret = tolerate_enoent(walk, find_parent_nodes(walk));

		if (ret == BACKREF_FOUND_SHARED || ret == BACKREF_FOUND_NOT_SHARED) {
			ret = ret == BACKREF_FOUND_SHARED;
			if (at->level >= 0)
				store_backref_shared_cache(context, walk->bytenr, at->level, ret);
			return ret;
		}
		if (!ret)
			ret = ascend(share, at, walk->refs.count - before);
		if (ret == BACKREF_FOUND_SHARED || ret == BACKREF_FOUND_NOT_SHARED)
			return ret == BACKREF_FOUND_SHARED;
		if (ret)
			return ret;
	}
}

static int check_extent(struct share_context *context, uint64_t bytenr, uint64_t extent_gen)
{
	struct share_check share = {
	    .context = context, .data_bytenr = bytenr, .data_extent_gen = extent_gen};
	struct ascent at = {.level = -1};
	struct walk *walk = context->walk;
	int ret, is_shared;

	context->use_path_cache = 1;
	if (has(context, BM_TOGGLE_FIEMAP_SHARED_LEAF) &&
	    lookup_backref_shared_cache(context, context->curr_leaf_bytenr, 0, &is_shared) &&
	    is_shared)
		return 1;
	arena_release(&walk->lists, (struct arena_mark){0});
	walk->refs = walk->roots = (struct ulist){0};
	walk->want_roots = !has(context, BM_TOGGLE_FIEMAP_NO_ROOTS);
	walk->transaction =
	    forest_is_running(walk->forest) || !has(context, BM_TOGGLE_FIEMAP_JOIN_NO_START);
	walk->bytenr = bytenr;
	walk->level = -1;
	walk->share = &share;
	ret = walk_up(&share, &at);
	walk->share = NULL;
	if (!context->use_path_cache && has(context, BM_TOGGLE_FIEMAP_MULTIPLE_PATHS))
		repair_path_cache(context, at.level - 1, ret);
	if (ret >= 0 && share.self_ref_count > 1 && has(context, BM_TOGGLE_FIEMAP_PREV_EXTENTS)) {
		context->prev_extents[context->prev_extents_slot] =
		    (struct shared_entry){.bytenr = bytenr, .is_shared = ret};
		context->prev_extents_slot =
		    (context->prev_extents_slot + 1) % context->prev_extents_size;
	}
	return ret;
}

int is_data_extent_shared(struct share_context *context, uint64_t bytenr, uint64_t extent_gen)
{
	uint32_t i;
	int ret;

	COUNT(context->walk->image, btrfs_is_data_extent_shared);
	if (has(context, BM_TOGGLE_FIEMAP_PREV_EXTENTS)) {
		for (i = 0; i < context->prev_extents_size; i++)
			if (context->prev_extents[i].bytenr == bytenr)
				return context->prev_extents[i].is_shared;
	}
	ret = check_extent(context, bytenr, extent_gen);
	context->prev_leaf_bytenr = context->curr_leaf_bytenr;
	return ret;
}
