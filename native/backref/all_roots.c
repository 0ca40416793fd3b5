// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which subvolumes reach extents, before and after a change: what quota groups count by.
 *
 * btrfs_find_all_roots() walks up anew for each extent. Here what reaches a tree block is found out
 * once, so that an extent of data takes a look at its item and one search. Sets of subvolumes are
 * numbered, equal ones have one number, and the bytes of the extents are added up by pairs of sets.
 */
#include "backref/backref.h"

#include "image/pool.h"

#include <stdlib.h>
#include <string.h>

/* The number of the set that is empty. */
enum { EMPTY = 0, RECENT = 64 };

struct set {
	size_t first; /* of its ids in sets.ids */
	size_t count;
};

struct sets {
	uint64_t *ids; /* of all sets, each ascending */
	size_t id_count, id_capacity;
	struct set *all;
	size_t count, capacity;
	uint32_t *table; /* numbers, by hash of the ids; 0: free */
	size_t mask;
	uint64_t *merged; /* room for a union */
	size_t merged_capacity;
	struct {
		uint32_t a, b, both;
	} recent[RECENT]; /* unions that were made */
};

/* A reference as the extent tree has it. */
struct extent_ref {
	uint64_t value; /* root, or the block that refers */
	uint64_t ino, offset;
	uint32_t count;
	uint8_t type;
};

/* The state of a filesystem at one time, and what is known of its blocks. */
struct state {
	const struct bm_forest *forest;
	struct sets *sets;
	struct bm_image *image;
	struct bm_fault *fault;
	uint64_t *blocks; /* addresses of blocks whose set is known; 0: free */
	uint32_t *known;  /* their sets */
	size_t mask, block_count;
	struct extent_ref *refs; /* of the extents between here and the top */
	size_t ref_count, ref_capacity;
};

static int fail_nomem(struct bm_fault *fault)
{
	return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
	hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
	return hash ^ hash >> 29;
}

/* --------------------------------------------------------------------------------------- sets -- */

static size_t set_slot(const struct sets *sets, const uint64_t *ids, size_t count)
{
	uint64_t hash = count;

	for (size_t i = 0; i < count; i++)
		hash = mix(hash, ids[i]);
	return (size_t)(hash >> 8) & sets->mask;
}

static int grow_sets(struct sets *sets)
{
	size_t size = sets->table ? (sets->mask + 1) * 2 : 256;
	uint32_t *table;

	if (sets->table && sets->count * 2 < sets->mask)
		return BM_OK;
	table = calloc(size, sizeof(*table));
	if (!table)
		return BM_NOMEM;
	free(sets->table);
	sets->table = table;
	sets->mask = size - 1;
	for (uint32_t number = 1; number < sets->count; number++) {
		const struct set *set = &sets->all[number];
		size_t slot = set_slot(sets, sets->ids + set->first, set->count);

		while (table[slot])
			slot = (slot + 1) & sets->mask;
		table[slot] = number;
	}
	return BM_OK;
}

/* The number of the set of these ids; negative: no memory. */
static int64_t number_of(struct sets *sets, const uint64_t *ids, size_t count)
{
	size_t slot;
	struct set *all;

	if (!count)
		return EMPTY;
	if (grow_sets(sets) < 0)
		return BM_NOMEM;
	for (slot = set_slot(sets, ids, count); sets->table[slot]; slot = (slot + 1) & sets->mask) {
		const struct set *set = &sets->all[sets->table[slot]];

		if (set->count == count &&
		    !memcmp(sets->ids + set->first, ids, count * sizeof(*ids)))
			return sets->table[slot];
	}
	all = grown(sets->all, sets->count, &sets->capacity, 64, sizeof(*all));
	if (!all)
		return BM_NOMEM;
	sets->all = all;
	for (size_t i = 0; i < count; i++) {
		uint64_t *room =
		    grown(sets->ids, sets->id_count + i, &sets->id_capacity, 256, sizeof(*room));

		if (!room)
			return BM_NOMEM;
		sets->ids = room;
		sets->ids[sets->id_count + i] = ids[i];
	}
	all[sets->count] = (struct set){sets->id_count, count};
	sets->id_count += count;
	sets->table[slot] = (uint32_t)sets->count;
	return (int64_t)sets->count++;
}

static int64_t set_union(struct sets *sets, uint32_t a, uint32_t b)
{
	size_t slot = (size_t)(mix(a, b) >> 8) % RECENT, i = 0, j = 0, count = 0;
	int64_t both;

	if (a == b || b == EMPTY)
		return a;
	if (a == EMPTY)
		return b;
	if (sets->recent[slot].a == a && sets->recent[slot].b == b)
		return sets->recent[slot].both;
	if (sets->merged_capacity < sets->all[a].count + sets->all[b].count) {
		size_t wanted = 2 * (sets->all[a].count + sets->all[b].count);
		uint64_t *merged = realloc(sets->merged, wanted * sizeof(*merged));

		if (!merged)
			return BM_NOMEM;
		sets->merged = merged;
		sets->merged_capacity = wanted;
	}
	while (i < sets->all[a].count || j < sets->all[b].count) {
		const uint64_t *left = sets->ids + sets->all[a].first;
		const uint64_t *right = sets->ids + sets->all[b].first;

		if (j == sets->all[b].count || (i < sets->all[a].count && left[i] < right[j])) {
			sets->merged[count++] = left[i++];
		} else {
			i += i < sets->all[a].count && left[i] == right[j];
			sets->merged[count++] = right[j++];
		}
	}
	both = number_of(sets, sets->merged, count);
	if (both >= 0) {
		sets->recent[slot].a = a;
		sets->recent[slot].b = b;
		sets->recent[slot].both = (uint32_t)both;
	}
	return both;
}

static int sets_init(struct sets *sets)
{
	sets->all = grown(NULL, 0, &sets->capacity, 64, sizeof(*sets->all));
	if (!sets->all || grow_sets(sets) < 0)
		return BM_NOMEM;
	sets->all[EMPTY] = (struct set){0, 0};
	sets->count = 1;
	return BM_OK;
}

static void sets_destroy(struct sets *sets)
{
	free(sets->all);
	free(sets->table);
	free(sets->merged);
	free(sets->ids);
}

/* -------------------------------------------------------------------------- blocks that are known -- */

static int grow_known(struct state *state)
{
	size_t size = state->blocks ? (state->mask + 1) * 2 : 1024, old = size / 2;
	uint64_t *blocks = state->blocks;
	uint32_t *known = state->known;

	if (blocks && state->block_count * 2 < state->mask)
		return BM_OK;
	state->blocks = calloc(size, sizeof(*blocks));
	state->known = calloc(size, sizeof(*known));
	if (state->blocks && state->known) {
		state->mask = size - 1;
		for (size_t i = 0; blocks && i < old; i++) {
			size_t slot = (size_t)(mix(0, blocks[i]) >> 8) & state->mask;

			if (!blocks[i])
				continue;
			while (state->blocks[slot])
				slot = (slot + 1) & state->mask;
			state->blocks[slot] = blocks[i];
			state->known[slot] = known[i];
		}
	}
	free(blocks);
	free(known);
	return state->blocks && state->known ? BM_OK : BM_NOMEM;
}

/* Where a block is in the table, or would be. */
static size_t known_slot(const struct state *state, uint64_t bytenr)
{
	size_t slot = (size_t)(mix(0, bytenr) >> 8) & state->mask;

	while (state->blocks[slot] && state->blocks[slot] != bytenr)
		slot = (slot + 1) & state->mask;
	return slot;
}

/* ---------------------------------------------------------------- what the extent tree says -- */

/* What an extent is: a tree block of a level, or data. */
struct extent {
	uint64_t bytenr;
	int level; /* -1: data */
};

static int fail_item(struct state *state, const struct bm_path *path, int code, uint64_t found,
		     uint64_t wanted)
{
	return bm_fail(state->fault, (struct bm_fault){.code = code,
						       .tree = BTRFS_EXTENT_TREE_OBJECTID,
						       .block = block_header(path->node[0])->bytenr,
						       .slot = path->slot[0],
						       .found = found,
						       .wanted = wanted});
}

/* The bytes of a reference within its item or of its item, behind the type; negative: no reference. */
static int ref_size(uint8_t type, int is_inline)
{
	switch (type) {
	case BTRFS_TREE_BLOCK_REF_KEY:
	case BTRFS_SHARED_BLOCK_REF_KEY:
	case BTRFS_EXTENT_OWNER_REF_KEY:
		return is_inline ? (int)sizeof(uint64_t) : 0;
	case BTRFS_EXTENT_DATA_REF_KEY:
		return sizeof(struct btrfs_extent_data_ref);
	case BTRFS_SHARED_DATA_REF_KEY:
		return (is_inline ? (int)sizeof(uint64_t) : 0) +
		       (int)sizeof(struct btrfs_shared_data_ref);
	default:
		return -1;
	}
}

static int add_ref(struct state *state, uint8_t type, uint64_t value, const uint8_t *data)
{
	struct extent_ref *refs =
	    grown(state->refs, state->ref_count, &state->ref_capacity, 64, sizeof(*refs));
	struct extent_ref *ref;

	if (!refs)
		return fail_nomem(state->fault);
	state->refs = refs;
	ref = &refs[state->ref_count++];
	*ref = (struct extent_ref){.type = type, .value = value};
	if (type == BTRFS_EXTENT_DATA_REF_KEY) {
		const struct btrfs_extent_data_ref *item = (const void *)data;

		ref->value = item->root;
		ref->ino = item->objectid;
		ref->offset = item->offset;
		ref->count = item->count;
	}
	return BM_OK;
}

static int add_inline_refs(struct state *state, const struct bm_path *path, uint32_t at)
{
	const uint8_t *data = item_data(path->node[0], path->slot[0]);
	uint32_t end = leaf_item(path->node[0], path->slot[0])->size;

	while (at < end) {
		uint8_t type = data[at++];
		int size = ref_size(type, 1);
		uint64_t value = 0;

		if (size < 0)
			return fail_item(state, path, BM_BAD_VALUE, type, 0);
		if (end - at < (uint32_t)size)
			return fail_item(state, path, BM_BAD_ITEM_SIZE, end, at + (uint32_t)size);
		memcpy(&value, data + at, sizeof(value));
		if (add_ref(state, type, value, data + at) < 0)
			return state->fault->code;
		at += (uint32_t)size;
	}
	return BM_OK;
}

static int add_keyed_refs(struct state *state, const struct bm_root *root, struct bm_path *path,
			  uint64_t bytenr)
{
	for (;;) {
		const struct btrfs_item *item;
		int size, ret;

		if (++path->slot[0] >= block_header(path->node[0])->nritems) {
			ret = bm_next_leaf(root, path, state->fault);
			if (ret)
				return ret < 0 ? ret : BM_OK;
		}
		item = leaf_item(path->node[0], path->slot[0]);
		if (item->key.objectid != bytenr || item->key.type > BTRFS_SHARED_DATA_REF_KEY)
			return BM_OK;
		size = ref_size(item->key.type, 0);
		if (size < 0)
			return fail_item(state, path, BM_BAD_VALUE, item->key.type, 0);
		if (item->size != (uint32_t)size)
			return fail_item(state, path, BM_BAD_ITEM_SIZE, item->size, (uint32_t)size);
		if (add_ref(state, item->key.type, item->key.offset,
			    item_data(path->node[0], path->slot[0])) < 0)
			return state->fault->code;
	}
}

/* All references of an extent behind those in state->refs; 1: there is no such extent. */
static int collect_refs(struct state *state, struct extent *extent)
{
	const struct bm_root *root = bm_forest_root(state->forest, BTRFS_EXTENT_TREE_OBJECTID);
	struct bm_key key = {
	    .objectid = extent->bytenr, .type = BTRFS_METADATA_ITEM_KEY, .offset = UINT64_MAX};
	uint32_t at = sizeof(struct btrfs_extent_item);
	const struct btrfs_extent_item *item;
	struct bm_path path = {0};
	uint32_t size;
	int ret = bm_search_slot_for_read(root, &key, 0, &path, state->fault);

	if (ret)
		return ret;
	key = to_key(&leaf_item(path.node[0], path.slot[0])->key);
	if (key.objectid != extent->bytenr ||
	    (key.type != BTRFS_EXTENT_ITEM_KEY && key.type != BTRFS_METADATA_ITEM_KEY))
		return 1;
	size = leaf_item(path.node[0], path.slot[0])->size;
	item = (const void *)item_data(path.node[0], path.slot[0]);
	if (size < at)
		return fail_item(state, &path, BM_BAD_ITEM_SIZE, size, at);
	extent->level = -1;
	if (key.type == BTRFS_METADATA_ITEM_KEY) {
		extent->level = key.offset < BTRFS_MAX_LEVEL ? (int)key.offset : BTRFS_MAX_LEVEL;
	} else if (item->flags & BTRFS_EXTENT_FLAG_TREE_BLOCK) {
		const struct btrfs_tree_block_info *info = (const void *)(item + 1);

		at += sizeof(*info);
		if (size < at)
			return fail_item(state, &path, BM_BAD_ITEM_SIZE, size, at);
		extent->level = info->level;
	}
	if (extent->level >= BTRFS_MAX_LEVEL)
		return fail_item(state, &path, BM_BAD_LEVEL, (uint64_t)extent->level, 0);
	if (add_inline_refs(state, &path, at) < 0)
		return state->fault->code;
	return add_keyed_refs(state, root, &path, extent->bytenr);
}

/* ----------------------------------------------------------------------------- from the extent up -- */

static int64_t roots_of(struct state *state, uint64_t bytenr, int level);

/* What reaches `bytenr`, and is in the set *set, reaches what is sought as well. */
static int add_block(struct state *state, uint64_t bytenr, int level, uint32_t *set)
{
	int64_t more = roots_of(state, bytenr, level);

	if (more >= 0)
		more = set_union(state->sets, *set, (uint32_t)more);
	if (more == BM_NOMEM)
		return fail_nomem(state->fault);
	if (more < 0)
		return (int)more;
	*set = (uint32_t)more;
	return BM_OK;
}

/*
 * A reference by a tree: the block above is found by the first key, as the block has it now. That in
 * the extent item of an old filesystem is the one it was allocated with.
 */
static int add_tree_ref(struct state *state, const struct bm_root *root,
			const struct extent *extent, uint32_t *set)
{
	struct bm_path path = {.lowest_level = extent->level + 1};
	struct bm_key key;
	const uint8_t *block;

	if (root->bytenr == extent->bytenr) {
		int64_t own = number_of(state->sets, &root->objectid, 1);

		own = own < 0 ? own : set_union(state->sets, *set, (uint32_t)own);
		if (own < 0)
			return fail_nomem(state->fault);
		*set = (uint32_t)own;
		return BM_OK;
	}
	if (extent->level >= root->level)
		return BM_OK;
	block = read_tree_block(state->image, extent->bytenr, 0, extent->level, root->objectid,
				state->fault);
	if (!block)
		return state->fault->code;
	if (!block_header(block)->nritems)
		return BM_OK;
	key = to_key(block_key(block, 0));
	if (bm_search_slot(root, &key, &path, state->fault) < 0)
		return state->fault->code;
	block = path.node[extent->level + 1];
	if (path.slot[extent->level + 1] >= block_header(block)->nritems ||
	    node_ptr(block, path.slot[extent->level + 1])->blockptr != extent->bytenr)
		return BM_OK;
	return add_block(state, block_header(block)->bytenr, extent->level + 1, set);
}

/* Whether a leaf refers to the extent itself, so that its items do not count as its tree's. */
static int is_shared_by(const struct state *state, size_t first, size_t end, uint64_t leaf)
{
	for (size_t i = first; i < end; i++)
		if (state->refs[i].type == BTRFS_SHARED_DATA_REF_KEY &&
		    state->refs[i].value == leaf)
			return 1;
	return 0;
}

/* A reference by file extent items of an inode in a tree: leaves of this tree's own hold them. */
static int add_data_ref(struct state *state, const struct bm_root *root,
			const struct extent *extent, const struct extent_ref *ref, size_t first,
			size_t end, uint32_t *set)
{
	struct bm_key key = {.objectid = ref->ino,
			     .type = BTRFS_EXTENT_DATA_KEY,
			     .offset = ref->offset > INT64_MAX ? 0 : ref->offset};
	struct bm_path path = {0};
	const uint8_t *added = NULL, *skipped = NULL;
	uint32_t count = 0;

	if (bm_search_slot(root, &key, &path, state->fault) < 0)
		return state->fault->code;
	for (; count < ref->count; path.slot[0]++) {
		const struct btrfs_file_extent_item *item;
		const struct btrfs_item *found;
		const uint8_t *leaf;

		if (path.slot[0] >= block_header(path.node[0])->nritems) {
			int ret = bm_next_leaf(root, &path, state->fault);

			if (ret)
				return ret < 0 ? ret : BM_OK;
		}
		leaf = path.node[0];
		found = leaf_item(leaf, path.slot[0]);
		if (found->key.objectid != ref->ino || found->key.type != BTRFS_EXTENT_DATA_KEY)
			return BM_OK;
		if (leaf == skipped)
			continue;
		item = (const void *)item_data(leaf, path.slot[0]);
		if (found->size < sizeof(*item) || item->disk_bytenr != extent->bytenr ||
		    found->key.offset - item->offset != ref->offset)
			continue;
		if (leaf != added &&
		    (block_header(leaf)->owner != ref->value ||
		     is_shared_by(state, first, end, block_header(leaf)->bytenr))) {
			skipped = leaf;
			continue;
		}
		count++;
		if (leaf != added && add_block(state, block_header(leaf)->bytenr, 0, set) < 0)
			return state->fault->code;
		added = leaf;
	}
	return BM_OK;
}

/* is_fstree() */
static int is_subvolume(uint64_t id)
{
	return id == BTRFS_FS_TREE_OBJECTID || (id >= BTRFS_FIRST_FREE_OBJECTID && !(id >> 48));
}

static int add_by_ref(struct state *state, const struct extent *extent, size_t at, size_t first,
		      size_t end, uint32_t *set)
{
	/* the array may move */
	struct extent_ref ref = state->refs[at];
	int is_tree = ref.type == BTRFS_TREE_BLOCK_REF_KEY;
	const struct bm_root *root;

	if (ref.type == BTRFS_EXTENT_OWNER_REF_KEY)
		return BM_OK;
	if (ref.type == BTRFS_SHARED_BLOCK_REF_KEY || ref.type == BTRFS_SHARED_DATA_REF_KEY)
		return ref.value == extent->bytenr
			   ? BM_OK
			   : add_block(state, ref.value, extent->level + 1, set);
	root = is_subvolume(ref.value) ? bm_forest_root(state->forest, ref.value) : NULL;
	if (!root)
		return BM_OK;
	return is_tree ? add_tree_ref(state, root, extent, set)
		       : add_data_ref(state, root, extent, &ref, first, end, set);
}

/* The number of the set of subvolumes that reach a block of this level; -1: an extent of data. */
static int64_t roots_of(struct state *state, uint64_t bytenr, int level)
{
	struct extent extent = {.bytenr = bytenr};
	size_t first = state->ref_count, end, slot;
	uint32_t set = EMPTY;
	int ret;

	slot = known_slot(state, bytenr);
	if (state->blocks[slot])
		return state->known[slot];
	ret = collect_refs(state, &extent);
	end = state->ref_count;
	/* a level more with each step ends any walk */
	if (!ret && level >= 0 && extent.level != level)
		ret = bm_fail(state->fault, (struct bm_fault){.code = BM_BAD_LEVEL,
							      .tree = BTRFS_EXTENT_TREE_OBJECTID,
							      .block = bytenr,
							      .found = (uint64_t)extent.level,
							      .wanted = (uint64_t)level});
	for (size_t at = first; !ret && at < end; at++)
		ret = add_by_ref(state, &extent, at, first, end, &set);
	state->ref_count = first;
	if (ret < 0)
		return ret;
	if (ret || extent.level < 0)
		return set;
	if (grow_known(state) < 0)
		return fail_nomem(state->fault);
	slot = known_slot(state, bytenr);
	state->blocks[slot] = bytenr;
	state->known[slot] = set;
	state->block_count++;
	return set;
}

/* ------------------------------------------------------------------------------------ the account -- */

/* Add the bytes of an extent to those of its pair. */
static int add_bytes(struct bm_account *account, uint32_t before, uint32_t now, uint64_t bytes)
{
	struct bm_account_row *rows = account->rows;

	/* there are few pairs, and mostly the last one comes again */
	for (size_t i = account->row_count; i-- > 0;) {
		if (rows[i].before == before && rows[i].now == now) {
			rows[i].bytes += bytes;
			return BM_OK;
		}
	}
	rows = grown(rows, account->row_count, &account->row_capacity, 16, sizeof(*rows));
	if (!rows)
		return BM_NOMEM;
	account->rows = rows;
	rows[account->row_count++] = (struct bm_account_row){before, now, bytes};
	return BM_OK;
}

static int state_init(struct state *state, const struct bm_forest *forest, struct sets *sets,
		      struct bm_fault *fault)
{
	*state = (struct state){.forest = forest, .sets = sets, .fault = fault};
	if (!forest)
		return BM_OK;
	state->image = bm_forest_image(forest);
	return grow_known(state) < 0 ? fail_nomem(fault) : BM_OK;
}

static void state_destroy(struct state *state)
{
	free(state->blocks);
	free(state->known);
	free(state->refs);
}

/* The sets become the account's. */
static int give_sets(struct bm_account *account, struct sets *sets, struct bm_fault *fault)
{
	account->first = malloc((sets->count + 1) * sizeof(*account->first));
	if (!account->first)
		return fail_nomem(fault);
	for (size_t i = 0; i < sets->count; i++)
		account->first[i] = sets->all[i].first;
	account->first[EMPTY] = 0;
	account->first[sets->count] = sets->id_count;
	account->set_count = sets->count;
	account->ids = sets->ids;
	sets->ids = NULL;
	return BM_OK;
}

int bm_account_extents(const struct bm_forest *before, const struct bm_forest *now,
		       const uint64_t *bytenr, const uint64_t *num_bytes, size_t count,
		       struct bm_account *account, struct bm_fault *fault)
{
	struct sets sets = {0};
	struct state old, new;
	int ret = sets_init(&sets) < 0 ? fail_nomem(fault) : BM_OK;

	*account = (struct bm_account){0};
	if (state_init(&old, before, &sets, fault) < 0 || state_init(&new, now, &sets, fault) < 0)
		ret = fault->code;
	for (size_t i = 0; !ret && i < count; i++) {
		int64_t a = before ? roots_of(&old, bytenr[i], -1) : EMPTY;
		int64_t b = a < 0 ? a : roots_of(&new, bytenr[i], -1);

		if (b < 0)
			ret = fault->code;
		else if (a != b && add_bytes(account, (uint32_t)a, (uint32_t)b, num_bytes[i]) < 0)
			ret = fail_nomem(fault);
	}
	if (!ret)
		ret = give_sets(account, &sets, fault);
	state_destroy(&old);
	state_destroy(&new);
	sets_destroy(&sets);
	return ret;
}

void bm_account_free(struct bm_account *account)
{
	free(account->rows);
	free(account->first);
	free(account->ids);
	*account = (struct bm_account){0};
}
