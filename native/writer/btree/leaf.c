// SPDX-License-Identifier: GPL-2.0-only
/*
 * Leaves that change: items come, go, grow and shrink; a full leaf gives to its neighbours or is
 * split, a poor one is emptied into them. The functions of ctree.c under their names; which leaf an
 * item ends up in depends on every comparison here.
 */
#include "image/pool.h"
#include "writer/writer.h"

#include <errno.h>
#include <string.h>

static uint8_t *leaf_of(const struct bm_writer *writer, const struct bm_path *path)
{
	return bm_writer_writable(writer, path->node[0]);
}

/* btrfs_item_data_end() */
static uint32_t data_end(const uint8_t *leaf, uint32_t slot)
{
	return leaf_item(leaf, slot)->offset + leaf_item(leaf, slot)->size;
}

/* leaf_space_used() of `count` items from `start` on. */
static uint32_t space_used(const uint8_t *leaf, uint32_t start, uint32_t count)
{
	if (!count)
		return 0;
	return data_end(leaf, start) - leaf_item(leaf, start + count - 1)->offset +
	       count * BTRFS_ITEM_SIZE;
}

static void move_data(uint8_t *to, uint32_t to_offset, const uint8_t *from, uint32_t from_offset,
		      uint32_t size)
{
	memmove(to + BTRFS_HEADER_SIZE + to_offset, from + BTRFS_HEADER_SIZE + from_offset, size);
}

static void move_items(uint8_t *to, uint32_t to_slot, const uint8_t *from, uint32_t from_slot,
		       uint32_t count)
{
	BM_ASSERT(!block_header(to)->level && !block_header(from)->level);
	memmove(item_of(to, to_slot), leaf_item(from, from_slot), count * BTRFS_ITEM_SIZE);
}

/* The data of all items from `slot` on moved by `by` bytes. */
static void shift_offsets(uint8_t *leaf, uint32_t slot, uint32_t by)
{
	uint32_t count = block_header(leaf)->nritems;

	BM_ASSERT(!block_header(leaf)->level);
	for (; slot < count; slot++)
		item_of(leaf, slot)->offset += by;
}

static struct bm_key first_key(const uint8_t *block)
{
	return to_key(block_key(block, 0));
}

/* ---------------------------------------------------------------------------- in one leaf -- */

/* Items whose data lies below `end`, from one to the next. */
static void put_items(uint8_t *leaf, uint32_t slot, const struct bm_key *keys,
		      const uint32_t *sizes, size_t count, uint32_t end)
{
	for (size_t i = 0; i < count; i++) {
		BM_ASSERT(sizes[i] <= end);
		end -= sizes[i];
		*item_of(leaf, slot + (uint32_t)i) = (struct btrfs_item){
		    .key = to_disk_key(&keys[i]), .offset = end, .size = sizes[i]};
	}
	header_of(leaf)->nritems += (uint32_t)count;
}

/* Does one of the caches lack a leaf of a log? It has it from now on. */
static int is_uncached(struct bm_writer *writer, unsigned int which, uint64_t bytenr)
{
	uint64_t place = bytenr / writer->nodesize % (BM_LOG_CACHE >> which);
	uint64_t *cached = &writer->log_cache[which][place];
	int is_other = bytenr != *cached;

	*cached = bytenr;
	return is_other;
}

/* An insertion goes to a leaf of a log: was the last one there, do caches have it? */
static void count_entered(struct bm_writer *writer, uint64_t bytenr)
{
	COUNT_N(writer->image, log_leaves_entered, bytenr != writer->log_leaf);
	COUNT_N(writer->image, log_leaves_uncached, is_uncached(writer, 0, bytenr));
	COUNT_N(writer->image, log_leaves_uncached_16m, is_uncached(writer, 1, bytenr));
	COUNT_N(writer->image, log_leaves_uncached_8m, is_uncached(writer, 2, bytenr));
	writer->log_leaf = bytenr;
}

/* Whether items fit in at a slot; the parents' keys are fixed. */
static int prepare_insert(struct bm_writer *writer, struct bm_path *path, const struct bm_key *keys,
			  const uint32_t *sizes, size_t count, uint32_t *total,
			  struct bm_fault *fault)
{
	const uint8_t *leaf = path->node[0];
	uint64_t sum = 0;

	for (size_t i = 0; i < count; i++)
		sum += sizes[i];
	if (path->slot[0] > block_header(leaf)->nritems ||
	    sum + count * BTRFS_ITEM_SIZE > bm_leaf_free(writer, leaf))
		return bm_writer_errno(fault, NULL, EOVERFLOW);
	COUNT(writer->image, setup_items_for_insert);
	if (!path->slot[0] && bm_fixup_low_keys(path, keys, 1, fault) < 0)
		return fault->code;
	if (bm_is_log(leaf)) {
		bm_count_copied(writer, count, sum + count * BTRFS_ITEM_SIZE);
		count_entered(writer, block_header(leaf)->bytenr);
	}
	*total = (uint32_t)sum;
	return BM_OK;
}

int bm_setup_items_for_insert(struct bm_writer *writer, struct bm_path *path,
			      const struct bm_key *keys, const uint32_t *sizes, size_t count,
			      struct bm_fault *fault)
{
	uint8_t *leaf = leaf_of(writer, path);
	uint32_t slot = path->slot[0], nritems = block_header(leaf)->nritems;
	uint32_t start, end = writer->leaf_size, total = 0;

	if (prepare_insert(writer, path, keys, sizes, count, &total, fault) < 0)
		return fault->code;
	bm_leaf_tidy(writer, leaf);
	start = bm_leaf_start(writer, leaf);
	if (slot)
		end = leaf_item(leaf, slot - 1)->offset;
	if (slot < nritems) {
		shift_offsets(leaf, slot, -total);
		move_items(leaf, slot + (uint32_t)count, leaf, slot, nritems - slot);
		move_data(leaf, start - total, leaf, start, end - start);
	}
	put_items(leaf, slot, keys, sizes, count, end);
	BM_ASSERT(bm_writer_is_new(writer, leaf) && bm_leaf_is_sound(writer, leaf));
	return BM_OK;
}

/* ------------------------------------------------------------------------------ loose leaves -- */

static void set_loose(const struct bm_writer *writer, const uint8_t *leaf, int loose)
{
	uint64_t sector = (uint64_t)(leaf - writer->image->blocks) / writer->sectorsize;
	uint8_t bit = (uint8_t)(1 << sector % 8);

	if (loose)
		writer->loose_bits[sector / 8] |= bit;
	else
		writer->loose_bits[sector / 8] &= (uint8_t)~bit;
}

/* The leaf will be tidied at the end of the call. */
static int remember_loose(struct bm_writer *writer, uint8_t *leaf, struct bm_fault *fault)
{
	void *larger = grown(writer->loose, writer->loose_count, &writer->loose_capacity, 256,
			     sizeof(*writer->loose));

	if (!larger)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	writer->loose = larger;
	writer->loose[writer->loose_count++] = leaf;
	set_loose(writer, leaf, 1);
	return BM_OK;
}

int bm_setup_items_loose(struct bm_writer *writer, struct bm_path *path, const struct bm_key *keys,
			 const uint32_t *sizes, size_t count, struct bm_fault *fault)
{
	uint8_t *leaf = leaf_of(writer, path);
	uint32_t slot = path->slot[0], nritems = block_header(leaf)->nritems;
	uint32_t start = bm_leaf_start(writer, leaf), total = 0;

	/* nothing lies in the way behind the last item */
	if (slot >= nritems && !bm_leaf_is_loose(writer, leaf))
		return bm_setup_items_for_insert(writer, path, keys, sizes, count, fault);
	if (prepare_insert(writer, path, keys, sizes, count, &total, fault) < 0)
		return fault->code;
	if (!bm_leaf_is_loose(writer, leaf) && remember_loose(writer, leaf, fault) < 0)
		return fault->code;
	move_items(leaf, slot + (uint32_t)count, leaf, slot, nritems - slot);
	put_items(leaf, slot, keys, sizes, count, start);
	start -= total;
	memcpy(leaf, &start, sizeof(start));
	BM_ASSERT(bm_writer_is_new(writer, leaf) && bm_leaf_is_sound(writer, leaf));
	return BM_OK;
}

void bm_leaf_tidy(struct bm_writer *writer, uint8_t *leaf)
{
	uint32_t start, end = writer->leaf_size;
	uint8_t data[65536];

	if (!bm_leaf_is_loose(writer, leaf))
		return;
	start = bm_leaf_start(writer, leaf);
	memcpy(data, leaf + BTRFS_HEADER_SIZE + start, end - start);
	for (uint32_t slot = 0; slot < block_header(leaf)->nritems; slot++) {
		struct btrfs_item *item = item_of(leaf, slot);

		end -= item->size;
		memcpy(leaf + BTRFS_HEADER_SIZE + end, data + item->offset - start, item->size);
		item->offset = end;
	}
	BM_ASSERT(end == start);
	memset(leaf, 0, BTRFS_CSUM_SIZE);
	set_loose(writer, leaf, 0);
	BM_ASSERT(bm_leaf_is_sound(writer, leaf));
}

void bm_writer_tidy(struct bm_writer *writer)
{
	while (writer->loose_count)
		bm_leaf_tidy(writer, writer->loose[--writer->loose_count]);
}

/* ------------------------------------------------------------------- one item that is there -- */

/* `size` bytes more at the end of the payload; the leaf has room for them. */
void bm_extend_item(struct bm_writer *writer, struct bm_path *path, uint32_t size)
{
	uint8_t *leaf = leaf_of(writer, path);
	uint32_t slot = path->slot[0], start, end;

	BM_ASSERT(size <= bm_leaf_free(writer, leaf));
	bm_leaf_tidy(writer, leaf);
	start = bm_leaf_start(writer, leaf);
	end = data_end(leaf, slot);
	shift_offsets(leaf, slot, -size);
	move_data(leaf, start - size, leaf, start, end - start);
	item_of(leaf, slot)->size += size;
	BM_ASSERT(bm_writer_is_new(writer, leaf) && bm_leaf_is_sound(writer, leaf));
	if (bm_is_log(leaf))
		bm_count_copied(writer, 0, size);
}

/* The key stays, which the kernel moves on where the start is cut off. */
void bm_truncate_item(struct bm_writer *writer, struct bm_path *path, uint32_t new_size,
		      int from_end)
{
	uint8_t *leaf = leaf_of(writer, path);
	uint32_t slot = path->slot[0], start, offset;
	uint32_t less = leaf_item(leaf, slot)->size - new_size;

	BM_ASSERT(new_size <= leaf_item(leaf, slot)->size);
	bm_leaf_tidy(writer, leaf);
	start = bm_leaf_start(writer, leaf);
	offset = leaf_item(leaf, slot)->offset;
	/* what stays of the item ends at its end, so its first or its last bytes close the gap */
	move_data(leaf, start + less, leaf, start, offset + (from_end ? 0 : new_size) - start);
	shift_offsets(leaf, slot, less);
	item_of(leaf, slot)->size = new_size;
	BM_ASSERT(bm_writer_is_new(writer, leaf) && bm_leaf_is_sound(writer, leaf));
}

/* ------------------------------------------------------------------------ to the neighbours -- */

/* How __push_leaf_right() and __push_leaf_left() choose: an item that follows those chosen. */
struct push {
	uint32_t place; /* path->slot[0] */
	int64_t min;	/* min_data_size of the kernel */
	int64_t room;	/* free in the neighbour */
	int64_t free;	/* free in the leaf */
	int64_t space;	/* chosen so far */
	uint32_t items;
	int empty;
};

/* Take the item at `slot` or stop. `beyond`: the place of the insertion is on the way already. */
static int push_takes(struct push *push, const uint8_t *leaf, uint32_t slot, int beyond)
{
	uint32_t size = leaf_item(leaf, slot)->size;

	if (!push->empty && push->items) {
		if (beyond)
			return 0;
		if (push->place == slot && push->free + push->space * 2 > push->room)
			return 0;
	}
	if (push->place == slot)
		push->space += push->min;
	if (size + BTRFS_ITEM_SIZE + push->space > push->room)
		return 0;
	push->items++;
	push->space += size + BTRFS_ITEM_SIZE;
	return 1;
}

/* The last `items` items of `left` become the first of `right`. */
static void shift_right(const struct bm_writer *writer, uint8_t *left, uint8_t *right,
			uint32_t items)
{
	uint32_t keep = block_header(left)->nritems - items, count = block_header(right)->nritems;
	uint32_t start = bm_leaf_start(writer, right), bytes;

	bytes = data_end(left, keep) - bm_leaf_start(writer, left);
	move_data(right, start - bytes, right, start, writer->leaf_size - start);
	move_data(right, writer->leaf_size - bytes, left, bm_leaf_start(writer, left), bytes);
	shift_offsets(right, 0, -bytes);
	move_items(right, items, right, 0, count);
	move_items(right, 0, left, keep, items);
	header_of(right)->nritems = count + items;
	header_of(left)->nritems = keep;
	bytes = writer->leaf_size;
	for (uint32_t slot = 0; slot < items; slot++) {
		bytes -= leaf_item(right, slot)->size;
		item_of(right, slot)->offset = bytes;
	}
	BM_ASSERT(bm_leaf_is_sound(writer, left) && bm_leaf_is_sound(writer, right));
}

/* The first `items` items of `right` become the last of `left`. */
static void shift_left(const struct bm_writer *writer, uint8_t *left, uint8_t *right,
		       uint32_t items)
{
	uint32_t count = block_header(left)->nritems, rest = block_header(right)->nritems - items;
	uint32_t start = bm_leaf_start(writer, left), cut = leaf_item(right, items - 1)->offset;
	uint32_t bytes = writer->leaf_size - cut, old_start = bm_leaf_start(writer, right);

	move_data(left, start - bytes, right, cut, bytes);
	move_items(left, count, right, 0, items);
	header_of(left)->nritems = count + items;
	shift_offsets(left, count, start - writer->leaf_size);
	move_data(right, old_start + bytes, right, old_start, cut - old_start);
	move_items(right, 0, right, items, rest);
	header_of(right)->nritems = rest;
	shift_offsets(right, 0, bytes);
	BM_ASSERT(bm_leaf_is_sound(writer, left) && bm_leaf_is_sound(writer, right));
}

/*
 * Items from the end of the leaf, down to min_slot, go to the next leaf of the
 * same parent if that has `data_size` free. 1: none was moved.
 */
static int push_leaf_right(struct bm_writer *writer, struct bm_writer_tree *tree,
			   struct bm_path *path, int64_t min, int64_t data_size, int empty,
			   uint32_t min_slot, struct bm_fault *fault)
{
	uint8_t *left = leaf_of(writer, path), *parent, *right;
	uint32_t count = block_header(left)->nritems, slot = path->slot[1], last;
	struct push push = {.place = path->slot[0], .min = min, .empty = empty};
	const uint8_t *sibling;
	struct bm_key key;

	if (!path->node[1] || slot + 1 >= block_header(path->node[1])->nritems)
		return 1;
	parent = bm_writer_writable(writer, path->node[1]);
	sibling = bm_writer_read_child(writer, tree, parent, slot + 1, fault);
	if (!sibling)
		return fault->code;
	push.room = bm_leaf_free(writer, sibling);
	push.free = bm_leaf_free(writer, left);
	if (push.room < data_size)
		return 1;
	right = bm_writer_cow_child(writer, tree, parent, slot + 1, fault);
	if (!right)
		return fault->code;
	bm_leaf_tidy(writer, right);
	if (!count)
		return 1;
	if (bm_check_sibling_keys(tree, left, right, fault) < 0)
		return fault->code;
	if (push.place == count && !empty) {
		/* the new item is greater than all of the leaf: it can be the first of the next */
		path->node[0] = right;
		path->slot[0] = 0;
		path->slot[1]++;
		return 0;
	}
	if (push.place >= count)
		push.space = min;
	last = empty ? 0 : min_slot > 1 ? min_slot : 1;
	for (uint32_t i = count; i > last; i--)
		if (!push_takes(&push, left, i - 1, push.place > i - 1))
			break;
	if (!push.items)
		return 1;
	shift_right(writer, left, right, push.items);
	key = first_key(right);
	ptr_of(parent, slot + 1)->key = to_disk_key(&key);
	count -= push.items;
	if (push.place >= count) {
		path->slot[0] -= count;
		path->node[0] = right;
		path->slot[1]++;
	}
	BM_ASSERT(bm_path_is_sound(writer, tree, path));
	return 0;
}

/* Items from the start of the leaf, up to max_slot, go to the leaf before. */
static int push_leaf_left(struct bm_writer *writer, struct bm_writer_tree *tree,
			  struct bm_path *path, int64_t min, int64_t data_size, int empty,
			  uint32_t max_slot, struct bm_fault *fault)
{
	uint8_t *right = leaf_of(writer, path), *parent, *left;
	uint32_t count = block_header(right)->nritems, slot = path->slot[1], end, before;
	struct push push = {.place = path->slot[0], .min = min, .empty = empty};
	const uint8_t *sibling;

	if (!path->node[1] || !slot || !count)
		return 1;
	parent = bm_writer_writable(writer, path->node[1]);
	sibling = bm_writer_read_child(writer, tree, parent, slot - 1, fault);
	if (!sibling)
		return fault->code;
	push.room = bm_leaf_free(writer, sibling);
	push.free = bm_leaf_free(writer, right);
	if (push.room < data_size)
		return 1;
	left = bm_writer_cow_child(writer, tree, parent, slot - 1, fault);
	if (!left)
		return fault->code;
	bm_leaf_tidy(writer, left);
	if (bm_check_sibling_keys(tree, left, right, fault) < 0)
		return fault->code;
	end = empty ? count : count - 1;
	if (end > max_slot)
		end = max_slot;
	for (uint32_t i = 0; i < end; i++)
		if (!push_takes(&push, right, i, push.place < i))
			break;
	if (!push.items)
		return 1;
	before = block_header(left)->nritems;
	shift_left(writer, left, right, push.items);
	if (block_header(right)->nritems) {
		struct bm_key key = first_key(right);

		if (bm_fixup_low_keys(path, &key, 1, fault) < 0)
			return fault->code;
	}
	if (push.place < push.items) {
		path->slot[0] += before;
		path->node[0] = left;
		path->slot[1]--;
	} else {
		path->slot[0] -= push.items;
	}
	BM_ASSERT(!block_header(path->node[0])->nritems || bm_path_is_sound(writer, tree, path));
	return 0;
}

/* -------------------------------------------------------------------------------- splitting -- */

/* Get the place of the insertion to an end of a leaf. */
static int push_for_double_split(struct bm_writer *writer, struct bm_writer_tree *tree,
				 struct bm_path *path, uint32_t data_size, struct bm_fault *fault)
{
	int64_t needed = data_size;
	uint32_t slot = path->slot[0], count = block_header(path->node[0])->nritems;
	int ret;

	if (slot < count)
		needed -= bm_leaf_free(writer, path->node[0]);
	ret = push_leaf_right(writer, tree, path, 1, needed, 0, slot, fault);
	if (ret < 0)
		return ret;
	slot = path->slot[0];
	count = block_header(path->node[0])->nritems;
	if (!slot || slot == count || bm_leaf_free(writer, path->node[0]) >= data_size)
		return 0;
	needed = (int64_t)data_size - bm_leaf_free(writer, path->node[0]);
	return push_leaf_left(writer, tree, path, 1, needed, 0, slot, fault);
}

/* The first thing that split_leaf() tries: 0 there is room now, 1 there is not. */
static int push_to_neighbours(struct bm_writer *writer, struct bm_writer_tree *tree,
			      struct bm_path *path, uint32_t data_size, struct bm_fault *fault)
{
	const uint8_t *leaf = path->node[0];
	int64_t free = bm_leaf_free(writer, leaf), needed = data_size;
	int ret;

	if (path->slot[0] < block_header(leaf)->nritems)
		needed -= free;
	ret = push_leaf_right(writer, tree, path, needed, needed, 0, 0, fault);
	if (ret == 1) {
		needed = path->slot[0] ? data_size - free : data_size;
		ret = push_leaf_left(writer, tree, path, needed, needed, 0, UINT32_MAX, fault);
	}
	if (ret < 0)
		return ret;
	return bm_leaf_free(writer, path->node[0]) < data_size;
}

enum split {
	SPLIT_EMPTY,	    /* a new leaf for the new item alone */
	SPLIT_ONCE,	    /* at `mid` */
	SPLIT_TWICE,	    /* at `mid`, and the part with the place once more */
	SPLIT_PUSH_INSTEAD, /* before a second split: would pushing help? */
};

/* Where split_leaf() splits. */
static enum split choose_split(const struct bm_writer *writer, const struct bm_path *path,
			       uint32_t data_size, int extend, int pushed, uint32_t *mid)
{
	const uint8_t *leaf = path->node[0];
	uint32_t slot = path->slot[0], count = block_header(leaf)->nritems;
	uint32_t limit = writer->leaf_size - data_size;

	*mid = (count + 1) / 2;
	if (*mid <= slot) {
		if (count != 1 && space_used(leaf, *mid, count - *mid) <= limit)
			return SPLIT_ONCE;
		if (slot >= count)
			return SPLIT_EMPTY;
	} else {
		if (space_used(leaf, 0, *mid) <= limit)
			return SPLIT_ONCE;
		if (!slot) {
			*mid = 1;
			return extend ? SPLIT_ONCE : SPLIT_EMPTY;
		}
	}
	*mid = slot;
	if (space_used(leaf, slot, count - slot) <= limit)
		return SPLIT_ONCE;
	return pushed ? SPLIT_TWICE : SPLIT_PUSH_INSTEAD;
}

/* A new leaf for the new item, before the present one or behind it. */
static int split_for_new_item(struct bm_writer *writer, struct bm_path *path, uint8_t *new,
			      const struct bm_key *key, struct bm_fault *fault)
{
	uint32_t place = path->slot[1] + (path->slot[0] ? 1 : 0);

	if (bm_insert_ptr(writer, path, key, block_header(new)->bytenr, place, 1, fault) < 0)
		return fault->code;
	path->node[0] = new;
	path->slot[0] = 0;
	path->slot[1] = place;
	return place ? BM_OK : bm_fixup_low_keys(path, key, 1, fault);
}

/* The items from `mid` on go to the new leaf, which follows in the parent. */
static int copy_for_split(struct bm_writer *writer, struct bm_path *path, uint8_t *new,
			  uint32_t mid, struct bm_fault *fault)
{
	uint8_t *leaf = leaf_of(writer, path);
	uint32_t moved = block_header(leaf)->nritems - mid;
	uint32_t start = bm_leaf_start(writer, leaf), end = data_end(leaf, mid);
	struct bm_key key = to_key(&leaf_item(leaf, mid)->key);

	if (bm_insert_ptr(writer, path, &key, block_header(new)->bytenr, path->slot[1] + 1, 1,
			  fault) < 0)
		return fault->code;
	move_items(new, 0, leaf, mid, moved);
	move_data(new, start + writer->leaf_size - end, leaf, start, end - start);
	header_of(new)->nritems = moved;
	shift_offsets(new, 0, writer->leaf_size - end);
	header_of(leaf)->nritems = mid;
	BM_ASSERT(bm_leaf_is_sound(writer, leaf) && bm_leaf_is_sound(writer, new));
	if (path->slot[0] >= mid) {
		path->node[0] = new;
		path->slot[0] -= mid;
		path->slot[1]++;
	}
	return BM_OK;
}

/*
 * Make room for `data_size` bytes at path->slot[0], the header of a new item
 * included; with `extend` the item there is to grow. `key` is that of the new item.
 */
int bm_split_leaf(struct bm_writer *writer, struct bm_writer_tree *tree, const struct bm_key *key,
		  struct bm_path *path, uint32_t data_size, int extend, struct bm_fault *fault)
{
	uint64_t size = data_size;
	int pushed = 0, ret;

	writer->structure++;
	bm_leaf_tidy(writer, leaf_of(writer, path));
	if (extend)
		size += leaf_item(path->node[0], path->slot[0])->size + BTRFS_ITEM_SIZE;
	if (size > writer->leaf_size)
		return bm_writer_errno(fault, tree, EOVERFLOW);
	if (path->node[1]) {
		ret = push_to_neighbours(writer, tree, path, data_size, fault);
		if (ret <= 0)
			return ret;
	} else if (bm_insert_new_root(writer, tree, path, 1, fault) < 0) {
		return fault->code;
	}
	for (;;) {
		uint32_t mid;
		enum split split = choose_split(writer, path, data_size, extend, pushed, &mid);
		const uint8_t *leaf = path->node[0];
		struct bm_key first;
		uint8_t *new;

		if (split == SPLIT_PUSH_INSTEAD) {
			if (push_for_double_split(writer, tree, path, data_size, fault) < 0)
				return fault->code;
			pushed = 1;
			if (bm_leaf_free(writer, path->node[0]) >= data_size)
				return BM_OK;
			continue;
		}
		first = split == SPLIT_EMPTY ? *key : to_key(&leaf_item(leaf, mid)->key);
		new = bm_writer_alloc_block(writer, tree, 0, &first, block_header(leaf)->bytenr,
					    fault);
		if (!new)
			return fault->code;
		if (split == SPLIT_EMPTY)
			return split_for_new_item(writer, path, new, key, fault);
		if (copy_for_split(writer, path, new, mid, fault) < 0)
			return fault->code;
		if (split == SPLIT_ONCE) {
			BM_ASSERT(bm_leaf_free(writer, path->node[0]) >= data_size);
			return BM_OK;
		}
	}
}

/* --------------------------------------------------------------------------------- deleting -- */

static int del_leaf(struct bm_writer *writer, struct bm_writer_tree *tree, struct bm_path *path,
		    const uint8_t *leaf, struct bm_fault *fault)
{
	if (bm_del_ptr(writer, tree, path, 1, path->slot[1], fault) < 0)
		return fault->code;
	return bm_writer_free_block(writer, tree, leaf, 0, 1, fault);
}

/*
 * What is left of a leaf with few items goes to the neighbours if they have room: since 5.18 all of it
 * (or the first item), before that as many items as fit.
 */
static int empty_leaf(struct bm_writer *writer, struct bm_writer_tree *tree, struct bm_path *path,
		      struct bm_fault *fault)
{
	uint8_t *leaf = leaf_of(writer, path);
	uint32_t slot = path->slot[1];
	int lazy = writer->behaviour >> BM_TOGGLE_LEAF_BALANCE_LAZY & 1, min = !lazy;
	int64_t needed = lazy ? BTRFS_ITEM_SIZE + leaf_item(leaf, 0)->size : 1;

	BM_ASSERT(bm_path_is_sound(writer, tree, path));
	if (push_leaf_left(writer, tree, path, min, needed, 1, UINT32_MAX, fault) < 0)
		return fault->code;
	if (path->node[0] == leaf && block_header(leaf)->nritems) {
		needed = lazy ? bm_leaf_used(writer, leaf) : 1;
		if (push_leaf_right(writer, tree, path, min, needed, 1, 0, fault) < 0)
			return fault->code;
	}
	if (block_header(leaf)->nritems)
		return BM_OK;
	path->slot[1] = slot;
	return del_leaf(writer, tree, path, leaf, fault);
}

int bm_del_items(struct bm_writer *writer, struct bm_writer_tree *tree, struct bm_path *path,
		 uint32_t slot, uint32_t count, struct bm_fault *fault)
{
	uint8_t *leaf = leaf_of(writer, path);
	uint32_t nritems = block_header(leaf)->nritems, start, last, bytes;

	writer->structure++;
	bm_leaf_tidy(writer, leaf);
	start = bm_leaf_start(writer, leaf);
	if (!count || count > nritems || slot > nritems - count)
		return bm_writer_errno(fault, tree, ENOENT);
	last = leaf_item(leaf, slot + count - 1)->offset;
	bytes = data_end(leaf, slot) - last;
	move_data(leaf, start + bytes, leaf, start, last - start);
	shift_offsets(leaf, slot + count, bytes);
	move_items(leaf, slot, leaf, slot + count, nritems - slot - count);
	header_of(leaf)->nritems = nritems - count;
	BM_ASSERT(bm_writer_is_new(writer, leaf) && bm_leaf_is_sound(writer, leaf));
	if (nritems == count)
		return path->node[1] ? del_leaf(writer, tree, path, leaf, fault) : BM_OK;
	if (!slot) {
		struct bm_key key = first_key(leaf);

		if (bm_fixup_low_keys(path, &key, 1, fault) < 0)
			return fault->code;
	}
	if (bm_leaf_used(writer, leaf) < writer->leaf_size / 3)
		return empty_leaf(writer, tree, path, fault);
	return BM_OK;
}
