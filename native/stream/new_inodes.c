// SPDX-License-Identifier: GPL-2.0-only
/*
 * Inodes that a stream makes: the commands with which every full send says one file after another.
 *
 * An inode gets a name of its own first, then the real one; its data, owners, permissions and times
 * follow. Only commands are taken that say just that, on paths that lead straight to a name. Where
 * they end, whatever comes next is a command like any other.
 */
#include "stream/stream.h"

#define NAME_MAX 255
#define SECOND 1000000000u

struct scan {
	const uint8_t *data;
	const struct bm_stream_columns *columns;
	uint64_t end; /* of the commands */
};

/* A value of a command that has it: its row; the mandatory ones are always there. */
static uint64_t row_of(const struct scan *scan, uint64_t command, uint16_t attribute)
{
	uint64_t row = scan->columns->first[command];

	while (scan->columns->attribute_type[row] != attribute)
		row++;
	return row;
}

static struct bm_span span_of(const struct scan *scan, uint64_t command, uint16_t attribute)
{
	uint64_t row = row_of(scan, command, attribute);

	return (struct bm_span){.at = scan->columns->attribute_offset[row],
				.size = scan->columns->attribute_length[row]};
}

static const uint8_t *value_of(const struct scan *scan, uint64_t command, uint16_t attribute)
{
	return scan->data + scan->columns->attribute_offset[row_of(scan, command, attribute)];
}

static int is_about(const struct scan *scan, uint64_t command, const struct bm_span *path)
{
	const struct bm_span other = span_of(scan, command, BTRFS_SEND_A_PATH);

	return other.size == path->size &&
	       !memcmp(scan->data + other.at, scan->data + path->at, path->size);
}

/* Whether a path consists of names alone, none of them too long, "." or "..", and where the last is. */
static int is_plain(const struct scan *scan, const struct bm_span *path, uint64_t most,
		    uint64_t *name)
{
	const uint8_t *text = scan->data + path->at;
	uint64_t start = 0;

	if (!path->size || path->size > most || memchr(text, 0, path->size))
		return 0;
	for (uint64_t at = 0; at <= path->size; at++) {
		if (at < path->size && text[at] != '/')
			continue;
		if (at == start || at - start > NAME_MAX ||
		    (text[start] == '.' &&
		     (at - start == 1 || (at - start == 2 && text[start + 1] == '.'))))
			return 0;
		*name = start;
		start = at + 1;
	}
	return 1;
}

static int read_time(const struct scan *scan, uint64_t command, uint16_t attribute,
		     struct bm_stream_time *time)
{
	const uint8_t *value = value_of(scan, command, attribute);

	time->seconds = (int64_t)load64(value);
	time->nanoseconds = load32(value + 8);
	return time->nanoseconds < SECOND;
}

/* The write at `command` goes on where the file ends so far, and is less than all there can be. */
static int is_next_write(const struct scan *scan, uint64_t command, const struct bm_span *path,
			 uint64_t size, struct bm_span *piece)
{
	if (command >= scan->end || scan->columns->type[command] != BTRFS_SEND_C_WRITE ||
	    !is_about(scan, command, path) ||
	    load64(value_of(scan, command, BTRFS_SEND_A_FILE_OFFSET)) != size)
		return 0;
	*piece = span_of(scan, command, BTRFS_SEND_A_DATA);
	return piece->size && size + piece->size < 1ULL << 62;
}

/* Whether the next command is this one, on that path. */
static int comes(const struct scan *scan, uint64_t command, uint16_t type,
		 const struct bm_span *path)
{
	return command < scan->end && scan->columns->type[command] == type &&
	       is_about(scan, command, path);
}

/* What follows of owners, permissions and times, in this order. */
static void read_attributes(const struct scan *scan, const struct bm_span *path,
			    struct bm_stream_inode *inode)
{
	uint64_t at = inode->command + inode->commands;

	if (comes(scan, at, BTRFS_SEND_C_CHOWN, path)) {
		inode->uid = (uint32_t)load64(value_of(scan, at, BTRFS_SEND_A_UID));
		inode->gid = (uint32_t)load64(value_of(scan, at, BTRFS_SEND_A_GID));
		inode->has |= BM_STREAM_OWNERS;
		at++;
	}
	if (inode->type != BTRFS_SEND_C_SYMLINK && comes(scan, at, BTRFS_SEND_C_CHMOD, path)) {
		inode->mode = (uint32_t)load64(value_of(scan, at, BTRFS_SEND_A_MODE));
		inode->has |= BM_STREAM_MODE;
		at++;
	}
	if (comes(scan, at, BTRFS_SEND_C_UTIMES, path) &&
	    read_time(scan, at, BTRFS_SEND_A_ATIME, &inode->atime) &&
	    read_time(scan, at, BTRFS_SEND_A_MTIME, &inode->mtime)) {
		inode->has |= BM_STREAM_TIMES;
		at++;
	}
	inode->commands = (uint32_t)(at - inode->command);
}

/* How many UTIMES on plain paths begin at a command. */
static uint64_t read_times(const struct scan *scan, uint64_t command, uint64_t most,
			   struct bm_stream_times *times)
{
	uint64_t found = 0, name;

	for (; command < scan->end && scan->columns->type[command] == BTRFS_SEND_C_UTIMES;
	     command++, found++) {
		struct bm_stream_times *next = &times[found];

		next->path = span_of(scan, command, BTRFS_SEND_A_PATH);
		if (!is_plain(scan, &next->path, most, &name) ||
		    !read_time(scan, command, BTRFS_SEND_A_ATIME, &next->atime) ||
		    !read_time(scan, command, BTRFS_SEND_A_MTIME, &next->mtime))
			break;
	}
	return found;
}

static void read_writes(const struct scan *scan, const struct bm_span *path,
			struct bm_stream_inode *inode, struct bm_span *pieces)
{
	while (is_next_write(scan, inode->command + inode->commands, path,
			     inode->start + inode->size, &pieces[inode->writes])) {
		inode->size += pieces[inode->writes].size;
		inode->writes++;
		inode->commands++;
	}
}

/* The inode that is made at `command`: 1, 0 when that is none that is taken. */
static int read_inode(const struct scan *scan, uint64_t command, uint64_t most,
		      struct bm_stream_inode *inode, struct bm_span *pieces)
{
	const uint16_t type = scan->columns->type[command];
	struct bm_span path;

	*inode = (struct bm_stream_inode){.command = command, .commands = 2, .type = type};
	if ((type != BTRFS_SEND_C_MKFILE && type != BTRFS_SEND_C_MKDIR &&
	     type != BTRFS_SEND_C_SYMLINK) ||
	    command + 1 >= scan->end || scan->columns->type[command + 1] != BTRFS_SEND_C_RENAME)
		return 0;
	inode->made = span_of(scan, command, BTRFS_SEND_A_PATH);
	path = span_of(scan, command + 1, BTRFS_SEND_A_PATH_TO);
	inode->path = path;
	if (!is_about(scan, command + 1, &inode->made) ||
	    !is_plain(scan, &inode->made, most, &inode->made_name) ||
	    !is_plain(scan, &path, most, &inode->name))
		return 0;
	if (type == BTRFS_SEND_C_SYMLINK) {
		inode->target = span_of(scan, command, BTRFS_SEND_A_PATH_LINK);
		if (!inode->target.size)
			return 0;
	}
	if (type == BTRFS_SEND_C_MKFILE)
		read_writes(scan, &path, inode, pieces);
	read_attributes(scan, &path, inode);
	return 1;
}

/* The rest of an inode of which other commands came before: 1, 0 when there is none. */
static int read_rest(const struct scan *scan, uint64_t most, struct bm_stream_inode *inode,
		     struct bm_span *pieces)
{
	*inode = (struct bm_stream_inode){.type = BTRFS_SEND_C_WRITE};
	if (!scan->end || scan->columns->type[0] != BTRFS_SEND_C_WRITE)
		return 0;
	inode->path = span_of(scan, 0, BTRFS_SEND_A_PATH);
	inode->start = load64(value_of(scan, 0, BTRFS_SEND_A_FILE_OFFSET));
	if (inode->start >= 1ULL << 62 || !is_plain(scan, &inode->path, most, &inode->name))
		return 0;
	read_writes(scan, &inode->path, inode, pieces);
	read_attributes(scan, &inode->path, inode);
	return inode->commands > 0;
}

uint64_t bm_stream_inodes(const uint8_t *data, const struct bm_stream_columns *columns,
			  uint64_t count, uint64_t most, struct bm_stream_inode *inodes,
			  struct bm_span *pieces, struct bm_stream_times *times)
{
	const struct scan scan = {.data = data, .columns = columns, .end = count};
	uint64_t found = 0, used = 0, set = 0, at = 0;

	while (at < count) {
		struct bm_stream_inode *inode = &inodes[found];

		if (!read_inode(&scan, at, most, inode, pieces + used) &&
		    (at || !read_rest(&scan, most, inode, pieces))) {
			at++;
			continue;
		}
		inode->piece = used;
		used += inode->writes;
		at += inode->commands;
		inode->first = set;
		inode->more = read_times(&scan, at, most, times + set);
		set += inode->more;
		at += inode->more;
		found++;
	}
	return found;
}
