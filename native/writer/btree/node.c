// SPDX-License-Identifier: GPL-2.0-only
/*
 * Nodes that change: pointers come and go, full nodes are split or give to a neighbour, poor ones
 * are merged. The functions of ctree.c under their names, in the order in which a search meets them.
 */
#include "writer/writer.h"

#include <string.h>

/* What an unfinished push_node_left() leaves behind at least. */
#define KEEP_PTRS 8u

static int bad_nritems(const struct bm_writer_tree *tree, const uint8_t *node, uint32_t wanted,
		       struct bm_fault *fault)
{
	return bm_fail(fault, (struct bm_fault){.code = BM_BAD_NRITEMS,
						.tree = tree ? tree->owner : 0,
						.block = block_header(node)->bytenr,
						.found = block_header(node)->nritems,
						.wanted = wanted});
}

static void move_ptrs(uint8_t *to, uint32_t to_slot, const uint8_t *from, uint32_t from_slot,
		      uint32_t count)
{
	BM_ASSERT(block_header(to)->level && block_header(to)->level == block_header(from)->level);
	memmove(ptr_of(to, to_slot), node_ptr(from, from_slot), count * BTRFS_KEY_PTR_SIZE);
}

int bm_check_sibling_keys(const struct bm_writer_tree *tree, const uint8_t *left,
			  const uint8_t *right, struct bm_fault *fault)
{
	uint32_t count = block_header(left)->nritems;
	struct bm_key first;

	if (!count || !block_header(right)->nritems)
		return BM_OK;
	first = to_key(block_key(right, 0));
	if (compare_disk_key(block_key(left, count - 1), &first) < 0)
		return BM_OK;
	return bm_fail(fault, (struct bm_fault){.code = BM_BAD_KEY_ORDER,
						.slot = count - 1,
						.tree = tree->owner,
						.block = block_header(left)->bytenr});
}

/* Whether `key` sorts between the pointers before and behind a slot: in a damaged tree it may not. */
static int check_between(const uint8_t *node, uint32_t before, uint32_t behind,
			 const struct bm_key *key, struct bm_fault *fault)
{
	if ((!before || compare_disk_key(&node_ptr(node, before - 1)->key, key) < 0) &&
	    (behind >= block_header(node)->nritems ||
	     compare_disk_key(&node_ptr(node, behind)->key, key) > 0))
		return BM_OK;
	return bm_fail(fault, (struct bm_fault){.code = BM_BAD_KEY_ORDER,
						.slot = before,
						.tree = block_header(node)->owner,
						.block = block_header(node)->bytenr});
}

int bm_fixup_low_keys(struct bm_path *path, const struct bm_key *key, int level,
		      struct bm_fault *fault)
{
	for (; level < BTRFS_MAX_LEVEL && path->node[level]; level++) {
		/* who searched for a change may write to every block of the path */
		uint8_t *node = (uint8_t *)(uintptr_t)path->node[level];

		BM_ASSERT(path->slot[level] < block_header(node)->nritems);
		if (check_between(node, path->slot[level], path->slot[level] + 1, key, fault) < 0)
			return fault->code;
		ptr_of(node, path->slot[level])->key = to_disk_key(key);
		if (path->slot[level])
			break;
	}
	return BM_OK;
}

int bm_insert_ptr(struct bm_writer *writer, struct bm_path *path, const struct bm_key *key,
		  uint64_t bytenr, uint32_t slot, int level, struct bm_fault *fault)
{
	uint8_t *node = bm_writer_writable(writer, path->node[level]);
	uint32_t count = block_header(node)->nritems;

	if (count >= writer->node_ptrs || slot > count)
		return bad_nritems(NULL, node, writer->node_ptrs - 1, fault);
	if (check_between(node, slot, slot, key, fault) < 0)
		return fault->code;
	move_ptrs(node, slot + 1, node, slot, count - slot);
	*ptr_of(node, slot) = (struct btrfs_key_ptr){
	    .key = to_disk_key(key), .blockptr = bytenr, .generation = writer->transid};
	header_of(node)->nritems = count + 1;
	BM_ASSERT(bm_writer_is_new(writer, node) && bm_node_is_sound(writer, node));
	return BM_OK;
}

int bm_del_ptr(struct bm_writer *writer, struct bm_writer_tree *tree, struct bm_path *path,
	       int level, uint32_t slot, struct bm_fault *fault)
{
	uint8_t *node = bm_writer_writable(writer, path->node[level]);
	uint32_t count = block_header(node)->nritems;

	/* balance_level() sees to it that only a root of level 1 can lose its last pointer */
	if (slot >= count || (count == 1 && (!bm_writer_is_root(tree, node) || level != 1)))
		return bad_nritems(tree, node, 2, fault);
	move_ptrs(node, slot, node, slot + 1, count - slot - 1);
	header_of(node)->nritems = count - 1;
	BM_ASSERT(bm_writer_is_new(writer, node) && (count == 1 || bm_node_is_sound(writer, node)));
	if (count == 1) {
		header_of(node)->level = 0;
		tree->level = 0;
	} else if (!slot) {
		struct bm_key first = to_key(&node_ptr(node, 0)->key);

		return bm_fixup_low_keys(path, &first, level + 1, fault);
	}
	return BM_OK;
}

/* A root of `level` above path->node[level - 1], which was the root. */
int bm_insert_new_root(struct bm_writer *writer, struct bm_writer_tree *tree, struct bm_path *path,
		       int level, struct bm_fault *fault)
{
	const uint8_t *lower = path->node[level - 1];
	struct bm_key first = to_key(block_key(lower, 0));
	uint8_t *root;

	if (level >= BTRFS_MAX_LEVEL)
		return bm_fail(fault, (struct bm_fault){.code = BM_BAD_LEVEL,
							.tree = tree->owner,
							.block = tree->bytenr,
							.found = (uint64_t)level,
							.wanted = BTRFS_MAX_LEVEL - 1});
	root = bm_writer_alloc_block(writer, tree, level, &first, tree->bytenr, fault);
	if (!root)
		return fault->code;
	*ptr_of(root, 0) = (struct btrfs_key_ptr){.key = to_disk_key(&first),
						  .blockptr = block_header(lower)->bytenr,
						  .generation = block_header(lower)->generation};
	header_of(root)->nritems = 1;
	bm_writer_set_root(writer, tree, root);
	path->node[level] = root;
	path->slot[level] = 0;
	BM_ASSERT(bm_node_is_sound(writer, root) && tree->level == level);
	return BM_OK;
}

/*
 * Pointers from the start of `from` to the end of `to`. 1: none was moved. Where
 * `from` need not be emptied, some stay.
 */
static int push_node_left(const struct bm_writer *writer, const struct bm_writer_tree *tree,
			  uint8_t *to, uint8_t *from, int empty, struct bm_fault *fault)
{
	uint32_t count = block_header(from)->nritems, behind = block_header(to)->nritems;
	uint32_t room = writer->node_ptrs - behind, moved;

	if ((!empty && count <= KEEP_PTRS) || !room)
		return 1;
	if (!empty) {
		moved = count - KEEP_PTRS < room ? count - KEEP_PTRS : room;
	} else {
		moved = count < room ? count : room;
		if (moved < count && count - moved < KEEP_PTRS) {
			if (moved <= KEEP_PTRS)
				return 1;
			moved -= KEEP_PTRS;
		}
	}
	if (bm_check_sibling_keys(tree, to, from, fault) < 0)
		return fault->code;
	move_ptrs(to, behind, from, 0, moved);
	move_ptrs(from, 0, from, moved, count - moved);
	header_of(to)->nritems = behind + moved;
	header_of(from)->nritems = count - moved;
	BM_ASSERT(bm_node_is_sound(writer, to) &&
		  (moved == count || bm_node_is_sound(writer, from)));
	return 0;
}

/* Up to half of the pointers of `from` to the start of `to`, its right. */
static int balance_node_right(const struct bm_writer *writer, const struct bm_writer_tree *tree,
			      uint8_t *to, uint8_t *from, struct bm_fault *fault)
{
	uint32_t count = block_header(from)->nritems, behind = block_header(to)->nritems;
	uint32_t room = writer->node_ptrs - behind, moved = count / 2 + 1;

	if (!room || count < 4)
		return 1;
	if (moved > room)
		moved = room;
	if (bm_check_sibling_keys(tree, from, to, fault) < 0)
		return fault->code;
	move_ptrs(to, moved, to, 0, behind);
	move_ptrs(to, 0, from, count - moved, moved);
	header_of(to)->nritems = behind + moved;
	header_of(from)->nritems = count - moved;
	BM_ASSERT(bm_node_is_sound(writer, to) && bm_node_is_sound(writer, from));
	return 0;
}

/* The parent's pointer at `slot` gets the first key of the node that it points at. */
static void set_parent_key(uint8_t *parent, uint32_t slot, const uint8_t *node)
{
	BM_ASSERT(node_ptr(parent, slot)->blockptr == block_header(node)->bytenr);
	ptr_of(parent, slot)->key = node_ptr(node, 0)->key;
}

/*
 * The path goes with its pointer, which pushes to or from the node before may have moved: `place`
 * counts from the start of that one.
 */
static void follow_ptr(struct bm_path *path, int level, const uint8_t *left, uint32_t place)
{
	uint32_t count = block_header(left)->nritems;

	if (count > place) {
		path->node[level] = left;
		path->slot[level + 1]--;
		path->slot[level] = place;
	} else {
		path->slot[level] = place - count;
	}
}

/* Pointers go to the node before: 1, none was moved. */
static int push_to_left(struct bm_writer *writer, struct bm_writer_tree *tree, struct bm_path *path,
			int level, struct bm_fault *fault)
{
	uint8_t *node = bm_writer_writable(writer, path->node[level]);
	uint8_t *parent = bm_writer_writable(writer, path->node[level + 1]);
	uint32_t slot = path->slot[level + 1], count;
	const uint8_t *sibling;
	uint8_t *left;
	int ret;

	if (!slot)
		return 1;
	sibling = bm_writer_read_child(writer, tree, parent, slot - 1, fault);
	if (!sibling)
		return fault->code;
	count = block_header(sibling)->nritems;
	if (count >= writer->node_ptrs - 1)
		return 1;
	left = bm_writer_cow_child(writer, tree, parent, slot - 1, fault);
	if (!left)
		return fault->code;
	ret = push_node_left(writer, tree, left, node, 0, fault);
	if (ret)
		return ret;
	set_parent_key(parent, slot, node);
	follow_ptr(path, level, left, path->slot[level] + count);
	BM_ASSERT(bm_node_is_sound(writer, parent));
	return 0;
}

/* The same to the next node. */
static int push_to_right(struct bm_writer *writer, struct bm_writer_tree *tree,
			 struct bm_path *path, int level, struct bm_fault *fault)
{
	uint8_t *node = bm_writer_writable(writer, path->node[level]);
	uint8_t *parent = bm_writer_writable(writer, path->node[level + 1]);
	uint32_t slot = path->slot[level + 1], count;
	const uint8_t *sibling;
	uint8_t *right;
	int ret;

	if (slot + 1 >= block_header(parent)->nritems)
		return 1;
	sibling = bm_writer_read_child(writer, tree, parent, slot + 1, fault);
	if (!sibling)
		return fault->code;
	if (block_header(sibling)->nritems >= writer->node_ptrs - 1)
		return 1;
	right = bm_writer_cow_child(writer, tree, parent, slot + 1, fault);
	if (!right)
		return fault->code;
	ret = balance_node_right(writer, tree, right, node, fault);
	if (ret)
		return ret;
	set_parent_key(parent, slot + 1, right);
	count = block_header(node)->nritems;
	if (path->slot[level] >= count) {
		path->node[level] = right;
		path->slot[level + 1]++;
		path->slot[level] -= count;
	}
	BM_ASSERT(bm_node_is_sound(writer, parent));
	return 0;
}

/* 1: neither neighbour took any. */
static int push_nodes_for_insert(struct bm_writer *writer, struct bm_writer_tree *tree,
				 struct bm_path *path, int level, struct bm_fault *fault)
{
	int ret = push_to_left(writer, tree, path, level, fault);

	return ret == 1 ? push_to_right(writer, tree, path, level, fault) : ret;
}

/* A node with (nearly) no room for another pointer, on the way to an insertion. */
int bm_split_node(struct bm_writer *writer, struct bm_writer_tree *tree, struct bm_path *path,
		  int level, struct bm_fault *fault)
{
	uint8_t *node, *right;
	uint32_t count, mid;
	struct bm_key key;
	int ret;

	writer->structure++;
	if (bm_writer_is_root(tree, path->node[level])) {
		ret = bm_insert_new_root(writer, tree, path, level + 1, fault);
	} else {
		ret = push_nodes_for_insert(writer, tree, path, level, fault);
		if (!ret && !bm_node_is_full(writer, path->node[level]))
			return BM_OK;
	}
	if (ret < 0)
		return ret;
	node = bm_writer_writable(writer, path->node[level]);
	count = block_header(node)->nritems;
	mid = (count + 1) / 2;
	key = to_key(&node_ptr(node, mid)->key);
	right = bm_writer_alloc_block(writer, tree, level, &key, block_header(node)->bytenr, fault);
	if (!right)
		return fault->code;
	move_ptrs(right, 0, node, mid, count - mid);
	header_of(right)->nritems = count - mid;
	header_of(node)->nritems = mid;
	BM_ASSERT(bm_node_is_sound(writer, node) && bm_node_is_sound(writer, right));
	if (bm_insert_ptr(writer, path, &key, block_header(right)->bytenr,
			  path->slot[level + 1] + 1, level + 1, fault) < 0)
		return fault->code;
	if (path->slot[level] >= mid) {
		path->slot[level] -= mid;
		path->node[level] = right;
		path->slot[level + 1]++;
	}
	return BM_OK;
}

/* The root has one child, which takes its place; the path ends below it. */
static int promote_child(struct bm_writer *writer, struct bm_writer_tree *tree,
			 struct bm_path *path, int level, struct bm_fault *fault)
{
	uint8_t *root = bm_writer_writable(writer, path->node[level]);
	uint8_t *child = bm_writer_cow_child(writer, tree, root, 0, fault);

	if (!child)
		return fault->code;
	bm_writer_set_root(writer, tree, child);
	path->node[level] = NULL;
	BM_ASSERT(tree->level == level - 1);
	return bm_writer_free_block(writer, tree, root, 0, 1, fault);
}

/* A node that became empty leaves its parent. */
static int remove_node(struct bm_writer *writer, struct bm_writer_tree *tree, struct bm_path *path,
		       int level, uint32_t parent_slot, const uint8_t *node, struct bm_fault *fault)
{
	if (bm_del_ptr(writer, tree, path, level + 1, parent_slot, fault) < 0)
		return fault->code;
	return bm_writer_free_block(writer, tree, node, 0, 1, fault);
}

/*
 * A node must not be left with one pointer: a deletion below could take it. What the right
 * neighbour has went into the node before, so it is the left one that gives, or takes.
 */
static int give_second_ptr(const struct bm_writer *writer, const struct bm_writer_tree *tree,
			   uint8_t *node, uint8_t *left, struct bm_fault *fault)
{
	int ret = left ? balance_node_right(writer, tree, node, left, fault) : 1;

	if (ret == 1 && left)
		ret = push_node_left(writer, tree, left, node, 1, fault);
	return ret == 1 ? bad_nritems(tree, node, 2, fault) : ret;
}

/*
 * A node with few pointers, on the way to a deletion, is merged with its
 * neighbours. path->node[level] is NULL when it was the root and is gone.
 */
int bm_balance_level(struct bm_writer *writer, struct bm_writer_tree *tree, struct bm_path *path,
		     int level, struct bm_fault *fault)
{
	uint8_t *node = bm_writer_writable(writer, path->node[level]);
	uint8_t *left = NULL, *right = NULL, *parent;
	uint32_t place = path->slot[level], slot, count = block_header(node)->nritems;

	writer->structure++;
	if (level + 1 >= BTRFS_MAX_LEVEL || !path->node[level + 1])
		return count == 1 ? promote_child(writer, tree, path, level, fault) : BM_OK;
	if (count > writer->node_ptrs / 4)
		return BM_OK;
	parent = bm_writer_writable(writer, path->node[level + 1]);
	slot = path->slot[level + 1];
	if (slot) {
		left = bm_writer_cow_child(writer, tree, parent, slot - 1, fault);
		if (!left)
			return fault->code;
	}
	if (slot + 1 < block_header(parent)->nritems) {
		right = bm_writer_cow_child(writer, tree, parent, slot + 1, fault);
		if (!right)
			return fault->code;
	}
	if (left) {
		place += block_header(left)->nritems;
		if (push_node_left(writer, tree, left, node, 1, fault) < 0)
			return fault->code;
	}
	if (right) {
		if (push_node_left(writer, tree, node, right, 1, fault) < 0)
			return fault->code;
		if (block_header(right)->nritems)
			set_parent_key(parent, slot + 1, right);
		else if (remove_node(writer, tree, path, level, slot + 1, right, fault) < 0)
			return fault->code;
	}
	if (block_header(node)->nritems == 1 &&
	    give_second_ptr(writer, tree, node, left, fault) < 0)
		return fault->code;
	if (block_header(node)->nritems)
		set_parent_key(parent, slot, node);
	else if (remove_node(writer, tree, path, level, slot, node, fault) < 0)
		return fault->code;
	if (left)
		follow_ptr(path, level, left, place);
	BM_ASSERT(bm_node_is_sound(writer, parent) && bm_node_is_sound(writer, path->node[level]));
	return BM_OK;
}
