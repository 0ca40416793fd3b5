/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Send streams among the kernels: the numbers of commands and attributes under the kernel's names,
 * little helpers. What the numbers mean stands in btrfs_model/ondisk/stream.py.
 */
#ifndef BTRFS_MODEL_STREAM_H
#define BTRFS_MODEL_STREAM_H

#include "image/internal.h"
#include "text/time.h"

#include <string.h>

#define BTRFS_SEND_STREAM_MAGIC "btrfs-stream" /* with its NUL */
#define BTRFS_SEND_STREAM_VERSION 3
#define STREAM_HEADER_SIZE (sizeof(BTRFS_SEND_STREAM_MAGIC) + 4)
#define COMMAND_HEADER_SIZE 10

enum btrfs_send_cmd {
	BTRFS_SEND_C_SUBVOL = 1,
	BTRFS_SEND_C_SNAPSHOT,
	BTRFS_SEND_C_MKFILE,
	BTRFS_SEND_C_MKDIR,
	BTRFS_SEND_C_MKNOD,
	BTRFS_SEND_C_MKFIFO,
	BTRFS_SEND_C_MKSOCK,
	BTRFS_SEND_C_SYMLINK,
	BTRFS_SEND_C_RENAME,
	BTRFS_SEND_C_LINK,
	BTRFS_SEND_C_UNLINK,
	BTRFS_SEND_C_RMDIR,
	BTRFS_SEND_C_SET_XATTR,
	BTRFS_SEND_C_REMOVE_XATTR,
	BTRFS_SEND_C_WRITE,
	BTRFS_SEND_C_CLONE,
	BTRFS_SEND_C_TRUNCATE,
	BTRFS_SEND_C_CHMOD,
	BTRFS_SEND_C_CHOWN,
	BTRFS_SEND_C_UTIMES,
	BTRFS_SEND_C_END,
	BTRFS_SEND_C_UPDATE_EXTENT,
	BTRFS_SEND_C_FALLOCATE,
	BTRFS_SEND_C_FILEATTR,
	BTRFS_SEND_C_ENCODED_WRITE,
	BTRFS_SEND_C_ENABLE_VERITY,
	BTRFS_SEND_C_COUNT,
};

enum btrfs_send_attribute {
	BTRFS_SEND_A_UUID = 1,
	BTRFS_SEND_A_CTRANSID,
	BTRFS_SEND_A_INO,
	BTRFS_SEND_A_SIZE,
	BTRFS_SEND_A_MODE,
	BTRFS_SEND_A_UID,
	BTRFS_SEND_A_GID,
	BTRFS_SEND_A_RDEV,
	BTRFS_SEND_A_CTIME,
	BTRFS_SEND_A_MTIME,
	BTRFS_SEND_A_ATIME,
	BTRFS_SEND_A_OTIME,
	BTRFS_SEND_A_XATTR_NAME,
	BTRFS_SEND_A_XATTR_DATA,
	BTRFS_SEND_A_PATH,
	BTRFS_SEND_A_PATH_TO,
	BTRFS_SEND_A_PATH_LINK,
	BTRFS_SEND_A_FILE_OFFSET,
	BTRFS_SEND_A_DATA,
	BTRFS_SEND_A_CLONE_UUID,
	BTRFS_SEND_A_CLONE_CTRANSID,
	BTRFS_SEND_A_CLONE_PATH,
	BTRFS_SEND_A_CLONE_OFFSET,
	BTRFS_SEND_A_CLONE_LEN,
	BTRFS_SEND_A_FALLOCATE_MODE,
	BTRFS_SEND_A_FILEATTR,
	BTRFS_SEND_A_UNENCODED_FILE_LEN,
	BTRFS_SEND_A_UNENCODED_LEN,
	BTRFS_SEND_A_UNENCODED_OFFSET,
	BTRFS_SEND_A_COMPRESSION,
	BTRFS_SEND_A_ENCRYPTION,
	BTRFS_SEND_A_VERITY_ALGORITHM,
	BTRFS_SEND_A_VERITY_BLOCK_SIZE,
	BTRFS_SEND_A_VERITY_SALT_DATA,
	BTRFS_SEND_A_VERITY_SIG_DATA,
	BTRFS_SEND_A_COUNT,
};

static inline uint16_t load16(const uint8_t *p)
{
	uint16_t value;

	memcpy(&value, p, sizeof(value));
	return value;
}

static inline uint32_t load32(const uint8_t *p)
{
	uint32_t value;

	memcpy(&value, p, sizeof(value));
	return value;
}

static inline uint64_t load64(const uint8_t *p)
{
	uint64_t value;

	memcpy(&value, p, sizeof(value));
	return value;
}

static inline int fail_at(struct bm_fault *fault, int code, uint64_t offset, uint32_t attribute,
			  uint64_t found, uint64_t wanted)
{
	return bm_fail(fault, (struct bm_fault){.code = code,
						.offset = offset,
						.slot = attribute,
						.found = found,
						.wanted = wanted});
}

#endif
