// SPDX-License-Identifier: GPL-2.0-only
/*
 * Backref walking: from an extent to the trees and files that refer to it, as backref.c of the
 * kernel does it with commit roots (no transaction, no delayed references).
 *
 * The extent item of a block or data extent lists who refers to it, in one of two ways. A direct
 * reference names the tree block that holds the pointer. An indirect one names a tree and a key;
 * the block that holds the pointer is found by searching that key in that tree. So
 *
 *   find_parent_nodes      extent -> the tree blocks (or, for a root node, the tree) above it
 *   btrfs_find_all_leafs   data extent -> the leaves with its file extent items
 *   btrfs_find_all_roots   block -> all trees that reach it, by find_parent_nodes level by level
 *   iterate_extent_inodes  data extent -> (inode, offset, root) of each file extent item
 *
 * The order of every list is the kernel's; prelim.c has the containers that make it.
 */
#include "backref/known.h"
#include "image/pool.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

int tolerate_enoent(struct walk *walk, int ret)
{
	if (ret != BM_ERRNO || walk->fault->found != ENOENT)
		return ret;
	*walk->fault = (struct bm_fault){0};
	return BM_OK;
}

const uint8_t *read_tree_block(struct bm_image *image, uint64_t bytenr, uint64_t generation,
			       int level, uint64_t tree, struct bm_fault *fault)
{
	struct bm_expect expect = {.tree = tree, .generation = generation, .level = level};
	const uint8_t *block = bm_image_block(image, bytenr, &expect, fault);

	COUNT(image, read_tree_block);
	if (block && image->cache) {
		struct bm_read read = {.logical = bytenr,
				       .generation = block_header(block)->generation,
				       .level = block_header(block)->level,
				       .by = BM_READ_BY_read_tree_block};

		if (bm_cache_submit(image, read, fault) < 0)
			return NULL;
	}
	return block;
}

/* ulist_add(): the kernel's wrapper for values that carry nothing. */
static int ulist_add(struct walk *walk, struct ulist *list, struct arena *arena, uint64_t val,
		     int level)
{
	struct ulist_node *node;
	int ret = ulist_add_merge(list, arena, val, &node, walk->image);

	COUNT(walk->image, ulist_add);
	if (ret < 0)
		return backref_fail_nomem(walk);
	if (ret)
		node->level = level;
	return BM_OK;
}

/* ------------------------------------------------------------------- from leaves to inodes -- */

/*
 * A file extent item that may point at the extent: *fi is NULL when it does not (an inline one).
 * The payload is checked to be whole.
 */
static int file_extent(struct walk *walk, const uint8_t *leaf, uint32_t slot,
		       const struct btrfs_file_extent_item **ret)
{
	const struct btrfs_file_extent_item *fi = (const void *)item_data(leaf, slot);
	uint32_t size = leaf_item(leaf, slot)->size, wanted = BTRFS_FILE_EXTENT_INLINE_DATA_START;

	*ret = NULL;
	if (size >= wanted) {
		if (fi->type == BTRFS_FILE_EXTENT_INLINE)
			return BM_OK;
		wanted = sizeof(*fi);
	}
	if (size < wanted)
		return backref_fail_at(walk, BM_BAD_ITEM_SIZE, leaf, slot, size, wanted);
	*ret = fi;
	return BM_OK;
}

/* Report the element at once for each root of the leaf, where those are known already. */
static int iterate_cached_roots(struct walk *walk, uint64_t leaf, const struct inode_elem *elem)
{
	const struct bm_backref_walk *ask = walk->ask;
	const uint64_t *roots;
	size_t count, i;
	int ret;

	if (!(ask->behaviour & (1ull << BM_TOGGLE_SEND_BACKREF_SKIP)) || !ask->cache_lookup ||
	    !ask->iterate || !ask->cache_lookup(leaf, ask->context, &roots, &count))
		return BM_OK;
	for (i = 0; i < count; i++) {
		ret =
		    ask->iterate(elem->inum, elem->offset, elem->num_bytes, roots[i], ask->context);
		if (ret)
			return ret < 0 ? ret : STOP;
	}
	return BM_OK;
}

/*
 * check_extent_in_eb(): add the file extent item to the list, in front; 1 when it shows another
 * part of the extent than the one that is asked for.
 */
static int check_extent_in_eb(struct walk *walk, const struct btrfs_disk_key *key,
			      const uint8_t *leaf, const struct btrfs_file_extent_item *fi,
			      struct inode_elem **elems)
{
	const struct bm_backref_walk *ask = walk->ask;
	struct inode_elem *elem;
	uint64_t offset = key->offset;
	int ret;

	COUNT(walk->image, check_extent_in_eb);
	if (!ask->ignore_extent_item_pos && !fi->compression && !fi->encryption &&
	    !fi->other_encoding) {
		if (ask->extent_item_pos < fi->offset ||
		    ask->extent_item_pos >= fi->offset + fi->num_bytes)
			return 1;
		offset += ask->extent_item_pos - fi->offset;
	}
	elem = arena_alloc(&walk->lists, sizeof(*elem));
	if (!elem)
		return backref_fail_nomem(walk);
	*elem = (struct inode_elem){
	    .inum = key->objectid, .offset = offset, .num_bytes = fi->num_bytes, .next = *elems};
	ret = BM_OK;
	if (walk->steps)
		known_elem(walk->steps, block_header(leaf)->bytenr, elem);
	else
		ret = iterate_cached_roots(walk, block_header(leaf)->bytenr, elem);
	if (ret)
		return ret;
	*elems = elem;
	return BM_OK;
}

/* find_extent_in_eb(): all file extent items of a leaf that point at the extent. */
static int find_extent_in_eb(struct walk *walk, const uint8_t *leaf, struct inode_elem **elems)
{
	uint32_t slot, nritems = block_header(leaf)->nritems;

	for (slot = 0; slot < nritems; slot++) {
		const struct btrfs_disk_key *key = &leaf_item(leaf, slot)->key;
		const struct btrfs_file_extent_item *fi;
		int ret;

		if (key->type != BTRFS_EXTENT_DATA_KEY)
			continue;
		ret = file_extent(walk, leaf, slot, &fi);
		if (!ret && fi && fi->disk_bytenr == walk->bytenr)
			ret = check_extent_in_eb(walk, key, leaf, fi, elems);
		if (ret < 0 || ret == STOP)
			return ret;
	}
	return BM_OK;
}

/* ---------------------------------------------------------------------- resolve references -- */

/* add_missing_keys(): the key to search a tree block by is its first, so the block is read. */
static int add_missing_keys(struct walk *walk)
{
	const struct prelim_ref *old;

	for (old = prelim_first(&walk->missing_keys); old; old = prelim_next(old)) {
		struct prelim_ref *ref = arena_alloc(&walk->prelim, sizeof(*ref));
		const uint8_t *block;

		if (!ref)
			return backref_fail_nomem(walk);
		*ref = *old;
		block = read_tree_block(walk->image, ref->wanted, 0, ref->level - 1, ref->root_id,
					walk->fault);
		if (!block)
			return walk->fault->code;
		/* only an empty tree has no first key, and its root is found without one */
		if (block_header(block)->nritems)
			ref->key = to_key(block_key(block, 0));
		prelim_ref_insert(&walk->indirect, ref, walk->image);
	}
	return BM_OK;
}

/*
 * btrfs_search_old_slot(): through commit roots it calls btrfs_search_slot(), through those of a
 * running transaction it searches by itself.
 */
static int search_old_slot(struct walk *walk, const struct bm_root *root, const struct bm_key *key,
			   struct bm_path *path)
{
	COUNT(walk->image, btrfs_search_old_slot);
	if (walk->transaction)
		COUNT_N(walk->image, btrfs_search_slot, -1);
	return bm_search_slot(root, key, path, walk->fault);
}

/* btrfs_next_old_leaf(): the searches in it are of the same kind. */
static int next_old_leaf(struct walk *walk, const struct bm_root *root, struct bm_path *path)
{
	uint64_t *searches = &walk->image->work[BM_WORK_btrfs_search_slot], before = *searches;
	int ret = bm_next_leaf(root, path, walk->fault);

	if (walk->transaction) {
		COUNT_N(walk->image, btrfs_search_old_slot, *searches - before);
		*searches = before;
	}
	return ret;
}

static int next_old_item(struct walk *walk, const struct bm_root *root, struct bm_path *path)
{
	COUNT(root->image, btrfs_next_old_item);
	if (++path->slot[0] < block_header(path->node[0])->nritems)
		return 0;
	return next_old_leaf(walk, root, path);
}

/* Whether a leaf is to be left alone by an indirect reference: it has a direct one, or is shared. */
static int skip_leaf(struct walk *walk, const uint8_t *leaf, const struct prelim_ref *ref)
{
	return is_shared_data_backref(&walk->direct, block_header(leaf)->bytenr, walk->image) ||
	       ref->root_id != block_header(leaf)->owner;
}

/* One item of add_all_parents(): 1 when it is one of the file extent items of the reference. */
static int add_parent(struct walk *walk, const uint8_t *leaf, uint32_t slot,
		      const struct prelim_ref *ref, struct ulist *parents)
{
	const struct btrfs_disk_key *key = &leaf_item(leaf, slot)->key;
	const struct btrfs_file_extent_item *fi;
	struct inode_elem *elems = NULL;
	struct ulist_node *node;
	int ret = file_extent(walk, leaf, slot, &fi);

	if (ret < 0)
		return ret;
	if (!fi || fi->disk_bytenr != ref->wanted || key->offset - fi->offset != ref->key.offset)
		return 0;
	if (walk->want_inodes) {
		ret = check_extent_in_eb(walk, key, leaf, fi, &elems);
		if (ret)
			return ret;
	}
	if (ulist_add_merge(parents, &walk->prelim, block_header(leaf)->bytenr, &node,
			    walk->image) < 0)
		return backref_fail_nomem(walk);
	node->elems = inode_elems_append(node->elems, elems);
	return 1;
}

/*
 * add_all_parents() for a data extent: the leaves with those file extent items of the inode that
 * the reference counts. From where the search ended, item by item; a leaf that belongs to another
 * tree has references of its own and is passed over.
 */
static int add_all_leafs(struct walk *walk, const struct bm_root *root, struct bm_path *path,
			 const struct prelim_ref *ref, struct ulist *parents)
{
	int64_t count = 0;
	int ret = 0;

	if (path->slot[0] >= block_header(path->node[0])->nritems ||
	    skip_leaf(walk, path->node[0], ref))
		ret = next_old_leaf(walk, root, path);
	while (!ret && count < ref->count) {
		const uint8_t *leaf = path->node[0];
		uint32_t slot = path->slot[0];
		const struct btrfs_disk_key *key = &leaf_item(leaf, slot)->key;

		if (key->objectid != ref->key.objectid || key->type != BTRFS_EXTENT_DATA_KEY)
			break;
		if (slot == 0 && skip_leaf(walk, leaf, ref)) {
			ret = next_old_leaf(walk, root, path);
			continue;
		}
		ret = add_parent(walk, leaf, slot, ref, parents);
		if (ret < 0 || ret == STOP)
			return ret;
		count += ret;
		ret = next_old_item(walk, root, path);
	}
	return ret < 0 ? ret : BM_OK;
}

/* resolve_indirect_ref(): no parents where the block is a root node, or its root is gone. */
static int resolve_indirect_ref(struct walk *walk, const struct prelim_ref *ref,
				struct ulist *parents)
{
	struct bm_path path = {.lowest_level = ref->level, .restart = walk->restart};
	struct bm_key key = ref->key;
	const struct bm_root *root;
	int level = ref->level;
	int ret;

	if (walk->steps)
		ret = known_tree(walk->steps, walk->forest, ref->root_id, walk->restart, &root,
				 walk->fault);
	else if (walk->record)
		ret = known_visit(walk->record, walk->forest, ref->root_id, walk->restart, &root,
				  walk->fault);
	else
		ret = get_fs_root_commit_root(walk->forest, ref->root_id, walk->restart, &root,
					      walk->fault);

	if (ret < 0 || !root || root->level + 1 == level)
		return ret;
	if (level >= BTRFS_MAX_LEVEL)
		return bm_fail(walk->fault, (struct bm_fault){.code = BM_BAD_LEVEL,
							      .tree = ref->root_id,
							      .block = ref->wanted,
							      .found = (uint64_t)level - 1,
							      .wanted = (uint64_t)root->level});
	/* an offset below 0, which cloning parts of extents leaves behind: search from the start */
	if (key.type == BTRFS_EXTENT_DATA_KEY && key.offset >= LLONG_MAX)
		key.offset = 0;
	ret = search_old_slot(walk, root, &key, &path);
	if (ret < 0)
		return ret;
	while (level && !path.node[level])
		level--;
	if (!level)
		return add_all_leafs(walk, root, &path, ref, parents);
	return ulist_add(walk, parents, &walk->prelim, block_header(path.node[level])->bytenr,
			 level);
}

/* The resolved reference becomes a direct one, by `parent` or, without, by its root itself. */
static int add_resolved(struct walk *walk, const struct prelim_ref *ref,
			const struct ulist_node *parent)
{
	struct prelim_ref *direct = arena_alloc(&walk->prelim, sizeof(*direct));

	if (!direct)
		return backref_fail_nomem(walk);
	*direct = *ref;
	if (parent) {
		direct->parent = parent->val;
		direct->elems = parent->elems;
	}
	prelim_ref_insert(&walk->direct, direct, walk->image);
	return BM_OK;
}

static int resolve_indirect_refs(struct walk *walk)
{
	const struct prelim_ref *ref;

	for (ref = prelim_first(&walk->indirect); ref; ref = prelim_next(ref)) {
		struct ulist parents = {0};
		const struct ulist_node *node;
		int ret;

		if (!ref->count)
			continue;
		if (walk->share && ref->root_id != walk->share->context->root_id)
			return BACKREF_FOUND_SHARED;
		ret = resolve_indirect_ref(walk, ref, &parents);
		/* the first parent is added last */
		for (node = parents.head ? parents.head->next : NULL; !ret && node;
		     node = node->next)
			ret = add_resolved(walk, ref, node);
		if (!ret)
			ret = add_resolved(walk, ref, parents.head);
		if (ret)
			return ret;
	}
	return BM_OK;
}

/* ------------------------------------------------------------------------------- the walks -- */

/*
 * Put the parent block of a direct reference, with its inodes, on the list of parents. The root of
 * a relocation tree is its own parent; it is on the list already, unless the walk began with it.
 */
static int add_parent_node(struct walk *walk, struct prelim_ref *ref)
{
	int level = walk->level >= 0 && ref->parent == walk->bytenr ? walk->level : ref->level;
	struct ulist_node *node;
	int ret;

	if (walk->want_inodes && !ref->elems && ref->level == 0) {
		const uint8_t *leaf =
		    read_tree_block(walk->image, ref->parent, 0, 0, ref->root_id, walk->fault);

		if (!leaf)
			return walk->fault->code;
		ret = find_extent_in_eb(walk, leaf, &ref->elems);
		if (ret)
			return ret;
	}
	ret = ulist_add_merge(&walk->refs, &walk->lists, ref->parent, &node, walk->image);
	if (ret < 0)
		return backref_fail_nomem(walk);
	if (ret)
		node->level = level;
	else if (node->level != level)
		return bm_fail(walk->fault, (struct bm_fault){.code = BM_LOOP,
							      .tree = BTRFS_EXTENT_TREE_OBJECTID,
							      .block = walk->bytenr,
							      .found = ref->parent});
	node->elems = inode_elems_append(node->elems, ref->elems);
	return BM_OK;
}

/* The block is a root node: of the file's own tree, where sharing is looked for. */
static int add_root(struct walk *walk, uint64_t root_id)
{
	if (walk->share && root_id != walk->share->context->root_id)
		return BACKREF_FOUND_SHARED;
	return ulist_add(walk, &walk->roots, &walk->lists, root_id, 0);
}

int find_parent_nodes(struct walk *walk)
{
	struct prelim_ref *ref;
	int ret;

	COUNT(walk->image, find_parent_nodes);
	arena_release(&walk->prelim, (struct arena_mark){0});
	walk->direct = walk->indirect = walk->missing_keys = (struct preftree){0};
	ret = bm_poll(walk->fault);
	if (!ret)
		ret = backref_collect_refs(walk);
	if (!ret && walk->share)
		ret = share_before_resolving(walk);
	if (!ret)
		ret = add_missing_keys(walk);
	if (!ret)
		ret = resolve_indirect_refs(walk);
	for (ref = prelim_first(&walk->direct); !ret && ref; ref = prelim_next(ref)) {
		if (!ref->count)
			continue;
		if (ref->parent)
			ret = add_parent_node(walk, ref);
		else if (walk->want_roots && ref->root_id)
			ret = add_root(walk, ref->root_id);
	}
	return ret;
}

static int btrfs_find_all_leafs(struct walk *walk, uint64_t bytenr)
{
	int ret;

	COUNT(walk->image, btrfs_find_all_leafs);
	walk->bytenr = bytenr;
	walk->level = -1;
	walk->want_roots = 0;
	walk->refs = (struct ulist){0};
	ret = find_parent_nodes(walk);
	return tolerate_enoent(walk, ret);
}

/* Level by level upwards; a tree that reaches the block by several ways is listed once. */
static int btrfs_find_all_roots_safe(struct walk *walk, uint64_t bytenr, int level)
{
	const struct ulist_node *node = NULL;

	COUNT(walk->image, btrfs_find_all_roots_safe);
	walk->bytenr = bytenr;
	walk->level = level;
	walk->want_inodes = 0;
	walk->want_roots = 1;
	walk->refs = walk->roots = (struct ulist){0};
	for (;;) {
		int ret = tolerate_enoent(walk, find_parent_nodes(walk));

		if (ret)
			return ret;
		node = node ? node->next : walk->refs.head;
		if (!node)
			return BM_OK;
		walk->bytenr = node->val;
		walk->level = node->level;
	}
}

static int iterate_leaf_refs(struct walk *walk, const struct inode_elem *elem, uint64_t root)
{
	const struct bm_backref_walk *ask = walk->ask;
	int ret = 0;

	for (; elem && !ret && ask->iterate; elem = elem->next)
		ret = ask->iterate(elem->inum, elem->offset, elem->num_bytes, root, ask->context);
	return ret <= 0 ? ret : STOP;
}

static int walk_to_roots(struct walk *walk, uint64_t leaf, const uint64_t **roots, size_t *count)
{
	const struct ulist_node *node;
	uint64_t *array;
	size_t i = 0;
	int ret = btrfs_find_all_roots_safe(walk, leaf, 0);

	if (ret)
		return ret;
	array = arena_alloc(&walk->lists, walk->roots.count * sizeof(*array));
	if (!array)
		return backref_fail_nomem(walk);
	for (node = walk->roots.head; node; node = node->next)
		array[i++] = node->val;
	*roots = array;
	*count = i;
	return BM_OK;
}

/* The same, where sends remember it for each other. */
static int known_roots(struct walk *walk, uint64_t leaf, const struct known_leaf *found,
		       const uint64_t **roots, size_t *count)
{
	struct bm_known *known = walk->ask->known;
	int ret;

	if (found) {
		known_leaf_roots(found, roots, count);
		known_leaf_work(found, walk->forest);
		return BM_OK;
	}
	walk->record = known;
	known_begin(known, walk->image);
	ret = walk_to_roots(walk, leaf, roots, count);
	known_end(known, walk->image);
	walk->record = NULL;
	if (!ret)
		known_add_leaf(known, leaf, *roots, *count);
	return ret;
}

/* The roots of a leaf, from the caller's cache or by walking; they are handed to that cache. */
static int find_roots_of_leaf(struct walk *walk, uint64_t leaf, const struct known_leaf **known,
			      const uint64_t **roots, size_t *count)
{
	const struct bm_backref_walk *ask = walk->ask;
	int ret;

	if (ask->cache_lookup && ask->cache_lookup(leaf, ask->context, roots, count))
		return BM_OK;
	if (ask->known && !*known)
		*known = known_leaf(ask->known, leaf);
	ret = ask->known ? known_roots(walk, leaf, *known, roots, count)
			 : walk_to_roots(walk, leaf, roots, count);
	if (!ret && ask->cache_store)
		ret = ask->cache_store(leaf, *roots, *count, ask->context);
	return ret;
}

struct walk *walk_create(const struct bm_backref_walk *ask, struct bm_fault *fault)
{
	struct walk *walk = ask->known ? known_take_walk(ask->known) : NULL;

	if (!walk)
		walk = malloc(sizeof(*walk));
	*fault = (struct bm_fault){0};
	if (!walk) {
		bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
		return NULL;
	}
	walk->ask = ask;
	walk->known = ask->known;
	walk->forest = ask->forest;
	walk->image = bm_forest_image(ask->forest);
	walk->extent_root = bm_forest_root(ask->forest, BTRFS_EXTENT_TREE_OBJECTID);
	walk->fault = fault;
	walk->restart = search_restarts(ask->behaviour);
	walk->want_inodes = 0;
	walk->want_roots = 0;
	walk->record = walk->steps = NULL;
	walk->share = NULL;
	walk->transaction = 0;
	arena_init(&walk->lists);
	arena_init(&walk->prelim);
	return walk;
}

void walk_destroy(struct walk *walk)
{
	arena_destroy(&walk->lists);
	arena_destroy(&walk->prelim);
	if (walk->known)
		known_keep_walk(walk->known, walk);
	else
		free(walk);
}

static int iterate_leaf(struct walk *walk, uint64_t leaf, const struct inode_elem *elems,
			const struct known_leaf **known)
{
	struct arena_mark mark = arena_mark(&walk->lists);
	const uint64_t *roots;
	size_t count;
	int ret = find_roots_of_leaf(walk, leaf, known, &roots, &count);

	for (size_t i = 0; !ret && i < count; i++)
		ret = iterate_leaf_refs(walk, elems, roots[i]);
	arena_release(&walk->lists, mark);
	return ret;
}

/* The walk to the leaves, as sends remember it for each other; *found is NULL where they do not. */
static int known_leafs(struct walk *walk, const struct known_extent **found)
{
	const struct bm_backref_walk *ask = walk->ask;
	int ret;

	*found = ask->known ? known_extent(ask->known, ask) : NULL;
	/* one that ended at the extent item may go on this time */
	if (*found && (*found)->stopped &&
	    !(ask->check_extent_item &&
	      ask->check_extent_item(ask->bytenr, (*found)->item, ask->context)))
		*found = NULL;
	if (*found || !ask->known)
		return BM_OK;
	known_begin_extent(ask->known, walk->image);
	walk->steps = ask->known;
	ret = btrfs_find_all_leafs(walk, ask->bytenr);
	walk->steps = NULL;
	*found = known_end_extent(ask->known, walk, ret < 0);
	/* what is wrong shows in the same place again */
	return ret == BM_CALLBACK ? ret : BM_OK;
}

/* The same as btrfs_find_all_leafs(), step by step. */
static int follow_steps(struct walk *walk, const struct known_extent *known)
{
	const struct bm_backref_walk *ask = walk->ask;
	const struct known_work *work = known->work;
	uint32_t place = 0;
	int ret = BM_OK;

	for (size_t i = 0; !ret && i < known->step_count; i++) {
		const struct known_step *step = &known->steps[i];

		for (uint32_t left = step->work_count; left; left--, work++)
			walk->image->work[work->counter] += work->times;
		if (step->kind == KNOWN_ELEM) {
			ret = iterate_cached_roots(walk, step->at, &step->elem);
		} else if (step->kind == KNOWN_TREE) {
			count_fs_root_commit_root(walk->forest, step->at, 1, &place);
		} else if (step->kind == KNOWN_ITEM && ask->check_extent_item) {
			ret = ask->check_extent_item(ask->bytenr, known->item, ask->context);
			if (ret)
				ret = backref_stopped(walk, ret);
		}
	}
	return tolerate_enoent(walk, ret);
}

int bm_iterate_extent_inodes(const struct bm_backref_walk *ask, struct bm_fault *fault)
{
	struct walk *walk = walk_create(ask, fault);
	const struct known_extent *known;
	const struct ulist_node *leaf;
	int ret;

	if (!walk)
		return BM_NOMEM;
	COUNT(walk->image, iterate_extent_inodes);
	walk->want_inodes = 1;
	ret = known_leafs(walk, &known);
	if (!ret && known) {
		ret = follow_steps(walk, known);
		for (size_t i = 0; !ret && !known->stopped && i < known->ref_count; i++)
			ret = iterate_leaf(walk, known->refs[i].leaf, known->refs[i].elems,
					   &known->refs[i].known);
	} else if (!ret) {
		ret = btrfs_find_all_leafs(walk, ask->bytenr);
		for (leaf = walk->refs.head; !ret && leaf; leaf = leaf->next) {
			const struct known_leaf *of_leaf = NULL;

			ret = iterate_leaf(walk, leaf->val, leaf->elems, &of_leaf);
		}
	}
	walk_destroy(walk);
	return ret == STOP ? BM_OK : ret;
}

struct collected {
	struct bm_inode_refs *refs;
	struct bm_fault *fault;
};

static int append_inode_ref(uint64_t ino, uint64_t offset, uint64_t num_bytes, uint64_t root,
			    void *context)
{
	const struct collected *collected = context;
	struct bm_inode_refs *refs = collected->refs;
	struct bm_inode_ref *rows =
	    grown(refs->rows, refs->count, &refs->capacity, 64, sizeof(*rows));

	if (!rows)
		return bm_fail(collected->fault, (struct bm_fault){.code = BM_NOMEM});
	refs->rows = rows;
	refs->rows[refs->count++] = (struct bm_inode_ref){ino, offset, num_bytes, root};
	return 0;
}

int bm_collect_inode_refs(const struct bm_backref_walk *ask, struct bm_inode_refs *refs,
			  struct bm_fault *fault)
{
	struct bm_backref_walk walk = *ask;
	struct collected collected = {refs, fault};

	*refs = (struct bm_inode_refs){0};
	walk.context = &collected;
	walk.iterate = append_inode_ref;
	return bm_iterate_extent_inodes(&walk, fault);
}

void bm_inode_refs_free(struct bm_inode_refs *refs)
{
	free(refs->rows);
	*refs = (struct bm_inode_refs){0};
}

/* The values of a list, as many as there is room for; returns how many there are. */
static int64_t list_values(const struct ulist *list, uint64_t *values, size_t capacity)
{
	const struct ulist_node *node;
	size_t i = 0;

	for (node = list->head; node && i < capacity; node = node->next)
		values[i++] = node->val;
	return (int64_t)list->count;
}

int64_t bm_find_all_leafs(const struct bm_backref_walk *ask, uint64_t *leafs, size_t capacity,
			  struct bm_fault *fault)
{
	struct walk *walk = walk_create(ask, fault);
	int64_t ret;

	if (!walk)
		return BM_NOMEM;
	ret = btrfs_find_all_leafs(walk, ask->bytenr);
	if (ret >= 0)
		ret = list_values(&walk->refs, leafs, capacity);
	walk_destroy(walk);
	return ret;
}

int64_t bm_find_all_roots(const struct bm_backref_walk *ask, uint64_t *roots, size_t capacity,
			  struct bm_fault *fault)
{
	struct walk *walk = walk_create(ask, fault);
	int64_t ret;

	if (!walk)
		return BM_NOMEM;
	ret = btrfs_find_all_roots_safe(walk, ask->bytenr, -1);
	if (ret >= 0)
		ret = list_values(&walk->roots, roots, capacity);
	walk_destroy(walk);
	return ret;
}
