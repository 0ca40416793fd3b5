// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the extent tree says about who refers to an extent.
 *
 * The extent item comes first; short lists of references stand inside it, longer ones follow as
 * items of their own with the same objectid:
 *
 *   (bytenr EXTENT_ITEM length)   | refs | gen | flags | type | value | type | value | ...
 *   (bytenr EXTENT_DATA_REF hash) | root | inode | offset | count |
 *   (bytenr SHARED_DATA_REF leaf) | count |
 *
 *   TREE_BLOCK_REF   root               a tree block: search its first key in that tree
 *   SHARED_BLOCK_REF parent             a tree block, pointed at by that node
 *   EXTENT_DATA_REF  root, inode, ..    a data extent: search the inode's file extents
 *   SHARED_DATA_REF  parent             a data extent, pointed at by that leaf
 *
 * In a running transaction references come and go that the extent tree has yet to learn of.
 */
#include "backref/known.h"

#define BTRFS_DATA_RELOC_TREE_OBJECTID ((uint64_t)-9)

/* A fault in the reference in `slot` of a leaf of the extent tree, or of a file's tree. */
int backref_fail_at(struct walk *walk, int code, const uint8_t *leaf, uint32_t slot, uint64_t found,
		    uint64_t wanted)
{
	return bm_fail(walk->fault, (struct bm_fault){.code = code,
						      .tree = block_header(leaf)->owner,
						      .block = block_header(leaf)->bytenr,
						      .slot = slot,
						      .found = found,
						      .wanted = wanted});
}

int backref_fail_nomem(struct walk *walk)
{
	return bm_fail(walk->fault, (struct bm_fault){.code = BM_NOMEM});
}

int backref_stopped(struct walk *walk, int ret)
{
	if (ret > 0)
		return STOP;
	return bm_fail(walk->fault,
		       (struct bm_fault){.code = BM_ERRNO, .found = (uint64_t) - (int64_t)ret});
}

int backref_next_item(const struct bm_root *root, struct bm_path *path, struct bm_fault *fault)
{
	COUNT(root->image, btrfs_next_old_item);
	if (++path->slot[0] < block_header(path->node[0])->nritems)
		return 0;
	return bm_next_leaf(root, path, fault);
}

/* ---------------------------------------------------------------------- collect references -- */

static int add_prelim_ref(struct walk *walk, struct preftree *tree, const struct prelim_ref *what,
			  int counts)
{
	struct prelim_ref *ref, *held;

	if (what->root_id == BTRFS_DATA_RELOC_TREE_OBJECTID)
		return BM_OK;
	COUNT(walk->image, add_prelim_ref);
	ref = arena_alloc(&walk->prelim, sizeof(*ref));
	if (!ref)
		return backref_fail_nomem(walk);
	*ref = *what;
	ref->wanted = walk->bytenr;
	held = prelim_ref_insert(tree, ref, walk->image);
	if (!walk->share || !counts)
		return BM_OK;
	return update_share_count(walk, held == ref ? 0 : held->count - ref->count, held->count,
				  ref);
}

/* A reference by the tree block at `parent`; it lies in `slot` of `leaf` of the extent tree. */
static int add_direct_ref(struct walk *walk, const uint8_t *leaf, uint32_t slot, int level,
			  uint64_t parent, uint32_t count)
{
	struct prelim_ref ref = {.level = level, .parent = parent, .count = count};

	if (!parent || parent % walk->image->sectorsize)
		return backref_fail_at(walk, BM_BAD_VALUE, leaf, slot, parent, 0);
	return add_prelim_ref(walk, &walk->direct, &ref, walk->level < 0);
}

static int add_tree_block_ref(struct walk *walk, int level, uint64_t root_id)
{
	struct prelim_ref ref = {.level = level, .root_id = root_id, .count = 1};

	/* does not count: that a tree block is shared shows when its references are resolved */
	return add_prelim_ref(walk, &walk->missing_keys, &ref, 0);
}

static int add_extent_data_ref(struct walk *walk, const struct btrfs_extent_data_ref *dref)
{
	const struct bm_backref_walk *ask = walk->ask;
	struct known_asked asked = {
	    .root = dref->root, .ino = dref->objectid, .offset = dref->offset};
	struct prelim_ref ref = {
	    .root_id = dref->root,
	    .count = dref->count,
	    .key = {.objectid = dref->objectid,
		    .type = BTRFS_EXTENT_DATA_KEY,
		    .offset = dref->offset},
	};

	if (walk->share && dref->objectid != walk->share->context->inum && !walk->share->drops_wait)
		return BACKREF_FOUND_SHARED;
	asked.skip = ask->skip_data_ref &&
		     ask->skip_data_ref(dref->root, dref->objectid, dref->offset, ask->context);
	if (walk->steps && ask->skip_data_ref)
		known_skip(walk->steps, &asked);
	if (asked.skip)
		return BM_OK;
	return add_prelim_ref(walk, &walk->indirect, &ref, 1);
}

/*
 * One reference of either form: `value` is the tree or the parent block, `payload` has `room`
 * bytes. Returns the number of payload bytes that it takes.
 */
static int add_ref(struct walk *walk, const uint8_t *leaf, uint32_t slot, int type, uint64_t value,
		   const uint8_t *payload, uint32_t room)
{
	int is_tree_block = type == BTRFS_TREE_BLOCK_REF_KEY || type == BTRFS_SHARED_BLOCK_REF_KEY;
	const struct btrfs_shared_data_ref *shared = (const void *)payload;
	uint32_t size = 0;
	int ret;

	if (type == BTRFS_EXTENT_DATA_REF_KEY)
		size = sizeof(struct btrfs_extent_data_ref);
	else if (type == BTRFS_SHARED_DATA_REF_KEY)
		size = sizeof(*shared);
	else if (!is_tree_block)
		return backref_fail_at(walk, BM_BAD_VALUE, leaf, slot, (uint64_t)type, 0);
	if (is_tree_block != (walk->level >= 0))
		return backref_fail_at(walk, BM_BAD_VALUE, leaf, slot, (uint64_t)type, 0);
	if (room < size) {
		uint32_t found = leaf_item(leaf, slot)->size;

		return backref_fail_at(walk, BM_BAD_ITEM_SIZE, leaf, slot, found,
				       found - room + size);
	}
	if (type == BTRFS_TREE_BLOCK_REF_KEY)
		ret = add_tree_block_ref(walk, walk->level + 1, value);
	else if (type == BTRFS_SHARED_BLOCK_REF_KEY)
		ret = add_direct_ref(walk, leaf, slot, walk->level + 1, value, 1);
	else if (type == BTRFS_SHARED_DATA_REF_KEY)
		ret = add_direct_ref(walk, leaf, slot, 0, value, shared->count);
	else
		ret = add_extent_data_ref(walk, (const void *)payload);
	return ret < 0 ? ret : (int)size;
}

/* The level of a tree block by its extent item; what it says must be what led here. */
static int check_level(struct walk *walk, const uint8_t *leaf, uint32_t slot, uint64_t level)
{
	if (level >= BTRFS_MAX_LEVEL)
		return backref_fail_at(walk, BM_BAD_LEVEL, leaf, slot, level, BTRFS_MAX_LEVEL - 1);
	if (walk->level >= 0 && level != (uint64_t)walk->level)
		return backref_fail_at(walk, BM_BAD_LEVEL, leaf, slot, level,
				       (uint64_t)walk->level);
	walk->level = (int)level;
	return BM_OK;
}

/* The head of an extent item: what kind of extent it is; *start is where inline refs begin. */
static int extent_head(struct walk *walk, const uint8_t *leaf, uint32_t slot, uint32_t *start)
{
	const struct btrfs_item *item = leaf_item(leaf, slot);
	const struct btrfs_extent_item *ei = (const void *)item_data(leaf, slot);
	const struct btrfs_tree_block_info *info = (const void *)(ei + 1);
	uint64_t kind;
	int stop = 0;

	*start = sizeof(*ei);
	if (item->size < *start)
		return backref_fail_at(walk, BM_BAD_ITEM_SIZE, leaf, slot, item->size, *start);
	if (walk->ask->check_extent_item)
		stop = walk->ask->check_extent_item(walk->bytenr, ei, walk->ask->context);
	if (walk->steps)
		known_item(walk->steps, ei, stop != 0);
	if (stop)
		return backref_stopped(walk, stop);
	kind = ei->flags & (BTRFS_EXTENT_FLAG_DATA | BTRFS_EXTENT_FLAG_TREE_BLOCK);
	if (item->key.type == BTRFS_METADATA_ITEM_KEY && kind == BTRFS_EXTENT_FLAG_TREE_BLOCK)
		return check_level(walk, leaf, slot, item->key.offset);
	if (item->key.type == BTRFS_EXTENT_ITEM_KEY && kind == BTRFS_EXTENT_FLAG_TREE_BLOCK) {
		*start += sizeof(*info);
		if (item->size < *start)
			return backref_fail_at(walk, BM_BAD_ITEM_SIZE, leaf, slot, item->size,
					       *start);
		return check_level(walk, leaf, slot, info->level);
	}
	/* a walk that came here from a tree block does not come to data */
	if (kind != BTRFS_EXTENT_FLAG_DATA || item->key.type != BTRFS_EXTENT_ITEM_KEY ||
	    walk->level >= 0)
		return backref_fail_at(walk, BM_BAD_VALUE, leaf, slot, ei->flags, 0);
	return BM_OK;
}

static int add_inline_refs(struct walk *walk, const uint8_t *leaf, uint32_t slot)
{
	const uint8_t *data = item_data(leaf, slot);
	uint32_t at, end = leaf_item(leaf, slot)->size;
	int size = extent_head(walk, leaf, slot, &at);

	if (size)
		return size;
	while (at < end) {
		const struct btrfs_extent_inline_ref *iref = (const void *)(data + at);

		if (end - at < sizeof(*iref))
			return backref_fail_at(walk, BM_BAD_ITEM_SIZE, leaf, slot, end,
					       at + sizeof(*iref));
		if (iref->type == BTRFS_EXTENT_OWNER_REF_KEY && walk->level < 0) {
			at += sizeof(*iref);
			continue;
		}
		/* the other fields of a data reference take the place of the offset */
		at += iref->type == BTRFS_EXTENT_DATA_REF_KEY ? 1 : sizeof(*iref);
		size = add_ref(walk, leaf, slot, iref->type, iref->offset, data + at, end - at);
		if (size < 0)
			return size;
		at += (uint32_t)size;
	}
	return BM_OK;
}

static int add_keyed_refs(struct walk *walk, struct bm_path *path)
{
	for (;;) {
		const struct btrfs_item *item;
		const uint8_t *leaf;
		int ret = backref_next_item(walk->extent_root, path, walk->fault);

		if (ret)
			return ret < 0 ? ret : BM_OK;
		leaf = path->node[0];
		item = leaf_item(leaf, path->slot[0]);
		if (item->key.objectid != walk->bytenr ||
		    item->key.type > BTRFS_SHARED_DATA_REF_KEY)
			return BM_OK;
		if (item->key.type < BTRFS_TREE_BLOCK_REF_KEY)
			continue;
		ret = add_ref(walk, leaf, path->slot[0], item->key.type, item->key.offset,
			      item_data(leaf, path->slot[0]), item->size);
		if (ret < 0)
			return ret;
	}
}

static int add_waiting_ref(struct walk *walk, const struct bm_waiting_ref *one)
{
	struct prelim_ref ref = {.level = one->level + 1, .count = one->count};
	struct preftree *tree = &walk->direct;

	if (one->type == BTRFS_SHARED_BLOCK_REF_KEY || one->type == BTRFS_SHARED_DATA_REF_KEY) {
		ref.parent = one->value;
	} else if (one->type == BTRFS_TREE_BLOCK_REF_KEY) {
		ref.root_id = one->value;
		tree = &walk->missing_keys;
	} else {
		ref.root_id = one->value;
		ref.key = (struct bm_key){
		    .objectid = one->ino, .type = BTRFS_EXTENT_DATA_KEY, .offset = one->offset};
		tree = &walk->indirect;
		if (walk->share && one->count < 0)
			walk->share->drops_wait = 1;
	}
	return add_prelim_ref(walk, tree, &ref, 1);
}

/*
 * add_delayed_refs(): the references that wait. Also those of tree blocks count here. One may take
 * another away, so there is no answer before all were seen.
 */
static int add_waiting_refs(struct walk *walk, size_t *count)
{
	const struct bm_waiting_ref *waiting = forest_waiting(walk->forest, walk->bytenr, count);
	int ret;

	if (walk->share)
		walk->share->drops_wait = 0;
	for (size_t i = 0; i < *count; i++) {
		if (walk->level < 0)
			walk->level = waiting[i].level;
		ret = add_waiting_ref(walk, &waiting[i]);
		if (ret && ret != BACKREF_FOUND_SHARED)
			return ret;
	}
	return walk->share && walk->share->share_count > 1 ? BACKREF_FOUND_SHARED : BM_OK;
}

/* All references that wait, or that the extent tree has, for walk->bytenr. */
int backref_collect_refs(struct walk *walk)
{
	size_t waiting;
	struct bm_key key = {
	    .objectid = walk->bytenr, .type = BTRFS_METADATA_ITEM_KEY, .offset = UINT64_MAX};
	struct bm_path path = {.restart = walk->restart};
	const struct btrfs_disk_key *found = NULL;
	int ret = bm_search_slot(walk->extent_root, &key, &path, walk->fault);

	if (ret < 0)
		return ret;
	if (ret == 0)
		return backref_fail_at(walk, BM_BAD_VALUE, path.node[0], path.slot[0], UINT64_MAX,
				       0);
	ret = add_waiting_refs(walk, &waiting);
	if (ret)
		return ret;
	if (path.slot[0])
		found = &leaf_item(path.node[0], --path.slot[0])->key;
	if (!found || found->objectid != walk->bytenr ||
	    (found->type != BTRFS_EXTENT_ITEM_KEY && found->type != BTRFS_METADATA_ITEM_KEY)) {
		if (walk->level < 0 || waiting)
			return BM_OK;
		return bm_fail(walk->fault, (struct bm_fault){.code = BM_NOT_FOUND,
							      .tree = BTRFS_EXTENT_TREE_OBJECTID,
							      .found = walk->bytenr,
							      .wanted = BTRFS_METADATA_ITEM_KEY});
	}
	ret = add_inline_refs(walk, path.node[0], path.slot[0]);
	return ret ? ret : add_keyed_refs(walk, &path);
}
