// SPDX-License-Identifier: GPL-2.0-only
/*
 * Many new files in one call: what a create() of each, and a clone of another file into it, does to
 * the tree of its subvolume.
 */
#include "writer/writer.h"

#include <errno.h>
#include <string.h>

#define NAME_LEN 255
#define SECOND 1000000000ULL

enum { ITEM, REF, PARTS };

/* The payloads of the first two items of a file, as they lie side by side. */
struct new_file {
	struct btrfs_inode_item item;
	struct btrfs_inode_ref ref;
	uint8_t name[NAME_LEN];
};
_Static_assert(sizeof(struct new_file) == 160 + 10 + NAME_LEN, "nothing lies between them");

static void set_times(struct btrfs_inode_item *item, uint64_t time)
{
	const struct btrfs_timespec stamp = {.sec = time / SECOND,
					     .nsec = (uint32_t)(time % SECOND)};

	item->atime = item->ctime = item->mtime = item->otime = stamp;
}

/* The payload of a DIR_ITEM and of a DIR_INDEX; returns how many bytes. */
static uint32_t fill_entry(uint8_t *entry, uint64_t transid, uint64_t ino, const uint8_t *name,
			   uint32_t size)
{
	const struct btrfs_dir_item head = {
	    .location = {.objectid = ino, .type = BTRFS_INODE_ITEM_KEY},
	    .transid = transid,
	    .name_len = (uint16_t)size,
	    .type = BTRFS_FT_REG_FILE};

	memcpy(entry, &head, sizeof(head));
	memcpy(entry + sizeof(head), name, size);
	return (uint32_t)sizeof(head) + size;
}

static int insert_inode(struct bm_writer *writer, struct bm_writer_tree *tree,
			struct bm_fingers *fingers, const struct bm_new_files *files, size_t i,
			struct new_file *file, uint32_t name_size, struct bm_fault *fault)
{
	const uint64_t ino = files->ino + i;
	const struct bm_key keys[PARTS] = {
	    {.objectid = ino, .type = BTRFS_INODE_ITEM_KEY},
	    {.objectid = ino, .type = BTRFS_INODE_REF_KEY, .offset = files->directory}};
	const uint32_t sizes[PARTS] = {sizeof(file->item), (uint32_t)sizeof(file->ref) + name_size};

	set_times(&file->item, files->times[i]);
	file->ref.index = files->index + i;
	file->ref.name_len = (uint16_t)name_size;
	return bm_writer_insert_near(writer, tree, fingers, keys, sizes, PARTS,
				     (const uint8_t *)file, fault);
}

/* btrfs_clone(): the items, each with a reference of its extent. */
static int insert_clones(struct bm_writer *writer, struct bm_writer_tree *tree,
			 struct bm_fingers *fingers, const struct bm_new_files *files, size_t i,
			 struct bm_fault *fault)
{
	const struct bm_span *clones = &files->clones[i];

	if (clones->at > files->extents_count || clones->size > files->extents_count - clones->at)
		return bm_writer_errno(fault, tree, EINVAL);
	for (uint64_t at = clones->at; at < clones->at + clones->size; at++) {
		const struct bm_cloned_extent *extent = &files->extents[at];
		const struct btrfs_file_extent_item *item = &extent->item;
		const struct bm_key key = {.objectid = files->ino + i,
					   .type = BTRFS_EXTENT_DATA_KEY,
					   .offset = extent->start};
		const struct bm_data_ref ref = {.bytenr = item->disk_bytenr,
						.num_bytes = item->disk_num_bytes,
						.root = files->tree,
						.ino = key.objectid,
						.offset = extent->start - item->offset};
		const uint32_t size = sizeof(*item);

		if (bm_writer_insert_near(writer, tree, fingers, &key, &size, 1,
					  (const uint8_t *)item, fault) < 0 ||
		    bm_writer_inc_data_ref(writer, &ref, 1, fault) < 0)
			return fault->code;
	}
	return BM_OK;
}

int64_t bm_writer_new_files(struct bm_writer *writer, const struct bm_new_files *files,
			    uint8_t *entries, struct bm_fault *fault)
{
	struct bm_writer_tree *tree = bm_writer_tree_of(writer, files->tree, fault);
	struct bm_key key = {.objectid = files->directory, .type = BTRFS_DIR_ITEM_KEY};
	struct bm_fingers fingers = {0};
	const uint8_t *name = files->names;
	uint64_t left = files->names_size;
	const uint64_t noted = bm_refs_noted(writer);
	struct new_file file;
	size_t i = 0;

	if (!tree)
		return fault->code;
	memcpy(&file.item, files->item, sizeof(file.item));
	for (; i < files->count; i++) {
		const uint32_t size = files->name_sizes[i];
		uint32_t entry_size;

		if (i >= files->sure && bm_refs_noted(writer) != noted)
			break;
		if (!size || size > NAME_LEN || size > left)
			return bm_writer_errno(fault, tree, EINVAL);
		memcpy(file.name, name, size);
		if (insert_inode(writer, tree, &fingers, files, i, &file, size, fault) < 0)
			return fault->code;
		bm_name_hashes(name, &size, 1, &key.offset);
		entry_size = fill_entry(entries, writer->transid, files->ino + i, name, size);
		if (bm_writer_insert_entry_near(writer, tree, &fingers, &key, entries, entry_size,
						fault) < 0)
			return fault->code;
		if (files->clones && insert_clones(writer, tree, &fingers, files, i, fault) < 0)
			return fault->code;
		entries += entry_size;
		name += size;
		left -= size;
	}
	return (int64_t)i;
}
