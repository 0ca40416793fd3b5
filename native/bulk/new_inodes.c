// SPDX-License-Identifier: GPL-2.0-only
/*
 * Inodes that are made under one name and get another, one after the other: what the making of a
 * file, directory or symbolic link does to the tree of a subvolume, and the rename behind it.
 */
#include "writer/writer.h"

#include <errno.h>
#include <string.h>

#define NAME_LEN 255
#define SECOND 1000000000ULL
#define S_IFMT 0170000u
#define S_IFDIR 0040000u
#define S_IFLNK 0120000u

/* An entry of a directory, and a name of an inode. */
struct entry {
	struct btrfs_dir_item head;
	uint8_t name[NAME_LEN];
};
struct ref {
	struct btrfs_inode_ref head;
	uint8_t name[NAME_LEN];
};
/* The payloads of the first two items of an inode, as they lie side by side. */
struct first_items {
	struct btrfs_inode_item item;
	struct ref ref;
};
_Static_assert(sizeof(struct first_items) == 160 + 10 + NAME_LEN, "nothing lies between them");

struct run {
	struct bm_writer *writer;
	struct bm_writer_tree *tree;
	const struct bm_new_inodes *args;
	struct bm_fault *fault;
};

static uint32_t fill_ref(struct ref *ref, uint64_t index, const uint8_t *name, uint32_t size)
{
	ref->head.index = index;
	ref->head.name_len = (uint16_t)size;
	memcpy(ref->name, name, size);
	return (uint32_t)sizeof(ref->head) + size;
}

static uint8_t type_of(uint32_t mode)
{
	if ((mode & S_IFMT) == S_IFDIR)
		return BTRFS_FT_DIR;
	return (mode & S_IFMT) == S_IFLNK ? BTRFS_FT_SYMLINK : BTRFS_FT_REG_FILE;
}

static int insert_entry(const struct run *run, const struct bm_key *key, uint64_t ino,
			uint32_t mode, const uint8_t *name, uint32_t size)
{
	struct entry entry = {.head = {.location = {.objectid = ino, .type = BTRFS_INODE_ITEM_KEY},
				       .transid = run->writer->transid,
				       .name_len = (uint16_t)size,
				       .type = type_of(mode)}};
	const uint32_t whole = (uint32_t)sizeof(entry.head) + size;

	memcpy(entry.name, name, size);
	return bm_writer_insert(run->writer, run->tree->id, key, &whole, 1, (const uint8_t *)&entry,
				run->fault);
}

/* The target of a symbolic link, as an inline extent. */
static int insert_target(const struct run *run, uint64_t ino, const uint8_t *target, uint32_t size)
{
	const struct bm_key key = {.objectid = ino, .type = BTRFS_EXTENT_DATA_KEY};
	const uint32_t head = offsetof(struct btrfs_file_extent_item, disk_bytenr);
	struct btrfs_file_extent_item item = {.generation = run->writer->transid,
					      .ram_bytes = size};
	uint8_t payload[sizeof(item) + BM_NEW_INODE_TARGET];
	const uint32_t whole = head + size;

	memcpy(payload, &item, head);
	memcpy(payload + head, target, size);
	return bm_writer_insert(run->writer, run->tree->id, &key, &whole, 1, payload, run->fault);
}

/* btrfs_create_new_inode(), btrfs_symlink() */
static int create(const struct run *run, const struct bm_new_inode *inode, uint64_t ino,
		  const struct bm_key *entry)
{
	const struct bm_key keys[] = {
	    {.objectid = ino, .type = BTRFS_INODE_ITEM_KEY},
	    {.objectid = ino, .type = BTRFS_INODE_REF_KEY, .offset = inode->directory}};
	const struct btrfs_timespec time = {.sec = inode->time / SECOND,
					    .nsec = (uint32_t)(inode->time % SECOND)};
	const uint8_t *name = run->args->data + inode->made.at;
	const uint32_t size = (uint32_t)inode->made.size;
	struct first_items items;
	uint32_t sizes[] = {sizeof(items.item), 0};

	memcpy(&items.item, run->args->item, sizeof(items.item));
	items.item.mode = inode->mode;
	items.item.size = items.item.nbytes = inode->target.size;
	items.item.atime = items.item.ctime = items.item.mtime = items.item.otime = time;
	sizes[1] = fill_ref(&items.ref, inode->index, name, size);
	if (bm_writer_insert(run->writer, run->tree->id, keys, sizes, 2, (const uint8_t *)&items,
			     run->fault) < 0 ||
	    insert_entry(run, entry, ino, inode->mode, name, size) < 0)
		return run->fault->code;
	if (inode->target.size)
		return insert_target(run, ino, run->args->data + inode->target.at,
				     (uint32_t)inode->target.size);
	return BM_OK;
}

/* btrfs_rename(): the new name of the inode, then the old entry and name go, then the new entry. */
static int rename_to(const struct run *run, const struct bm_new_inode *inode, uint64_t ino,
		     const struct bm_key *from, const struct bm_key *to)
{
	const struct bm_key ref = {
	    .objectid = ino, .type = BTRFS_INODE_REF_KEY, .offset = inode->to_directory};
	const struct bm_key old_ref = {
	    .objectid = ino, .type = BTRFS_INODE_REF_KEY, .offset = inode->directory};
	const uint8_t *old = run->args->data + inode->made.at;
	const uint8_t *name = run->args->data + inode->name.at;
	const uint32_t old_size = (uint32_t)inode->made.size, size = (uint32_t)inode->name.size;
	const uint64_t id = run->tree->id;
	struct ref payload;
	const uint32_t whole = fill_ref(&payload, inode->to_index, name, size);
	uint64_t index;

	if (bm_writer_insert_entry(run->writer, id, &ref, (const uint8_t *)&payload, whole,
				   run->fault) < 0 ||
	    bm_writer_delete_entry(run->writer, id, from, old, old_size, &index, run->fault) < 0 ||
	    bm_writer_delete_entry(run->writer, id, &old_ref, old, old_size, &index, run->fault) <
		0)
		return run->fault->code;
	return insert_entry(run, to, ino, inode->mode, name, size);
}

/* Whether a span of bytes is there and has not too many; 0: it is not. */
static int is_there(const struct bm_new_inodes *args, const struct bm_span *span, uint64_t most)
{
	return span->size <= most && span->at <= args->size && span->size <= args->size - span->at;
}

static struct bm_key entry_key(const struct bm_new_inodes *args, uint64_t directory,
			       const struct bm_span *name)
{
	struct bm_key key = {.objectid = directory, .type = BTRFS_DIR_ITEM_KEY};
	const uint32_t size = (uint32_t)name->size;

	bm_name_hashes(args->data + name->at, &size, 1, &key.offset);
	return key;
}

/* Whether an item has the key: 1, 0. */
static int is_taken(const struct run *run, const struct bm_key *key)
{
	struct bm_path path = {0};
	int ret = bm_writer_find(run->writer, run->tree, key, &path, run->fault);

	return ret < 0 ? ret : !ret;
}

/* The next inode: 1, or 0 when one of its entries would share an item with another. */
static int make_one(const struct run *run, const struct bm_new_inode *inode, uint64_t ino)
{
	const struct bm_key from = entry_key(run->args, inode->directory, &inode->made);
	const struct bm_key to = entry_key(run->args, inode->to_directory, &inode->name);
	int ret;

	if (from.objectid == to.objectid && from.offset == to.offset)
		return 0;
	ret = inode->there ? 0 : is_taken(run, &from);
	if (!ret)
		ret = is_taken(run, &to);
	if (ret)
		return ret < 0 ? ret : 0;
	if ((!inode->there && create(run, inode, ino, &from) < 0) ||
	    rename_to(run, inode, ino, &from, &to) < 0)
		return run->fault->code;
	return 1;
}

int64_t bm_writer_new_inodes(struct bm_writer *writer, const struct bm_new_inodes *args,
			     struct bm_fault *fault)
{
	const struct run run = {.writer = writer,
				.tree = bm_writer_tree_of(writer, args->tree, fault),
				.args = args,
				.fault = fault};
	int ret = 1;
	size_t i = 0;

	if (!run.tree)
		return fault->code;
	for (; i < args->count && ret > 0; i += ret > 0) {
		const struct bm_new_inode *inode = &args->inodes[i];

		if (!inode->made.size || !inode->name.size ||
		    !is_there(args, &inode->made, NAME_LEN) ||
		    !is_there(args, &inode->name, NAME_LEN) ||
		    !is_there(args, &inode->target, BM_NEW_INODE_TARGET))
			return bm_writer_errno(fault, run.tree, EINVAL);
		ret = make_one(&run, inode, args->ino + i);
	}
	return ret < 0 ? ret : (int64_t)i;
}
