// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the items of a leaf say of themselves: tree-checker.c of the kernel.
 *
 * A mounted filesystem uses no leaf before each of its items was looked at alone: sizes, lengths of
 * names, keys, values that do not exist. So nobody who takes an item apart meets a broken one. The
 * image of a writer is checked like that; one that is only read is not, since dumps and checks show
 * damage. What an item says of other items is not looked at here.
 *
 * The rules are those of the kernel (6.18), but for generations; beyond these, every item whose
 * structure we know is at least as long as that.
 */
#include "image/internal.h"

#define FIRST_FREE ((uint64_t)BTRFS_FIRST_FREE_OBJECTID)
#define LAST_FREE ((uint64_t)-256)
#define FREE_INO ((uint64_t)-12)
#define EXTENT_CSUM ((uint64_t)-10)
#define DATA_RELOC_TREE ((uint64_t)-9)
#define FIRST_CHUNK_TREE 256
#define DEV_ITEMS 1

#define NAME_LIMIT 255
#define MODE_FMT 0170000u
#define MODE_DIR 0040000u
#define MODE_ALL 0177777u
#define INODE_FLAGS 0x80000fffULL /* BTRFS_INODE_FLAG_MASK */
#define INODE_RO_FLAGS 1ULL	  /* verity, in the upper half */
#define ROOT_FLAGS (1ULL | 1ULL << 48)
#define OLD_ROOT_ITEM 239
#define TYPE_MASK 7ULL
#define PROFILE_MASK 0x7f8ULL

struct check {
	const struct bm_image *image;
	const uint8_t *leaf;
	uint32_t slot;
	const struct btrfs_disk_key *key;
	const uint8_t *data;
	uint32_t size;
	struct bm_fault *place;
};

static int bad_size(const struct check *check, uint64_t wanted)
{
	check->place->found = check->size;
	check->place->wanted = wanted;
	return BM_BAD_ITEM_SIZE;
}

static int bad_value(const struct check *check, uint64_t found)
{
	check->place->found = found;
	check->place->wanted = 0;
	return BM_BAD_VALUE;
}

static int at_least(const struct check *check, uint32_t size)
{
	return check->size < size ? bad_size(check, size) : BM_OK;
}

static int exactly(const struct check *check, uint32_t size)
{
	return check->size != size ? bad_size(check, size) : BM_OK;
}

static int is_fs_tree(uint64_t owner)
{
	return owner == BTRFS_FS_TREE_OBJECTID || (owner >= FIRST_FREE && owner <= LAST_FREE);
}

/* check_prev_ino(): what belongs to an inode follows its item. */
static int check_prev_ino(const struct check *check)
{
	if (!check->slot || !is_fs_tree(block_header(check->leaf)->owner) ||
	    leaf_item(check->leaf, check->slot - 1)->key.objectid == check->key->objectid)
		return BM_OK;
	return bad_value(check, check->key->objectid);
}

/* check_inode_key() */
static int check_inode_key(const struct check *check, const struct btrfs_disk_key *key)
{
	if ((key->objectid < FIRST_FREE || key->objectid > LAST_FREE) &&
	    key->objectid != BTRFS_ROOT_TREE_DIR_OBJECTID && key->objectid != FREE_INO)
		return bad_value(check, key->objectid);
	return key->offset ? bad_value(check, key->offset) : BM_OK;
}

static int check_inode_item(const struct check *check)
{
	const struct btrfs_inode_item *inode = (const struct btrfs_inode_item *)check->data;
	uint32_t format;
	int ret = check_inode_key(check, check->key);

	if (!ret)
		ret = exactly(check, sizeof(*inode));
	if (ret)
		return ret;
	format = inode->mode & MODE_FMT;
	if (inode->mode & ~MODE_ALL)
		return bad_value(check, inode->mode);
	/* of the formats with more than one bit there are links, block devices and sockets */
	if (format != 0120000 && format != 0060000 && format != 0140000 &&
	    (!format || format & (format - 1)))
		return bad_value(check, inode->mode);
	if (format == MODE_DIR && inode->nlink > 1)
		return bad_value(check, inode->nlink);
	if ((inode->flags & 0xffffffff & ~INODE_FLAGS) || inode->flags >> 32 & ~INODE_RO_FLAGS)
		return bad_value(check, inode->flags);
	return BM_OK;
}

static int check_inode_ref(const struct check *check)
{
	uint32_t at = 0;
	int ret = check_prev_ino(check);

	if (!ret)
		ret = at_least(check, sizeof(struct btrfs_inode_ref));
	if (ret)
		return ret;
	while (at < check->size) {
		const struct btrfs_inode_ref *ref =
		    (const struct btrfs_inode_ref *)(check->data + at);

		at += sizeof(*ref);
		if (at > check->size)
			return bad_size(check, at);
		at += ref->name_len;
		if (at > check->size)
			return bad_size(check, at);
	}
	return BM_OK;
}

static int check_inode_extref(const struct check *check)
{
	uint32_t at = 0;
	int ret = check_prev_ino(check);

	if (!ret)
		ret = at_least(check, sizeof(struct btrfs_inode_extref));
	if (ret)
		return ret;
	while (at < check->size) {
		const struct btrfs_inode_extref *ref =
		    (const struct btrfs_inode_extref *)(check->data + at);

		at += sizeof(*ref);
		if (at > check->size)
			return bad_size(check, at);
		at += ref->name_len;
		if (at > check->size)
			return bad_size(check, at);
	}
	return BM_OK;
}

/* Where an entry of a directory leads to. */
static int check_location(const struct check *check, const struct btrfs_disk_key *location)
{
	switch (location->type) {
	case BTRFS_ROOT_ITEM_KEY:
		if (is_fs_tree(location->objectid))
			return BM_OK;
		return bad_value(check, location->objectid);
	case BTRFS_INODE_ITEM_KEY:
	case 0:
		return check_inode_key(check, location);
	default:
		return bad_value(check, location->type);
	}
}

/* One entry at `at`, which moves behind it. */
static int check_dir_entry(const struct check *check, uint32_t *at)
{
	const struct btrfs_dir_item *entry = (const struct btrfs_dir_item *)(check->data + *at);
	const uint8_t *name = (const uint8_t *)(entry + 1);
	int is_xattr = check->key->type == BTRFS_XATTR_ITEM_KEY;
	uint32_t lengths;
	int ret;

	*at += sizeof(*entry);
	if (*at > check->size)
		return bad_size(check, *at);
	if (entry->type > BTRFS_FT_XATTR || (entry->type == BTRFS_FT_XATTR) != is_xattr)
		return bad_value(check, entry->type);
	if (!is_xattr) {
		ret = check_location(check, &entry->location);
		if (ret)
			return ret;
	}
	lengths = (uint32_t)entry->name_len + entry->data_len;
	if (entry->name_len > NAME_LIMIT || (!is_xattr && entry->data_len))
		return bad_value(check, lengths);
	*at += lengths;
	if (*at > check->size)
		return bad_size(check, *at);
	if (check->key->type != BTRFS_DIR_INDEX_KEY &&
	    check->key->offset != bm_crc32c(~1u, name, entry->name_len))
		return bad_value(check, check->key->offset);
	return BM_OK;
}

static int check_dir_item(const struct check *check)
{
	uint32_t at = 0;
	int ret = check_prev_ino(check);

	if (!ret)
		ret = at_least(check, sizeof(struct btrfs_dir_item));
	while (!ret && at < check->size)
		ret = check_dir_entry(check, &at);
	return ret;
}

/* Where the extent of the same file ends that lies before this one in the leaf; 0 without one. */
static uint64_t extent_end_before(const struct check *check)
{
	const struct btrfs_file_extent_item *before;
	const struct btrfs_disk_key *key;
	uint64_t sector = check->image->sectorsize;

	if (!check->slot)
		return 0;
	key = block_key(check->leaf, check->slot - 1);
	if (key->objectid != check->key->objectid || key->type != BTRFS_EXTENT_DATA_KEY)
		return 0;
	before = (const struct btrfs_file_extent_item *)item_data(check->leaf, check->slot - 1);
	if (before->type == BTRFS_FILE_EXTENT_INLINE)
		return (key->offset + before->ram_bytes + sector - 1) / sector * sector;
	return key->offset + before->num_bytes;
}

static int check_extent_data(const struct check *check)
{
	const struct btrfs_file_extent_item *extent =
	    (const struct btrfs_file_extent_item *)check->data;
	uint64_t sector = check->image->sectorsize;
	int ret = check_prev_ino(check);

	if (!ret)
		ret = at_least(check, BTRFS_FILE_EXTENT_INLINE_DATA_START);
	if (ret)
		return ret;
	if (check->key->offset % sector)
		return bad_value(check, check->key->offset);
	if (extent->type > BTRFS_FILE_EXTENT_PREALLOC)
		return bad_value(check, extent->type);
	if (extent->compression > BTRFS_COMPRESS_ZSTD)
		return bad_value(check, extent->compression);
	if (extent->encryption)
		return bad_value(check, extent->encryption);
	if (extent->type == BTRFS_FILE_EXTENT_INLINE) {
		if (check->key->offset)
			return bad_value(check, check->key->offset);
		if (extent->compression)
			return BM_OK;
		if (check->size != BTRFS_FILE_EXTENT_INLINE_DATA_START + extent->ram_bytes)
			return bad_value(check, extent->ram_bytes);
		return BM_OK;
	}
	ret = exactly(check, sizeof(*extent));
	if (ret)
		return ret;
	for (int field = 0; field < 5; field++) {
		const uint64_t values[] = {extent->ram_bytes, extent->disk_bytenr,
					   extent->disk_num_bytes, extent->offset,
					   extent->num_bytes};

		if (values[field] % sector)
			return bad_value(check, values[field]);
	}
	/* the end of the file's range must be a number */
	if (check->key->offset + extent->num_bytes < check->key->offset)
		return bad_value(check, extent->num_bytes);
	return extent_end_before(check) > check->key->offset ? bad_value(check, check->key->offset)
							     : BM_OK;
}

static int check_csum_item(const struct check *check)
{
	static const uint32_t sizes[] = {4, 8, 32, 32}; /* by enum btrfs_csum_type */
	uint32_t size = sizes[check->image->csum_type];

	if (check->key->objectid != EXTENT_CSUM)
		return bad_value(check, check->key->objectid);
	if (check->key->offset % check->image->sectorsize)
		return bad_value(check, check->key->offset);
	return check->size % size ? bad_size(check, check->size / size * size + size) : BM_OK;
}

static int check_root_item(const struct check *check)
{
	const struct btrfs_root_item *root = (const struct btrfs_root_item *)check->data;

	if (check->size != sizeof(*root) && check->size != OLD_ROOT_ITEM)
		return bad_size(check, sizeof(*root));
	if (!check->key->objectid)
		return bad_value(check, 0);
	if (root->bytenr % check->image->sectorsize)
		return bad_value(check, root->bytenr);
	if (root->level >= BTRFS_MAX_LEVEL)
		return bad_value(check, root->level);
	if (root->drop_level >= BTRFS_MAX_LEVEL)
		return bad_value(check, root->drop_level);
	return root->flags & ~ROOT_FLAGS ? bad_value(check, root->flags) : BM_OK;
}

static int check_root_ref(const struct check *check)
{
	const struct btrfs_root_ref *ref = (const struct btrfs_root_ref *)check->data;
	int ret = at_least(check, sizeof(*ref));

	if (ret)
		return ret;
	return exactly(check, (uint32_t)sizeof(*ref) + ref->name_len);
}

static int check_block_group(const struct check *check)
{
	const struct btrfs_block_group_item *group =
	    (const struct btrfs_block_group_item *)check->data;
	uint64_t profile, type;
	int ret = exactly(check, sizeof(*group));

	if (ret)
		return ret;
	if (!check->key->offset)
		return bad_value(check, 0);
	if (group->chunk_objectid != FIRST_CHUNK_TREE)
		return bad_value(check, group->chunk_objectid);
	if (group->used > check->key->offset)
		return bad_value(check, group->used);
	profile = group->flags & PROFILE_MASK;
	type = group->flags & TYPE_MASK;
	if (profile & (profile - 1) || (type != 1 && type != 2 && type != 4 && type != 5))
		return bad_value(check, group->flags);
	return BM_OK;
}

static int check_dev_item(const struct check *check)
{
	const struct btrfs_dev_item *device = (const struct btrfs_dev_item *)check->data;
	int ret = exactly(check, sizeof(*device));

	if (ret)
		return ret;
	if (check->key->objectid != DEV_ITEMS)
		return bad_value(check, check->key->objectid);
	if (device->devid != check->key->offset)
		return bad_value(check, device->devid);
	return device->bytes_used > device->total_bytes ? bad_value(check, device->bytes_used)
							: BM_OK;
}

static int check_dev_extent(const struct check *check)
{
	const struct btrfs_dev_extent *extent = (const struct btrfs_dev_extent *)check->data;
	uint64_t sector = check->image->sectorsize;
	int ret = exactly(check, sizeof(*extent));

	if (ret)
		return ret;
	if (check->key->offset % sector)
		return bad_value(check, check->key->offset);
	if (extent->chunk_objectid != FIRST_CHUNK_TREE)
		return bad_value(check, extent->chunk_objectid);
	if (extent->chunk_offset % sector)
		return bad_value(check, extent->chunk_offset);
	return extent->length % sector || !extent->length ? bad_value(check, extent->length)
							  : BM_OK;
}

/* The references of an extent are followed by those who know them; here its own place and size. */
static int check_extent_item(const struct check *check)
{
	const struct btrfs_extent_item *extent = (const struct btrfs_extent_item *)check->data;
	int is_metadata = check->key->type == BTRFS_METADATA_ITEM_KEY;
	uint64_t sector = check->image->sectorsize, flags;
	int ret = at_least(check, sizeof(*extent));

	if (ret)
		return ret;
	if (check->key->objectid % sector)
		return bad_value(check, check->key->objectid);
	if (is_metadata ? check->key->offset >= BTRFS_MAX_LEVEL
			: !check->key->offset || check->key->offset % sector)
		return bad_value(check, check->key->offset);
	flags = extent->flags & (BTRFS_EXTENT_FLAG_DATA | BTRFS_EXTENT_FLAG_TREE_BLOCK);
	if (flags != BTRFS_EXTENT_FLAG_DATA && flags != BTRFS_EXTENT_FLAG_TREE_BLOCK)
		return bad_value(check, extent->flags);
	if (is_metadata && flags != BTRFS_EXTENT_FLAG_TREE_BLOCK)
		return bad_value(check, extent->flags);
	return BM_OK;
}

static int check_item(const struct check *check)
{
	switch (check->key->type) {
	case BTRFS_INODE_ITEM_KEY:
		return check_inode_item(check);
	case BTRFS_INODE_REF_KEY:
		return check_inode_ref(check);
	case BTRFS_INODE_EXTREF_KEY:
		return check_inode_extref(check);
	case BTRFS_XATTR_ITEM_KEY:
	case BTRFS_DIR_ITEM_KEY:
	case BTRFS_DIR_INDEX_KEY:
		return check_dir_item(check);
	case BTRFS_EXTENT_DATA_KEY:
		return check_extent_data(check);
	case BTRFS_EXTENT_CSUM_KEY:
		return check_csum_item(check);
	case BTRFS_ROOT_ITEM_KEY:
		return check_root_item(check);
	case BTRFS_ROOT_REF_KEY:
	case BTRFS_ROOT_BACKREF_KEY:
		return check_root_ref(check);
	case BTRFS_EXTENT_ITEM_KEY:
	case BTRFS_METADATA_ITEM_KEY:
		return check_extent_item(check);
	case BTRFS_BLOCK_GROUP_ITEM_KEY:
		return check_block_group(check);
	case BTRFS_DEV_ITEM_KEY:
		return check_dev_item(check);
	case BTRFS_DEV_EXTENT_KEY:
		return check_dev_extent(check);
	case BTRFS_DIR_LOG_ITEM_KEY:
	case BTRFS_DIR_LOG_INDEX_KEY:
		return exactly(check, sizeof(struct btrfs_dir_log_item));
	case BTRFS_EXTENT_DATA_REF_KEY:
		return at_least(check, sizeof(struct btrfs_extent_data_ref));
	case BTRFS_SHARED_DATA_REF_KEY:
		return at_least(check, sizeof(struct btrfs_shared_data_ref));
	case BTRFS_FREE_SPACE_INFO_KEY:
		return exactly(check, sizeof(struct btrfs_free_space_info));
	case BTRFS_UUID_KEY_SUBVOL:
	case BTRFS_UUID_KEY_RECEIVED_SUBVOL:
		return check->size % 8 || !check->size ? bad_size(check, check->size / 8 * 8 + 8)
						       : BM_OK;
	default:
		return BM_OK;
	}
}

int bm_check_leaf(const struct bm_image *image, const uint8_t *leaf, struct bm_fault *place)
{
	const struct btrfs_header *header = block_header(leaf);
	struct check check = {.image = image, .leaf = leaf, .place = place};

	if (!header->nritems && ((header->owner >= BTRFS_ROOT_TREE_OBJECTID &&
				  header->owner <= BTRFS_FS_TREE_OBJECTID) ||
				 header->owner == DATA_RELOC_TREE)) {
		/* these are never empty */
		place->found = 0;
		place->wanted = (image->nodesize - BTRFS_HEADER_SIZE) / BTRFS_ITEM_SIZE;
		return BM_BAD_NRITEMS;
	}
	for (; check.slot < header->nritems; check.slot++) {
		int ret;

		check.key = block_key(leaf, check.slot);
		check.data = item_data(leaf, check.slot);
		check.size = leaf_item(leaf, check.slot)->size;
		place->slot = check.slot;
		ret = check_item(&check);
		if (ret)
			return ret;
	}
	place->slot = 0;
	return BM_OK;
}
