// SPDX-License-Identifier: GPL-2.0-only
/*
 * Send streams as text: one line a command, the lines of `btrfs receive --dump`.
 *
 * The commands were read and verified by stream.c, so values have the sizes of their types and
 * mandatory attributes are there. Left to check are the lengths of paths, which btrfs receive joins
 * in buffers of PATH_MAX, and times that have no date. The room for a line is made sure before it
 * is begun, so nothing below counts bytes.
 */
#include "stream/stream.h"

#include <stdlib.h>

#define PATH_LIMIT 4096 /* a path with its NUL */
#define TITLE_WIDTH 16
#define PATH_WIDTH 32	/* shorter paths are filled up with spaces */
#define FIXED_LINE 1024 /* more than all of a line that is not a path, a name or a value */
#define MAX_EXPANSION 4 /* "\ooo" for a byte */

struct bm_stream_text {
	int escape_all;
	uint32_t prefix_length;
	uint8_t prefix[PATH_LIMIT]; /* the subvolume, "./name" */
	struct local_times times;
};

struct bm_stream_text *bm_stream_text_create(int escape_all)
{
	struct bm_stream_text *text = calloc(1, sizeof(*text));

	if (!text)
		return NULL;
	text->escape_all = escape_all;
	text->prefix[0] = '.';
	text->prefix_length = 1;
	return text;
}

void bm_stream_text_destroy(struct bm_stream_text *text)
{
	free(text);
}

struct value {
	const uint8_t *data;
	uint32_t size;
};

/* One command on its way to a line. */
struct line {
	struct bm_stream_text *text;
	const uint8_t *data;
	uint64_t offset; /* of the command */
	struct value values[BTRFS_SEND_A_COUNT];
	uint8_t *p; /* where the next byte of the line goes */
	struct bm_fault *fault;
};

static void put_bytes(struct line *line, const void *bytes, size_t size)
{
	memcpy(line->p, bytes, size);
	line->p += size;
}

static void put(struct line *line, const char *string)
{
	put_bytes(line, string, strlen(string));
}

static void put_number(struct line *line, uint64_t number, unsigned base)
{
	char digits[24];
	char *p = digits + sizeof(digits);

	do
		*--p = "0123456789abcdef"[number % base];
	while (number /= base);
	put_bytes(line, p, (size_t)(digits + sizeof(digits) - p));
}

static uint64_t integer(const struct line *line, int attribute)
{
	const struct value *value = &line->values[attribute];

	switch (value->size) {
	case 8:
		return load64(value->data);
	case 4:
		return load32(value->data);
	case 1:
		return *value->data;
	default:
		return 0; /* an optional attribute that is not there */
	}
}

static void put_field(struct line *line, const char *label, uint64_t number)
{
	put(line, label);
	put_number(line, number, 10);
}

static void put_signed(struct line *line, const char *label, int64_t number)
{
	put(line, label);
	if (number < 0)
		put(line, "-");
	put_number(line, number < 0 ? 0 - (uint64_t)number : (uint64_t)number, 10);
}

/* A string ends at its first NUL. */
static struct value string(const struct line *line, int attribute)
{
	struct value value = line->values[attribute];
	const uint8_t *end = value.size ? memchr(value.data, 0, value.size) : NULL;

	if (end)
		value.size = (uint32_t)(end - value.data);
	return value;
}

static void put_value(struct line *line, struct value value)
{
	if (value.size)
		put_bytes(line, value.data, value.size);
}

static char escape_letter(uint8_t byte)
{
	switch (byte) {
	case '\a':
		return 'a';
	case '\b':
		return 'b';
	case 27:
		return 'e';
	case '\f':
		return 'f';
	case '\n':
		return 'n';
	case '\r':
		return 'r';
	case '\t':
		return 't';
	case '\v':
		return 'v';
	case ' ':
	case '\\':
		return (char)byte;
	default:
		return 0;
	}
}

static void put_escaped(struct line *line, struct value value)
{
	uint8_t *p = line->p;

	for (uint32_t i = 0; i < value.size; i++) {
		uint8_t byte = value.data[i];
		char letter;

		if (byte > ' ' && byte < 127 && byte != '\\') {
			*p++ = byte;
			continue;
		}
		*p++ = '\\';
		letter = escape_letter(byte);
		if (letter) {
			*p++ = (uint8_t)letter;
			continue;
		}
		*p++ = (uint8_t)('0' + (byte >> 6));
		*p++ = (uint8_t)('0' + (byte >> 3 & 7));
		*p++ = (uint8_t)('0' + (byte & 7));
	}
	line->p = p;
}

static void put_maybe_escaped(struct line *line, struct value value)
{
	if (line->text->escape_all)
		put_escaped(line, value);
	else
		put_value(line, value);
}

static struct value without_slash(struct value path)
{
	if (path.size && path.data[path.size - 1] == '/')
		path.size--;
	return path;
}

/* Whether `parent`/`path` is short enough for btrfs receive. */
static int check_path(const struct line *line, uint32_t parent_size, int attribute)
{
	uint64_t size = (uint64_t)parent_size + string(line, attribute).size + 2;

	if (size < PATH_LIMIT)
		return 0;
	return fail_at(line->fault, BM_STREAM_LONG_PATH, line->offset, (uint32_t)attribute, size,
		       PATH_LIMIT);
}

static struct value prefix(const struct line *line)
{
	return (struct value){line->text->prefix, line->text->prefix_length};
}

/* A path of the stream below the subvolume; the length was checked. */
static void put_path(struct line *line, int attribute, int escaped)
{
	struct value parent = without_slash(prefix(line));
	struct value path = without_slash(string(line, attribute));

	if (escaped) {
		put_escaped(line, parent);
		put(line, "/");
		put_escaped(line, path);
	} else {
		put_value(line, parent);
		put(line, "/");
		put_value(line, path);
	}
}

static void put_title(struct line *line, const char *title)
{
	size_t size = strlen(title);

	put_bytes(line, title, size);
	memset(line->p, ' ', TITLE_WIDTH - size);
	line->p += TITLE_WIDTH - size;
}

/* Title and path, and the spaces before what follows. */
static int put_start(struct line *line, const char *title)
{
	uint8_t *start;
	int ret = check_path(line, line->text->prefix_length, BTRFS_SEND_A_PATH);

	if (ret < 0)
		return ret;
	put_title(line, title);
	start = line->p;
	put_path(line, BTRFS_SEND_A_PATH, 1);
	do
		*line->p++ = ' ';
	while (line->p - start < PATH_WIDTH);
	return 0;
}

/* A command that has nothing but a path. */
static int put_path_line(struct line *line, const char *title)
{
	int ret = check_path(line, line->text->prefix_length, BTRFS_SEND_A_PATH);

	if (ret < 0)
		return ret;
	put_title(line, title);
	put_path(line, BTRFS_SEND_A_PATH, 1);
	return 0;
}

static void put_uuid(struct line *line, int attribute)
{
	const uint8_t *uuid = line->values[attribute].data;

	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*line->p++ = '-';
		*line->p++ = (uint8_t) "0123456789abcdef"[uuid[i] >> 4];
		*line->p++ = (uint8_t) "0123456789abcdef"[uuid[i] & 15];
	}
}

/* From here on paths belong to this subvolume. */
static int enter_subvolume(struct line *line)
{
	struct bm_stream_text *text = line->text;
	struct value name = string(line, BTRFS_SEND_A_PATH);
	int ret = check_path(line, 1, BTRFS_SEND_A_PATH);

	if (ret < 0)
		return ret;
	name = without_slash(name);
	memcpy(text->prefix, "./", 2);
	if (name.size)
		memcpy(text->prefix + 2, name.data, name.size);
	text->prefix_length = 2 + name.size;
	return 0;
}

static int put_subvolume(struct line *line, int command)
{
	uint8_t *start;
	int ret = enter_subvolume(line);

	if (ret < 0)
		return ret;
	put_title(line, command == BTRFS_SEND_C_SUBVOL ? "subvol" : "snapshot");
	start = line->p;
	put_escaped(line, prefix(line));
	do
		*line->p++ = ' ';
	while (line->p - start < PATH_WIDTH);
	put(line, "uuid=");
	put_uuid(line, BTRFS_SEND_A_UUID);
	put_field(line, " transid=", integer(line, BTRFS_SEND_A_CTRANSID));
	if (command == BTRFS_SEND_C_SNAPSHOT) {
		put(line, " parent_uuid=");
		put_uuid(line, BTRFS_SEND_A_CLONE_UUID);
		put_field(line, " parent_transid=", integer(line, BTRFS_SEND_A_CLONE_CTRANSID));
	}
	return 0;
}

static int put_time(struct line *line, const char *label, int attribute)
{
	int64_t second = (int64_t)load64(line->values[attribute].data);
	int size;

	put(line, label);
	size = bm_local_time_text(&line->text->times, second, (char *)line->p);
	if (size < 0)
		return fail_at(line->fault, BM_STREAM_BAD_TIME, line->offset, (uint32_t)attribute,
			       (uint64_t)second, 0);
	line->p += size;
	return 0;
}

static int put_utimes(struct line *line)
{
	int ret = put_start(line, "utimes");

	if (!ret)
		ret = put_time(line, "atime=", BTRFS_SEND_A_ATIME);
	if (!ret)
		ret = put_time(line, " mtime=", BTRFS_SEND_A_MTIME);
	if (!ret)
		ret = put_time(line, " ctime=", BTRFS_SEND_A_CTIME);
	return ret;
}

static int put_mknod(struct line *line)
{
	int ret = put_start(line, "mknod");

	if (ret < 0)
		return ret;
	put(line, "mode=");
	put_number(line, integer(line, BTRFS_SEND_A_MODE), 8);
	put(line, " dev=0x");
	put_number(line, integer(line, BTRFS_SEND_A_RDEV), 16);
	return 0;
}

/* The target of a symlink and the existing name of a link stand as they are. */
static int put_link(struct line *line, const char *title)
{
	int ret = put_start(line, title);

	if (ret < 0)
		return ret;
	put(line, "dest=");
	put_escaped(line, string(line, BTRFS_SEND_A_PATH_LINK));
	return 0;
}

static int put_rename(struct line *line)
{
	int ret = check_path(line, line->text->prefix_length, BTRFS_SEND_A_PATH_TO);

	if (!ret)
		ret = put_start(line, "rename");
	if (ret < 0)
		return ret;
	put(line, "dest=");
	put_path(line, BTRFS_SEND_A_PATH_TO, 1);
	return 0;
}

/* The length goes through an int in every btrfs-progs so far. */
static int put_clone(struct line *line)
{
	int ret = check_path(line, line->text->prefix_length, BTRFS_SEND_A_CLONE_PATH);
	int32_t length = (int32_t)integer(line, BTRFS_SEND_A_CLONE_LEN);

	if (!ret)
		ret = put_start(line, "clone");
	if (ret < 0)
		return ret;
	put_field(line, "offset=", integer(line, BTRFS_SEND_A_FILE_OFFSET));
	put_field(line, " len=", (uint64_t)(int64_t)length);
	put(line, " from=");
	put_path(line, BTRFS_SEND_A_CLONE_PATH, line->text->escape_all);
	put_field(line, " clone_offset=", integer(line, BTRFS_SEND_A_CLONE_OFFSET));
	return 0;
}

static int put_set_xattr(struct line *line)
{
	int ret = put_start(line, "set_xattr");

	if (ret < 0)
		return ret;
	put(line, "name=");
	put_maybe_escaped(line, string(line, BTRFS_SEND_A_XATTR_NAME));
	if (line->text->escape_all) {
		put(line, " ");
		put_escaped(line, line->values[BTRFS_SEND_A_XATTR_DATA]);
	} else {
		put(line, " data=");
		put_value(line, string(line, BTRFS_SEND_A_XATTR_DATA));
	}
	put_field(line, " len=", line->values[BTRFS_SEND_A_XATTR_DATA].size);
	return 0;
}

static int put_remove_xattr(struct line *line)
{
	int ret = put_start(line, "remove_xattr");

	if (ret < 0)
		return ret;
	put(line, "name=");
	put_maybe_escaped(line, string(line, BTRFS_SEND_A_XATTR_NAME));
	return 0;
}

static int put_chmod(struct line *line)
{
	int ret = put_start(line, "chmod");

	if (ret < 0)
		return ret;
	put(line, "mode=");
	put_number(line, integer(line, BTRFS_SEND_A_MODE), 8);
	return 0;
}

static int put_chown(struct line *line)
{
	int ret = put_start(line, "chown");

	if (ret < 0)
		return ret;
	put_field(line, "gid=", integer(line, BTRFS_SEND_A_GID));
	put_field(line, " uid=", integer(line, BTRFS_SEND_A_UID));
	return 0;
}

/* A range of a file: of `write`, whose length is that of the data, or `update_extent`. */
static int put_range(struct line *line, const char *title, uint64_t length)
{
	int ret = put_start(line, title);

	if (ret < 0)
		return ret;
	put_field(line, "offset=", integer(line, BTRFS_SEND_A_FILE_OFFSET));
	put_field(line, " len=", length);
	return 0;
}

static int put_truncate(struct line *line)
{
	int ret = put_start(line, "truncate");

	if (ret < 0)
		return ret;
	put_field(line, "size=", integer(line, BTRFS_SEND_A_SIZE));
	return 0;
}

static int put_fallocate(struct line *line)
{
	int ret = put_start(line, "fallocate");

	if (ret < 0)
		return ret;
	put_signed(line, "mode=", (int32_t)integer(line, BTRFS_SEND_A_FALLOCATE_MODE));
	put_field(line, " offset=", integer(line, BTRFS_SEND_A_FILE_OFFSET));
	put_field(line, " len=", integer(line, BTRFS_SEND_A_SIZE));
	return 0;
}

/* "0x" before a decimal number: so it is in btrfs-progs. */
static int put_fileattr(struct line *line)
{
	int ret = put_start(line, "fileattr");

	if (ret < 0)
		return ret;
	put_field(line, "fileattr=0x", integer(line, BTRFS_SEND_A_FILEATTR));
	return 0;
}

static int put_encoded_write(struct line *line)
{
	const char *comma = line->text->escape_all ? "" : ",";
	int ret = put_start(line, "encoded_write");

	if (ret < 0)
		return ret;
	put_field(line, "offset=", integer(line, BTRFS_SEND_A_FILE_OFFSET));
	put_field(line, " len=", line->values[BTRFS_SEND_A_DATA].size);
	put(line, comma);
	put_field(line, " unencoded_file_len=", integer(line, BTRFS_SEND_A_UNENCODED_FILE_LEN));
	put(line, comma);
	put_field(line, " unencoded_len=", integer(line, BTRFS_SEND_A_UNENCODED_LEN));
	put(line, comma);
	put_field(line, " unencoded_offset=", integer(line, BTRFS_SEND_A_UNENCODED_OFFSET));
	put(line, comma);
	put_field(line, " compression=", integer(line, BTRFS_SEND_A_COMPRESSION));
	put(line, comma);
	put_field(line, " encryption=", integer(line, BTRFS_SEND_A_ENCRYPTION));
	return 0;
}

static int put_enable_verity(struct line *line)
{
	int ret = put_start(line, "enable_verity");

	if (ret < 0)
		return ret;
	put_field(line, "algorithm=", integer(line, BTRFS_SEND_A_VERITY_ALGORITHM));
	put_field(line, " block_size=", integer(line, BTRFS_SEND_A_VERITY_BLOCK_SIZE));
	put_field(line, " salt_len=", line->values[BTRFS_SEND_A_VERITY_SALT_DATA].size);
	put_field(line, " sig_len=", line->values[BTRFS_SEND_A_VERITY_SIG_DATA].size);
	return 0;
}

static int put_command(struct line *line, int command)
{
	switch (command) {
	case BTRFS_SEND_C_SUBVOL:
	case BTRFS_SEND_C_SNAPSHOT:
		return put_subvolume(line, command);
	case BTRFS_SEND_C_MKFILE:
		return put_path_line(line, "mkfile");
	case BTRFS_SEND_C_MKDIR:
		return put_path_line(line, "mkdir");
	case BTRFS_SEND_C_MKNOD:
		return put_mknod(line);
	case BTRFS_SEND_C_MKFIFO:
		return put_path_line(line, "mkfifo");
	case BTRFS_SEND_C_MKSOCK:
		return put_path_line(line, "mksock");
	case BTRFS_SEND_C_SYMLINK:
		return put_link(line, "symlink");
	case BTRFS_SEND_C_RENAME:
		return put_rename(line);
	case BTRFS_SEND_C_LINK:
		return put_link(line, "link");
	case BTRFS_SEND_C_UNLINK:
		return put_path_line(line, "unlink");
	case BTRFS_SEND_C_RMDIR:
		return put_path_line(line, "rmdir");
	case BTRFS_SEND_C_SET_XATTR:
		return put_set_xattr(line);
	case BTRFS_SEND_C_REMOVE_XATTR:
		return put_remove_xattr(line);
	case BTRFS_SEND_C_WRITE:
		return put_range(line, "write", line->values[BTRFS_SEND_A_DATA].size);
	case BTRFS_SEND_C_CLONE:
		return put_clone(line);
	case BTRFS_SEND_C_TRUNCATE:
		return put_truncate(line);
	case BTRFS_SEND_C_CHMOD:
		return put_chmod(line);
	case BTRFS_SEND_C_CHOWN:
		return put_chown(line);
	case BTRFS_SEND_C_UTIMES:
		return put_utimes(line);
	case BTRFS_SEND_C_UPDATE_EXTENT:
		return put_range(line, "update_extent", integer(line, BTRFS_SEND_A_SIZE));
	case BTRFS_SEND_C_FALLOCATE:
		return put_fallocate(line);
	case BTRFS_SEND_C_FILEATTR:
		return put_fileattr(line);
	case BTRFS_SEND_C_ENCODED_WRITE:
		return put_encoded_write(line);
	default:
		return put_enable_verity(line);
	}
}

/* Gather the values of command `n` and return how long its line can be. */
static uint64_t gather(struct line *line, const struct bm_stream_columns *columns, uint64_t n)
{
	uint64_t bound = FIXED_LINE + 2ull * MAX_EXPANSION * PATH_LIMIT;

	memset(line->values, 0, sizeof(line->values));
	line->offset = columns->offset[n];
	for (uint64_t row = columns->first[n]; row < columns->first[n + 1]; row++) {
		int type = columns->attribute_type[row];

		line->values[type] = (struct value){line->data + columns->attribute_offset[row],
						    columns->attribute_length[row]};
		if (bm_stream_attribute_rules[type].size < 0 && type != BTRFS_SEND_A_DATA)
			bound += (uint64_t)MAX_EXPANSION * columns->attribute_length[row];
	}
	return bound;
}

int64_t bm_stream_text_lines(struct bm_stream_text *text, const uint8_t *data,
			     const struct bm_stream_columns *columns, uint64_t from, uint64_t to,
			     uint8_t *out, uint64_t capacity, uint64_t *used,
			     struct bm_fault *fault)
{
	struct line line = {.text = text, .data = data, .p = out, .fault = fault};
	uint64_t n;

	*used = 0;
	for (n = from; n < to; n++) {
		int ret;

		if (gather(&line, columns, n) > capacity - *used)
			break;
		if (columns->type[n] == BTRFS_SEND_C_END)
			continue;
		ret = put_command(&line, columns->type[n]);
		if (ret < 0)
			return n == from ? ret : (int64_t)(n - from);
		*line.p++ = '\n';
		*used = (uint64_t)(line.p - out);
	}
	return (int64_t)(n - from);
}
