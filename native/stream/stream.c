// SPDX-License-Identifier: GPL-2.0-only
/*
 * Send streams: finding and verifying the commands.
 *
 * A stream is a header of 17 bytes and commands; a command is a header of 10 bytes and attributes:
 *
 *   header:    "btrfs-stream\0" | version u32
 *   command:   length u32 | type u16 | crc u32 | attributes of `length` bytes
 *   attribute: type u16 | length u16 | value         (DATA from version 2 on: no length)
 *
 * The reader does not interpret a value, it only says where it lies. Nothing is believed: a length
 * is compared with what is there before it is followed, and no command is handed out unless its
 * CRC is right, so stream/text.c may rely on what the reader has checked.
 */
#include "stream/stream.h"

#define BIT(attribute) (1ull << (attribute))
#define PATH_AND(attributes) (BIT(BTRFS_SEND_A_PATH) | (attributes))

const struct bm_stream_command_rule bm_stream_command_rules[BTRFS_SEND_C_COUNT] = {
    [0] = {0, BTRFS_SEND_STREAM_VERSION + 1},
    [BTRFS_SEND_C_SUBVOL] = {PATH_AND(BIT(BTRFS_SEND_A_UUID) | BIT(BTRFS_SEND_A_CTRANSID)), 1},
    [BTRFS_SEND_C_SNAPSHOT] = {PATH_AND(BIT(BTRFS_SEND_A_UUID) | BIT(BTRFS_SEND_A_CTRANSID) |
					BIT(BTRFS_SEND_A_CLONE_UUID) |
					BIT(BTRFS_SEND_A_CLONE_CTRANSID)),
			       1},
    [BTRFS_SEND_C_MKFILE] = {PATH_AND(BIT(BTRFS_SEND_A_INO)), 1},
    [BTRFS_SEND_C_MKDIR] = {PATH_AND(BIT(BTRFS_SEND_A_INO)), 1},
    [BTRFS_SEND_C_MKNOD] = {PATH_AND(BIT(BTRFS_SEND_A_INO) | BIT(BTRFS_SEND_A_MODE) |
				     BIT(BTRFS_SEND_A_RDEV)),
			    1},
    [BTRFS_SEND_C_MKFIFO] = {PATH_AND(BIT(BTRFS_SEND_A_INO)), 1},
    [BTRFS_SEND_C_MKSOCK] = {PATH_AND(BIT(BTRFS_SEND_A_INO)), 1},
    [BTRFS_SEND_C_SYMLINK] = {PATH_AND(BIT(BTRFS_SEND_A_INO) | BIT(BTRFS_SEND_A_PATH_LINK)), 1},
    [BTRFS_SEND_C_RENAME] = {PATH_AND(BIT(BTRFS_SEND_A_PATH_TO)), 1},
    [BTRFS_SEND_C_LINK] = {PATH_AND(BIT(BTRFS_SEND_A_PATH_LINK)), 1},
    [BTRFS_SEND_C_UNLINK] = {BIT(BTRFS_SEND_A_PATH), 1},
    [BTRFS_SEND_C_RMDIR] = {BIT(BTRFS_SEND_A_PATH), 1},
    [BTRFS_SEND_C_SET_XATTR] = {PATH_AND(BIT(BTRFS_SEND_A_XATTR_NAME) |
					 BIT(BTRFS_SEND_A_XATTR_DATA)),
				1},
    [BTRFS_SEND_C_REMOVE_XATTR] = {PATH_AND(BIT(BTRFS_SEND_A_XATTR_NAME)), 1},
    [BTRFS_SEND_C_WRITE] = {PATH_AND(BIT(BTRFS_SEND_A_FILE_OFFSET) | BIT(BTRFS_SEND_A_DATA)), 1},
    [BTRFS_SEND_C_CLONE] = {PATH_AND(BIT(BTRFS_SEND_A_FILE_OFFSET) | BIT(BTRFS_SEND_A_CLONE_LEN) |
				     BIT(BTRFS_SEND_A_CLONE_UUID) |
				     BIT(BTRFS_SEND_A_CLONE_CTRANSID) |
				     BIT(BTRFS_SEND_A_CLONE_PATH) | BIT(BTRFS_SEND_A_CLONE_OFFSET)),
			    1},
    [BTRFS_SEND_C_TRUNCATE] = {PATH_AND(BIT(BTRFS_SEND_A_SIZE)), 1},
    [BTRFS_SEND_C_CHMOD] = {PATH_AND(BIT(BTRFS_SEND_A_MODE)), 1},
    [BTRFS_SEND_C_CHOWN] = {PATH_AND(BIT(BTRFS_SEND_A_UID) | BIT(BTRFS_SEND_A_GID)), 1},
    [BTRFS_SEND_C_UTIMES] = {PATH_AND(BIT(BTRFS_SEND_A_ATIME) | BIT(BTRFS_SEND_A_MTIME) |
				      BIT(BTRFS_SEND_A_CTIME)),
			     1},
    [BTRFS_SEND_C_END] = {0, 1},
    [BTRFS_SEND_C_UPDATE_EXTENT] = {PATH_AND(BIT(BTRFS_SEND_A_FILE_OFFSET) |
					     BIT(BTRFS_SEND_A_SIZE)),
				    1},
    [BTRFS_SEND_C_FALLOCATE] = {PATH_AND(BIT(BTRFS_SEND_A_FALLOCATE_MODE) |
					 BIT(BTRFS_SEND_A_FILE_OFFSET) | BIT(BTRFS_SEND_A_SIZE)),
				2},
    [BTRFS_SEND_C_FILEATTR] = {PATH_AND(BIT(BTRFS_SEND_A_FILEATTR)), 2},
    [BTRFS_SEND_C_ENCODED_WRITE] = {PATH_AND(BIT(BTRFS_SEND_A_FILE_OFFSET) |
					     BIT(BTRFS_SEND_A_UNENCODED_FILE_LEN) |
					     BIT(BTRFS_SEND_A_UNENCODED_LEN) |
					     BIT(BTRFS_SEND_A_UNENCODED_OFFSET) |
					     BIT(BTRFS_SEND_A_DATA)),
				    2},
    [BTRFS_SEND_C_ENABLE_VERITY] = {PATH_AND(BIT(BTRFS_SEND_A_VERITY_ALGORITHM) |
					     BIT(BTRFS_SEND_A_VERITY_BLOCK_SIZE) |
					     BIT(BTRFS_SEND_A_VERITY_SALT_DATA) |
					     BIT(BTRFS_SEND_A_VERITY_SIG_DATA)),
				    3},
};

const struct bm_stream_attribute_rule bm_stream_attribute_rules[BTRFS_SEND_A_COUNT] = {
    [0] = {-1, BTRFS_SEND_STREAM_VERSION + 1},
    [BTRFS_SEND_A_UUID] = {16, 1},
    [BTRFS_SEND_A_CTRANSID] = {8, 1},
    [BTRFS_SEND_A_INO] = {8, 1},
    [BTRFS_SEND_A_SIZE] = {8, 1},
    [BTRFS_SEND_A_MODE] = {8, 1},
    [BTRFS_SEND_A_UID] = {8, 1},
    [BTRFS_SEND_A_GID] = {8, 1},
    [BTRFS_SEND_A_RDEV] = {8, 1},
    [BTRFS_SEND_A_CTIME] = {12, 1},
    [BTRFS_SEND_A_MTIME] = {12, 1},
    [BTRFS_SEND_A_ATIME] = {12, 1},
    [BTRFS_SEND_A_OTIME] = {12, 1},
    [BTRFS_SEND_A_XATTR_NAME] = {-1, 1},
    [BTRFS_SEND_A_XATTR_DATA] = {-1, 1},
    [BTRFS_SEND_A_PATH] = {-1, 1},
    [BTRFS_SEND_A_PATH_TO] = {-1, 1},
    [BTRFS_SEND_A_PATH_LINK] = {-1, 1},
    [BTRFS_SEND_A_FILE_OFFSET] = {8, 1},
    [BTRFS_SEND_A_DATA] = {-1, 1},
    [BTRFS_SEND_A_CLONE_UUID] = {16, 1},
    [BTRFS_SEND_A_CLONE_CTRANSID] = {8, 1},
    [BTRFS_SEND_A_CLONE_PATH] = {-1, 1},
    [BTRFS_SEND_A_CLONE_OFFSET] = {8, 1},
    [BTRFS_SEND_A_CLONE_LEN] = {8, 1},
    [BTRFS_SEND_A_FALLOCATE_MODE] = {4, 2},
    [BTRFS_SEND_A_FILEATTR] = {8, 2},
    [BTRFS_SEND_A_UNENCODED_FILE_LEN] = {8, 2},
    [BTRFS_SEND_A_UNENCODED_LEN] = {8, 2},
    [BTRFS_SEND_A_UNENCODED_OFFSET] = {8, 2},
    [BTRFS_SEND_A_COMPRESSION] = {4, 2},
    [BTRFS_SEND_A_ENCRYPTION] = {4, 2},
    [BTRFS_SEND_A_VERITY_ALGORITHM] = {1, 3},
    [BTRFS_SEND_A_VERITY_BLOCK_SIZE] = {4, 3},
    [BTRFS_SEND_A_VERITY_SALT_DATA] = {-1, 3},
    [BTRFS_SEND_A_VERITY_SIG_DATA] = {-1, 3},
};

/* --------------------------------------------------------------------------------- reading -- */

/* A buffer and the place in it; `last` as in bm_stream_index. */
struct cursor {
	const uint8_t *data;
	uint64_t size;
	int last;
	struct bm_stream_position *position;
	struct bm_fault *fault;
};

/* There are `wanted` bytes at the cursor (1), not yet (0), or there never will be (negative). */
static int have(const struct cursor *cursor, uint64_t wanted)
{
	uint64_t left = cursor->size - cursor->position->offset;

	if (left >= wanted)
		return 1;
	cursor->position->wanted = wanted;
	if (!cursor->last)
		return 0;
	return fail_at(cursor->fault, BM_STREAM_TRUNCATED, cursor->position->offset, 0, left,
		       wanted);
}

/* Step over a stream header: 1, 0 or negative as have(). */
static int read_header(const struct cursor *cursor)
{
	struct bm_stream_position *position = cursor->position;
	const uint8_t *p = cursor->data + position->offset;
	uint64_t left = cursor->size - position->offset;
	uint32_t version;
	int ret;

	if (memcmp(p, BTRFS_SEND_STREAM_MAGIC,
		   left < sizeof(BTRFS_SEND_STREAM_MAGIC) ? left : sizeof(BTRFS_SEND_STREAM_MAGIC)))
		return fail_at(cursor->fault, BM_STREAM_BAD_MAGIC, position->offset, 0, 0, 0);
	ret = have(cursor, STREAM_HEADER_SIZE);
	if (ret <= 0)
		return ret;
	version = load32(p + sizeof(BTRFS_SEND_STREAM_MAGIC));
	if (version < 1 || version > BTRFS_SEND_STREAM_VERSION)
		return fail_at(cursor->fault, BM_STREAM_BAD_VERSION, position->offset, 0, version,
			       BTRFS_SEND_STREAM_VERSION);
	position->version = version;
	position->ended = 0;
	position->offset += STREAM_HEADER_SIZE;
	return 1;
}

/*
 * A further stream may follow one that has no END. No command starts with the magic: its type
 * would be 0x2d73.
 */
static int header_comes(const struct cursor *cursor)
{
	const uint8_t *p = cursor->data + cursor->position->offset;

	if (!cursor->position->version)
		return 1;
	return cursor->size - cursor->position->offset >= sizeof(BTRFS_SEND_STREAM_MAGIC) &&
	       !memcmp(p, BTRFS_SEND_STREAM_MAGIC, sizeof(BTRFS_SEND_STREAM_MAGIC));
}

static int check_crc(const struct cursor *cursor, uint32_t length)
{
	const uint8_t *p = cursor->data + cursor->position->offset;
	uint8_t header[COMMAND_HEADER_SIZE] = {0};
	uint32_t crc;

	memcpy(header, p, 6); /* the field of the CRC counts as zero */
	crc = bm_crc32c(0, header, COMMAND_HEADER_SIZE);
	crc = bm_crc32c(crc, p + COMMAND_HEADER_SIZE, length);
	if (crc != load32(p + 6))
		return fail_at(cursor->fault, BM_STREAM_BAD_CRC, cursor->position->offset, 0,
			       load32(p + 6), crc);
	return 0;
}

/* The size of the value of the attribute at `p`, or negative; `header` is what stands before. */
static int64_t value_size(const struct cursor *cursor, const uint8_t *p, uint64_t left,
			  uint16_t type, uint32_t *header)
{
	const struct bm_stream_attribute_rule *rule = &bm_stream_attribute_rules[type];
	uint64_t at = cursor->position->offset;
	uint64_t size;

	*header = type == BTRFS_SEND_A_DATA && cursor->position->version >= 2 ? 2 : 4;
	if (left < *header)
		return fail_at(cursor->fault, BM_STREAM_BAD_LENGTH, at, type, left, *header);
	size = *header == 2 ? left - 2 : load16(p + 2);
	if (size > left - *header)
		return fail_at(cursor->fault, BM_STREAM_BAD_LENGTH, at, type, left, *header + size);
	if (rule->size >= 0 && size != (uint64_t)rule->size)
		return fail_at(cursor->fault, BM_STREAM_BAD_SIZE, at, type, size,
			       (uint64_t)rule->size);
	return (int64_t)size;
}

/* List the attributes of one command from `row` on; returns the row after them, or negative. */
static int64_t read_attributes(const struct cursor *cursor, uint16_t command, uint32_t length,
			       const struct bm_stream_columns *columns, uint64_t row)
{
	uint64_t at = cursor->position->offset;
	uint64_t offset = at + COMMAND_HEADER_SIZE;
	uint64_t end = offset + length;
	uint64_t seen = 0, missing;

	while (offset < end) {
		const uint8_t *p = cursor->data + offset;
		uint32_t header;
		uint16_t type;
		int64_t size;

		if (end - offset < 2)
			return fail_at(cursor->fault, BM_STREAM_BAD_LENGTH, at, 0, end - offset, 2);
		type = load16(p);
		if (type >= BTRFS_SEND_A_COUNT ||
		    bm_stream_attribute_rules[type].version > cursor->position->version)
			return fail_at(cursor->fault, BM_STREAM_BAD_ATTRIBUTE, at, type, type,
				       cursor->position->version);
		if (seen & BIT(type))
			return fail_at(cursor->fault, BM_STREAM_TWICE, at, type, 0, 0);
		seen |= BIT(type);
		size = value_size(cursor, p, end - offset, type, &header);
		if (size < 0)
			return size;
		columns->attribute_type[row] = type;
		columns->attribute_offset[row] = offset + header;
		columns->attribute_length[row] = (uint32_t)size;
		offset += header + (uint64_t)size;
		row++;
	}
	missing = bm_stream_command_rules[command].mandatory & ~seen;
	if (missing)
		return fail_at(cursor->fault, BM_STREAM_MISSING, at,
			       (uint32_t)__builtin_ctzll(missing), 0, 0);
	return (int64_t)row;
}

/* Read the command at the cursor into row `n` of the columns: 1, 0 or negative as have(). */
static int read_command(const struct cursor *cursor, const struct bm_stream_columns *columns,
			uint64_t n)
{
	struct bm_stream_position *position = cursor->position;
	const uint8_t *p = cursor->data + position->offset;
	uint32_t length;
	uint16_t type;
	int64_t row;
	int ret = have(cursor, COMMAND_HEADER_SIZE);

	if (ret <= 0)
		return ret;
	length = load32(p);
	type = load16(p + 4);
	ret = have(cursor, COMMAND_HEADER_SIZE + (uint64_t)length);
	if (ret <= 0)
		return ret;
	ret = check_crc(cursor, length);
	if (ret < 0)
		return ret;
	if (type >= BTRFS_SEND_C_COUNT || bm_stream_command_rules[type].version > position->version)
		return fail_at(cursor->fault, BM_STREAM_BAD_COMMAND, position->offset, 0, type,
			       position->version);
	row = read_attributes(cursor, type, length, columns, columns->first[n]);
	if (row < 0)
		return (int)row;
	columns->offset[n] = position->offset;
	columns->length[n] = length;
	columns->type[n] = type;
	columns->version[n] = (uint16_t)position->version;
	columns->first[n + 1] = (uint64_t)row;
	position->offset += COMMAND_HEADER_SIZE + (uint64_t)length;
	if (type == BTRFS_SEND_C_END) {
		position->version = 0;
		position->ended = 1;
	}
	return 1;
}

int64_t bm_stream_index(const uint8_t *data, uint64_t size, int last,
			struct bm_stream_position *position,
			const struct bm_stream_columns *columns, struct bm_fault *fault)
{
	struct cursor cursor = {data, size, last, position, fault};
	uint64_t n = 0;
	int ret = 1;

	columns->first[0] = 0;
	while (ret > 0 && n < columns->capacity &&
	       columns->attribute_capacity - columns->first[n] >= BTRFS_SEND_A_COUNT - 1) {
		if (position->offset == size && (position->version || position->ended)) {
			position->wanted = 1;
			break;
		}
		if (header_comes(&cursor)) {
			ret = read_header(&cursor);
		} else {
			ret = read_command(&cursor, columns, n);
			n += ret > 0;
		}
	}
	/* what is wrong with a later command is found again when it comes first */
	return ret < 0 && !n ? ret : (int64_t)n;
}
