// SPDX-License-Identifier: GPL-2.0-only
/*
 * The stream that send writes: commands of attributes, each command with its length and checksum.
 *
 *   command:    u32 length of what follows the header | u16 command | u32 crc | attributes
 *   attribute:  u16 type | u16 length | data          (DATA of protocol 2: u16 type | data)
 *
 * The checksum is crc32c from 0 without inversion, over header (crc field 0) and attributes. A
 * command that is not finished when the send fails is never written.
 */
#include "image/pool.h"
#include "send/send.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* stays in the cache of a processor until it is written */
#define FLUSH_AT ((size_t)1 << 18)

enum { TLV_HEADER = 4, TLV_TYPE = 2 };

/* Room for `size` more bytes of the stream. */
static uint8_t *reserve(struct send_ctx *sctx, size_t size)
{
	if (sctx->capacity - sctx->size < size) {
		size_t capacity = 2 * sctx->capacity + size;
		uint8_t *buf = realloc(sctx->buf, capacity);

		if (!buf) {
			bm_fail(sctx->fault, (struct bm_fault){.code = BM_NOMEM});
			return NULL;
		}
		sctx->buf = buf;
		sctx->capacity = capacity;
	}
	return sctx->buf + sctx->size;
}

int begin_cmd(struct send_ctx *sctx, int cmd)
{
	uint8_t *at;

	sctx->cmd = sctx->size;
	at = reserve(sctx, COMMAND_HEADER_SIZE);
	if (!at)
		return BM_NOMEM;
	memset(at, 0, COMMAND_HEADER_SIZE);
	at[4] = (uint8_t)cmd;
	sctx->size += COMMAND_HEADER_SIZE;
	sctx->summed = 0;
	sctx->crc = 0;
	return BM_OK;
}

static size_t room_in_command(const struct send_ctx *sctx)
{
	return sctx->max_size - (sctx->size - sctx->cmd);
}

int tlv_put(struct send_ctx *sctx, int attribute, const void *data, size_t size)
{
	uint8_t *at;

	if (room_in_command(sctx) < TLV_HEADER + size)
		return send_errno(sctx, EOVERFLOW);
	at = reserve(sctx, TLV_HEADER + size);
	if (!at)
		return BM_NOMEM;
	if (!size_only(sctx)) {
		at[0] = (uint8_t)attribute;
		at[1] = 0;
		at[2] = (uint8_t)size;
		at[3] = (uint8_t)(size >> 8);
		if (size)
			memcpy(at + TLV_HEADER, data, size);
	}
	sctx->size += TLV_HEADER + size;
	return BM_OK;
}

int tlv_put_u64(struct send_ctx *sctx, int attribute, uint64_t value)
{
	return tlv_put(sctx, attribute, &value, sizeof(value));
}

int tlv_put_u32(struct send_ctx *sctx, int attribute, uint32_t value)
{
	return tlv_put(sctx, attribute, &value, sizeof(value));
}

int tlv_put_path(struct send_ctx *sctx, int attribute, const struct fs_path *path)
{
	return tlv_put(sctx, attribute, path->text, path->size);
}

static void set_length(struct send_ctx *sctx)
{
	uint32_t size = (uint32_t)(sctx->size - sctx->cmd - COMMAND_HEADER_SIZE);

	memcpy(sctx->buf + sctx->cmd, &size, sizeof(size));
}

void sum_command(struct send_ctx *sctx, const uint8_t *next, size_t size)
{
	if (!size_only(sctx))
		sctx->crc = bm_crc32c(sctx->crc, next, size);
	sctx->summed += size;
}

uint8_t *put_data(struct send_ctx *sctx, size_t size)
{
	size_t header = sctx->args->proto >= 2 ? TLV_TYPE : TLV_HEADER;
	uint8_t *at;

	if (room_in_command(sctx) < header + size) {
		send_errno(sctx, EOVERFLOW);
		return NULL;
	}
	at = reserve(sctx, header + size);
	if (!at)
		return NULL;
	at[0] = BTRFS_SEND_A_DATA;
	at[1] = 0;
	if (header == TLV_HEADER) {
		at[2] = (uint8_t)size;
		at[3] = (uint8_t)(size >> 8);
	}
	sctx->size += header + size;
	/* data come last, so that whatever stands before them is as it will be */
	set_length(sctx);
	sum_command(sctx, sctx->buf + sctx->cmd, (size_t)(at + header - sctx->buf) - sctx->cmd);
	return at + header;
}

/* Write down why the command was sent. */
static int explain(struct bm_send_explained *explained, const struct bm_send_why *why)
{
	struct bm_send_why *rows =
	    grown(explained->rows, explained->count, &explained->capacity, 1024, sizeof(*rows));

	if (!rows)
		return BM_NOMEM;
	explained->rows = rows;
	explained->rows[explained->count++] = *why;
	return BM_OK;
}

void bm_send_explained_free(struct bm_send_explained *explained)
{
	free(explained->rows);
	free(explained->places);
	*explained = (struct bm_send_explained){0};
}

int write_cmd(struct send_ctx *sctx)
{
	uint8_t *command = sctx->buf + sctx->cmd;

	if (sctx->args->explained && explain(sctx->args->explained, &sctx->why) < 0)
		return bm_fail(sctx->fault, (struct bm_fault){.code = BM_NOMEM});
	sctx->args->commands[command[4]]++;
	set_length(sctx);
	sum_command(sctx, command + sctx->summed, sctx->size - sctx->cmd - sctx->summed);
	memcpy(command + 6, &sctx->crc, 4);
	sctx->cmd = sctx->size;
	return sctx->size >= FLUSH_AT || size_only(sctx) ? send_flush(sctx) : BM_OK;
}

int send_cmd(struct send_ctx *sctx)
{
	COUNT(sctx->image, send_cmd);
	return write_cmd(sctx);
}

int hand_out(struct send_ctx *sctx, const uint8_t *data, size_t size)
{
	if (size_only(sctx))
		*sctx->args->size += size;
	else if (size && sctx->args->write(sctx->args->context, data, size))
		return bm_fail(sctx->fault, (struct bm_fault){.code = BM_CALLBACK});
	return BM_OK;
}

int send_flush(struct send_ctx *sctx)
{
	int ret = hand_out(sctx, sctx->buf, sctx->cmd);

	sctx->size = sctx->cmd = 0;
	return ret;
}

/* ------------------------------------------------------------------------- commands on paths -- */

static int send_two_paths(struct send_ctx *sctx, int cmd, const struct fs_path *path, int attribute,
			  const struct fs_path *other)
{
	if (begin_cmd(sctx, cmd) < 0 || tlv_put_path(sctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put_path(sctx, attribute, other) < 0)
		return sctx->fault->code;
	return send_cmd(sctx);
}

static int send_path_only(struct send_ctx *sctx, int cmd, const struct fs_path *path)
{
	if (begin_cmd(sctx, cmd) < 0 || tlv_put_path(sctx, BTRFS_SEND_A_PATH, path) < 0)
		return sctx->fault->code;
	return send_cmd(sctx);
}

int send_rename(struct send_ctx *sctx, const struct fs_path *path, const struct fs_path *to)
{
	return send_two_paths(sctx, BTRFS_SEND_C_RENAME, path, BTRFS_SEND_A_PATH_TO, to);
}

int send_link(struct send_ctx *sctx, const struct fs_path *path, const struct fs_path *existing)
{
	return send_two_paths(sctx, BTRFS_SEND_C_LINK, path, BTRFS_SEND_A_PATH_LINK, existing);
}

int send_unlink(struct send_ctx *sctx, const struct fs_path *path)
{
	return send_path_only(sctx, BTRFS_SEND_C_UNLINK, path);
}

int send_rmdir(struct send_ctx *sctx, const struct fs_path *path)
{
	return send_path_only(sctx, BTRFS_SEND_C_RMDIR, path);
}

/* ------------------------------------------------------------------------- the current inode -- */

int send_truncate(struct send_ctx *sctx, uint64_t size)
{
	const struct fs_path *path;

	if (get_cur_inode_path(sctx, &path) < 0 || begin_cmd(sctx, BTRFS_SEND_C_TRUNCATE) < 0 ||
	    tlv_put_path(sctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put_u64(sctx, BTRFS_SEND_A_SIZE, size) < 0)
		return sctx->fault->code;
	return send_cmd(sctx);
}

int send_chmod(struct send_ctx *sctx, uint32_t mode)
{
	const struct fs_path *path;

	if (get_cur_inode_path(sctx, &path) < 0 || begin_cmd(sctx, BTRFS_SEND_C_CHMOD) < 0 ||
	    tlv_put_path(sctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put_u64(sctx, BTRFS_SEND_A_MODE, mode & 07777) < 0)
		return sctx->fault->code;
	return send_cmd(sctx);
}

int send_fileattr(struct send_ctx *sctx, uint64_t flags)
{
	const struct fs_path *path;

	if (sctx->args->proto < 2)
		return BM_OK;
	if (get_cur_inode_path(sctx, &path) < 0 || begin_cmd(sctx, BTRFS_SEND_C_FILEATTR) < 0 ||
	    tlv_put_path(sctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put_u64(sctx, BTRFS_SEND_A_FILEATTR, flags) < 0)
		return sctx->fault->code;
	return send_cmd(sctx);
}

int send_chown(struct send_ctx *sctx, uint64_t uid, uint64_t gid)
{
	const struct fs_path *path;

	if (get_cur_inode_path(sctx, &path) < 0 || begin_cmd(sctx, BTRFS_SEND_C_CHOWN) < 0 ||
	    tlv_put_path(sctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put_u64(sctx, BTRFS_SEND_A_UID, uid) < 0 ||
	    tlv_put_u64(sctx, BTRFS_SEND_A_GID, gid) < 0)
		return sctx->fault->code;
	return send_cmd(sctx);
}

/* The kernel's argument is a u32: a hole of 4 GiB has size 0. */
int send_update_extent(struct send_ctx *sctx, uint64_t offset, uint32_t size)
{
	const struct fs_path *path;

	if (get_cur_inode_path(sctx, &path) < 0 ||
	    begin_cmd(sctx, BTRFS_SEND_C_UPDATE_EXTENT) < 0 ||
	    tlv_put_path(sctx, BTRFS_SEND_A_PATH, path) < 0 ||
	    tlv_put_u64(sctx, BTRFS_SEND_A_FILE_OFFSET, offset) < 0 ||
	    tlv_put_u64(sctx, BTRFS_SEND_A_SIZE, size) < 0)
		return sctx->fault->code;
	return send_cmd(sctx);
}
