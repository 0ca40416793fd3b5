// SPDX-License-Identifier: GPL-2.0-only
/*
 * Finding a clone source: a place that the receiver has already and that refers to the same data as
 * the extent that is being sent.
 *
 * The back references of the disk extent are walked. How far that search goes and which place wins
 * has changed often (see the send-clone-* and send-backref-* toggles).
 */
#include "image/pool.h"
#include "send/send.h"

#include <errno.h>
#include <stdlib.h>

struct backref_ctx {
	struct send_ctx *send;
	uint64_t bytenr, pos; /* of the extent, and the byte of it that is sought */
	uint64_t cur_offset;
	uint64_t extent_len;  /* up to the end of the file at most */
	uint64_t data_offset; /* of a compressed extent, where in it the file begins */
	uint64_t backref_owner;
	uint64_t backref_offset;
	uint64_t found;
	bool found_itself;
	bool too_many_refs;
	size_t first_place; /* of this extent */
};

static struct clone_root *find_clone_root(struct send_ctx *sctx, uint64_t root)
{
	size_t low = 0, high = sctx->clone_root_count;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (sctx->clone_roots[mid].root.objectid == root)
			return &sctx->clone_roots[mid];
		if (sctx->clone_roots[mid].root.objectid < root)
			low = mid + 1;
		else
			high = mid;
	}
	return NULL;
}

/* ---------------------------------------------------------------------------------- why -- */

/* Write down a place; what was reported before is not a second one. */
static int note_place(struct backref_ctx *backref, struct bm_send_place place)
{
	struct bm_send_explained *explained = backref->send->args->explained;
	struct bm_send_place *rows;

	if (!explained)
		return BM_OK;
	rows = explained->places;
	for (size_t i = backref->first_place; i < explained->place_count; i++)
		if (rows[i].root == place.root && rows[i].ino == place.ino &&
		    rows[i].offset == place.offset)
			return BM_OK;
	rows = grown(rows, explained->place_count, &explained->place_capacity, 64, sizeof(*rows));
	if (!rows)
		return bm_fail(backref->send->fault, (struct bm_fault){.code = BM_NOMEM});
	place.command = explained->count;
	place.bytenr = backref->bytenr;
	place.pos = backref->pos;
	explained->places = rows;
	rows[explained->place_count++] = place;
	return BM_OK;
}

/* Say of all places what became of them, now that one is chosen, or none. */
static int judge_places(struct backref_ctx *backref, const struct clone_root *chosen)
{
	struct bm_send_explained *explained = backref->send->args->explained;
	uint64_t none = backref->too_many_refs ? BM_SEND_TOO_MANY_REFERENCES : BM_SEND_NOT_A_SOURCE;

	if (explained && explained->place_count == backref->first_place)
		return note_place(backref, (struct bm_send_place){.verdict = none});
	for (size_t i = backref->first_place; explained && i < explained->place_count; i++) {
		struct bm_send_place *place = &explained->places[i];

		if (place->verdict != BM_SEND_OTHER_SOURCE || !chosen ||
		    place->root != chosen->root.objectid)
			continue;
		place->verdict = place->ino == chosen->ino && place->offset == chosen->offset
				     ? BM_SEND_CHOSEN
				     : BM_SEND_OTHER_PLACE;
	}
	return BM_OK;
}

void refuse_chosen_place(struct send_ctx *sctx, enum bm_send_verdict verdict)
{
	struct bm_send_explained *explained = sctx->args->explained;

	for (size_t i = explained ? explained->place_count : 0;
	     i-- > 0 && explained->places[i].command == explained->count;)
		if (explained->places[i].verdict == BM_SEND_CHOSEN)
			explained->places[i].verdict = verdict;
}

/* ------------------------------------------------------------------------------ the search -- */

/* Before v6.2: of each root the reference of the lowest inode counts. */
static void choose_lowest_inode(struct clone_root *clone, const struct backref_ctx *backref,
				uint64_t ino, uint64_t offset)
{
	if (ino < clone->ino) {
		clone->ino = ino;
		clone->offset = offset;
	} else if (ino == clone->ino && clone->offset > offset + backref->extent_len) {
		clone->offset = offset;
	}
}

/* Whether a place of the snapshot that is sent comes before the extent being sent. */
static bool is_sent(const struct backref_ctx *backref, uint64_t ino, uint64_t offset)
{
	const struct send_ctx *sctx = backref->send;

	if (ino != sctx->cur_ino || !TOGGLE(sctx, SEND_CLONE_SAME_FILE))
		return ino < sctx->cur_ino;
	if (!TOGGLE(sctx, SEND_CLONE_SENT_PART))
		return offset < sctx->cur_inode_next_write_offset;
	return offset + backref->extent_len <= sctx->cur_inode_next_write_offset;
}

/* iterate_backrefs(): a place that refers to the extent. 1: none can be better. */
static int iterate_backrefs(uint64_t ino, uint64_t offset, uint64_t num_bytes, uint64_t root,
			    void *context)
{
	struct backref_ctx *backref = context;
	struct send_ctx *sctx = backref->send;
	struct clone_root *clone = find_clone_root(sctx, root);
	struct bm_send_place place = {.root = root,
				      .ino = ino,
				      .offset = offset,
				      .num_bytes = num_bytes,
				      .verdict = BM_SEND_OTHER_SOURCE};
	bool is_itself = false;

	if (!clone)
		return 0;
	if (root == sctx->root.objectid) {
		if (ino == sctx->cur_ino && offset == backref->cur_offset) {
			backref->found_itself = true;
			is_itself = true;
			if (TOGGLE(sctx, SEND_CLONE_LARGEST))
				return 0;
		}
	}
	if (!TOGGLE(sctx, SEND_CLONE_PARTS)) {
		struct inode_info info;

		if (get_inode_info(sctx, &clone->root, ino, &info) < 0)
			return sctx->fault->code;
		if (offset + backref->data_offset + backref->extent_len > info.size) {
			place.verdict = BM_SEND_FILE_TOO_SHORT;
			return note_place(backref, place);
		}
	}
	/* the receiver must have the source already */
	if (root == sctx->root.objectid && !is_sent(backref, ino, offset)) {
		place.verdict = BM_SEND_NOT_SENT_YET;
		return is_itself ? BM_OK : note_place(backref, place);
	}
	if (note_place(backref, place) < 0)
		return sctx->fault->code;
	backref->found++;
	clone->found_ref = true;
	if (!TOGGLE(sctx, SEND_CLONE_LARGEST)) {
		choose_lowest_inode(clone, backref, ino, offset);
	} else if (num_bytes > clone->num_bytes) {
		clone->ino = ino;
		clone->offset = offset;
		clone->num_bytes = num_bytes;
		if (TOGGLE(sctx, SEND_BACKREF_SKIP) && num_bytes >= backref->extent_len)
			return 1;
	}
	return 0;
}

/* Whether the extent being sent is referred to by nobody else (with one clone root: itself). */
static bool is_unshared(const struct send_ctx *sctx, uint64_t refs)
{
	return TOGGLE(sctx, SEND_CLONE_NO_BACKREFS) && refs == 1 && sctx->clone_root_count == 1;
}

static int check_extent_item(uint64_t bytenr, const struct btrfs_extent_item *item, void *context)
{
	struct backref_ctx *backref = context;

	if (bytenr == backref->bytenr) {
		if (item->flags & BTRFS_EXTENT_FLAG_TREE_BLOCK)
			return -EUCLEAN;
		if (is_unshared(backref->send, item->refs))
			return -ENOENT;
	}
	if (item->refs <= backref->send->args->limits.clone_refs)
		return 0;
	backref->too_many_refs = true;
	return -ENOENT;
}

static int skip_self_data_ref(uint64_t root, uint64_t ino, uint64_t offset, void *context)
{
	const struct backref_ctx *backref = context;

	return ino == backref->send->cur_ino && root == backref->backref_owner &&
	       offset == backref->backref_offset;
}

struct backref_entry {
	struct lru_entry lru;
	size_t count;
	uint64_t roots[];
};

static int lookup_backref_cache(uint64_t leaf, void *context, const uint64_t **roots, size_t *count)
{
	struct send_ctx *sctx = ((struct backref_ctx *)context)->send;
	struct backref_entry *entry;

	if (!sctx->backref_cache.size)
		return 0;
	COUNT(sctx->image, btrfs_lru_cache_lookup);
	entry = (struct backref_entry *)lru_lookup(&sctx->backref_cache, leaf, 0);
	if (!entry)
		return 0;
	*roots = entry->roots;
	*count = entry->count;
	return 1;
}

/*
 * Of the roots that reach a leaf, those that may be cloned from are remembered. What is remembered
 * decides what comes next, so the kernel, which does without where there is no memory, is not followed.
 */
static int store_backref_cache(uint64_t leaf, const uint64_t *roots, size_t count, void *context)
{
	struct send_ctx *sctx = ((struct backref_ctx *)context)->send;
	size_t limit = sctx->args->limits.backref_cache_roots;
	struct backref_entry *entry = (struct backref_entry *)lru_alloc(
	    &sctx->backref_cache,
	    sizeof(*entry) + (count < limit ? count : limit) * sizeof(*entry->roots));

	if (!entry)
		return bm_fail(sctx->fault, (struct bm_fault){.code = BM_NOMEM});
	entry->lru.key = leaf;
	entry->lru.generation = 0;
	entry->count = 0;
	for (size_t i = 0; i < count; i++) {
		if (!find_clone_root(sctx, roots[i]))
			continue;
		if (entry->count == limit) {
			free(entry);
			return BM_OK;
		}
		entry->roots[entry->count++] = roots[i];
	}
	COUNT(sctx->image, btrfs_lru_cache_store);
	lru_store(&sctx->backref_cache, &entry->lru);
	return BM_OK;
}

/* The root to clone from: the best of those in which a reference was found. */
static struct clone_root *choose_root(struct send_ctx *sctx, const struct backref_ctx *backref)
{
	struct clone_root *best = NULL;

	for (size_t i = 0; i < sctx->clone_root_count; i++) {
		struct clone_root *clone = &sctx->clone_roots[i];

		if (!clone->found_ref)
			continue;
		if (!TOGGLE(sctx, SEND_CLONE_LARGEST)) {
			if (!best || clone->root.objectid == sctx->root.objectid)
				best = clone;
		} else if (!best || clone->num_bytes > best->num_bytes) {
			best = clone;
			if (clone->num_bytes >= backref->extent_len)
				break;
		}
	}
	return best;
}

/* Whether a search failed with ENOENT, which only means that there is nothing to clone. */
static bool is_enoent(struct send_ctx *sctx, int ret)
{
	if (ret != BM_ERRNO || sctx->fault->found != ENOENT)
		return false;
	sctx->fault->code = BM_OK;
	return true;
}

/*
 * Before v6.2 the extent item is searched by itself first. 1: the extent is not to be cloned.
 */
static int extent_search_says_no(struct backref_ctx *backref)
{
	struct send_ctx *sctx = backref->send;
	uint64_t flags, refs;
	struct bm_key key;
	int ret;

	ret = bm_extent_from_logical(sctx->args->forest, backref->bytenr, sctx->args->behaviour,
				     &key, &flags, &refs, sctx->fault);
	if (is_enoent(sctx, ret))
		return 1;
	if (ret < 0)
		return ret;
	if (flags & BTRFS_EXTENT_FLAG_TREE_BLOCK)
		return send_errno(sctx, EIO);
	backref->too_many_refs = refs > sctx->args->limits.clone_refs;
	return backref->too_many_refs || is_unshared(sctx, refs);
}

/* find_extent_clone(): *found is where to clone the extent from, or NULL. */
int find_extent_clone(struct send_ctx *sctx, const struct file_extent *extent,
		      struct clone_root **found)
{
	uint64_t to_end = sctx->cur_inode_size - extent->start;
	struct backref_ctx backref = {
	    .send = sctx,
	    .bytenr = extent->disk_bytenr,
	    .cur_offset = extent->start,
	    .extent_len = extent->num_bytes < to_end ? extent->num_bytes : to_end,
	    .data_offset = extent->compression ? extent->offset : 0,
	    .backref_owner = block_header(sctx->leaf)->owner,
	    .backref_offset = extent->start - extent->offset,
	    .pos = extent->compression ? 0 : extent->offset,
	    .first_place = sctx->args->explained ? sctx->args->explained->place_count : 0,
	};
	struct bm_backref_walk walk = {
	    .forest = sctx->args->forest,
	    .bytenr = extent->disk_bytenr,
	    .extent_item_pos = backref.pos,
	    .behaviour = sctx->args->behaviour,
	    .known = sctx->args->known,
	    .context = &backref,
	    .iterate = iterate_backrefs,
	};
	int ret;

	COUNT(sctx->image, find_extent_clone);
	*found = NULL;
	if (extent->start >= sctx->cur_inode_size || extent->inline_data || !extent->disk_bytenr)
		return BM_OK;
	for (size_t i = 0; i < sctx->clone_root_count; i++) {
		sctx->clone_roots[i].ino = UINT64_MAX;
		sctx->clone_roots[i].offset = 0;
		sctx->clone_roots[i].num_bytes = 0;
		sctx->clone_roots[i].found_ref = false;
	}
	if (TOGGLE(sctx, SEND_SINGLE_EXTENT_SEARCH)) {
		walk.check_extent_item = check_extent_item;
	} else {
		ret = extent_search_says_no(&backref);
		if (ret)
			return ret < 0 ? ret : judge_places(&backref, NULL);
	}
	if (TOGGLE(sctx, SEND_SKIP_OWN_REF) && sctx->clone_root_count == 1)
		walk.skip_data_ref = skip_self_data_ref;
	if (TOGGLE(sctx, SEND_BACKREF_CACHE)) {
		walk.cache_lookup = lookup_backref_cache;
		walk.cache_store = store_backref_cache;
	}
	ret = bm_iterate_extent_inodes(&walk, sctx->fault);
	if (is_enoent(sctx, ret))
		return judge_places(&backref, NULL);
	if (ret < 0)
		return ret;
	/* before v6.2 the walk had to come by; it cannot where our own reference is skipped */
	if (!TOGGLE(sctx, SEND_CLONE_LARGEST) && !walk.skip_data_ref && !backref.found_itself)
		return send_errno(sctx, EIO);
	if (backref.found)
		*found = choose_root(sctx, &backref);
	return judge_places(&backref, *found);
}
