// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tests of stream.c and stream/text.c, without Python: a small stream built here is read, cut at
 * every byte, and broken at random with its CRCs made right again, so that what lies behind the
 * CRC is reached. Meant to be run under AddressSanitizer and UBSan as well.
 */
#define _DEFAULT_SOURCE
#include "stream/stream.h"

#include <stdlib.h>
#include <time.h>

#include "check.h"

#define STREAM_MAX 4096
#define COMMANDS_MAX 64
#define ROWS_MAX (8 * COMMANDS_MAX)
#define TEXT_MAX (4 << 20)

struct stream {
	uint8_t bytes[STREAM_MAX];
	size_t size;
	size_t command; /* where the last command starts */
};

static void append(struct stream *stream, const void *bytes, size_t size)
{
	if (stream->size + size > STREAM_MAX)
		abort();
	memcpy(stream->bytes + stream->size, bytes, size);
	stream->size += size;
}

static void add_header(struct stream *stream, uint32_t version)
{
	append(stream, BTRFS_SEND_STREAM_MAGIC, sizeof(BTRFS_SEND_STREAM_MAGIC));
	append(stream, &version, 4);
}

static void begin(struct stream *stream, uint16_t command)
{
	stream->command = stream->size;
	append(stream, "\0\0\0\0", 4);
	append(stream, &command, 2);
	append(stream, "\0\0\0\0", 4);
}

static void attribute(struct stream *stream, uint16_t type, const void *value, uint16_t size)
{
	append(stream, &type, 2);
	append(stream, &size, 2);
	append(stream, value, size);
}

static void string(struct stream *stream, uint16_t type, const char *value)
{
	attribute(stream, type, value, (uint16_t)strlen(value));
}

static void number(struct stream *stream, uint16_t type, uint64_t value)
{
	attribute(stream, type, &value, 8);
}

/* Set length and CRC of the command that starts at `command` and ends at `end`. */
static void seal(uint8_t *bytes, size_t command, size_t end)
{
	uint32_t length = (uint32_t)(end - command - COMMAND_HEADER_SIZE);
	uint32_t crc = 0;

	memcpy(bytes + command, &length, 4);
	memcpy(bytes + command + 6, &crc, 4);
	crc = bm_crc32c(0, bytes + command, end - command);
	memcpy(bytes + command + 6, &crc, 4);
}

static void seal_last(struct stream *stream)
{
	seal(stream->bytes, stream->command, stream->size);
}

static void add_commands(struct stream *stream, uint32_t version)
{
	static const uint8_t uuid[16] = {0xab, 0xcd, 0xef};
	static const uint8_t times[12] = {100};
	uint16_t data = BTRFS_SEND_A_DATA;

	begin(stream, BTRFS_SEND_C_SUBVOL);
	string(stream, BTRFS_SEND_A_PATH, "snap");
	attribute(stream, BTRFS_SEND_A_UUID, uuid, 16);
	number(stream, BTRFS_SEND_A_CTRANSID, 7);
	seal_last(stream);
	begin(stream, BTRFS_SEND_C_RENAME);
	string(stream, BTRFS_SEND_A_PATH, "o257-7-0");
	string(stream, BTRFS_SEND_A_PATH_TO, "a b\n\xff");
	seal_last(stream);
	begin(stream, BTRFS_SEND_C_WRITE);
	string(stream, BTRFS_SEND_A_PATH, "f");
	number(stream, BTRFS_SEND_A_FILE_OFFSET, 4096);
	if (version == 1) {
		string(stream, BTRFS_SEND_A_DATA, "hello");
	} else {
		append(stream, &data, 2);
		append(stream, "hello", 5);
	}
	seal_last(stream);
	begin(stream, BTRFS_SEND_C_UTIMES);
	string(stream, BTRFS_SEND_A_PATH, "");
	attribute(stream, BTRFS_SEND_A_ATIME, times, 12);
	attribute(stream, BTRFS_SEND_A_MTIME, times, 12);
	attribute(stream, BTRFS_SEND_A_CTIME, times, 12);
	seal_last(stream);
	begin(stream, BTRFS_SEND_C_END);
	seal_last(stream);
}

struct index {
	uint64_t offset[COMMANDS_MAX], first[COMMANDS_MAX + 1], attribute_offset[ROWS_MAX];
	uint32_t length[COMMANDS_MAX], attribute_length[ROWS_MAX];
	uint16_t type[COMMANDS_MAX], version[COMMANDS_MAX], attribute_type[ROWS_MAX];
	struct bm_stream_columns columns;
	struct bm_stream_position position;
	struct bm_fault fault;
};

static int64_t read_all(const uint8_t *bytes, size_t size, struct index *index)
{
	index->columns = (struct bm_stream_columns){
	    .offset = index->offset,
	    .length = index->length,
	    .type = index->type,
	    .version = index->version,
	    .first = index->first,
	    .attribute_type = index->attribute_type,
	    .attribute_offset = index->attribute_offset,
	    .attribute_length = index->attribute_length,
	    .capacity = COMMANDS_MAX,
	    .attribute_capacity = ROWS_MAX,
	};
	index->position = (struct bm_stream_position){0};
	return bm_stream_index(bytes, size, 1, &index->position, &index->columns, &index->fault);
}

/* The text of what was read; negative when a line could not be written. */
static int64_t print_all(const uint8_t *bytes, const struct index *index, int64_t count,
			 int escape_all, char *out, uint64_t *used)
{
	struct bm_stream_text *text = bm_stream_text_create(escape_all);
	struct bm_fault fault;
	int64_t lines;

	if (!text)
		abort();
	lines = bm_stream_text_lines(text, bytes, &index->columns, 0, (uint64_t)count,
				     (uint8_t *)out, TEXT_MAX, used, &fault);
	bm_stream_text_destroy(text);
	return lines;
}

static void test_reading(uint32_t version, char *text)
{
	static const char *expected =
	    "subvol          ./snap                          "
	    "uuid=abcdef00-0000-0000-0000-000000000000 transid=7\n"
	    "rename          ./snap/o257-7-0                 dest=./snap/a\\ b\\n\\377\n"
	    "write           ./snap/f                        offset=4096 len=5\n"
	    "utimes          ./snap/                         atime=1970-01-01T00:01:40+0000 "
	    "mtime=1970-01-01T00:01:40+0000 ctime=1970-01-01T00:01:40+0000\n";
	struct stream stream = {0};
	struct index index;
	uint64_t used;

	add_header(&stream, version);
	add_commands(&stream, version);
	CHECK(read_all(stream.bytes, stream.size, &index) == 5);
	CHECK(index.position.offset == stream.size && index.position.ended);
	CHECK(index.first[5] == 12 && index.attribute_length[7] == 5);
	CHECK(!memcmp(stream.bytes + index.attribute_offset[7], "hello", 5));
	CHECK(print_all(stream.bytes, &index, 5, 0, text, &used) == 5);
	CHECK(used == strlen(expected) && !memcmp(text, expected, used));
}

/* Cut anywhere, a stream gives its whole commands and then an error, except between commands. */
static void test_cuts(uint32_t version)
{
	struct stream stream = {0};
	struct index whole, index;
	int64_t commands;

	add_header(&stream, version);
	add_commands(&stream, version);
	commands = read_all(stream.bytes, stream.size, &whole);
	for (size_t size = 0; size < stream.size; size++) {
		uint8_t *copy = malloc(size + !size); /* of its exact size, for AddressSanitizer */
		int64_t count, complete = 0;
		int between = size == STREAM_HEADER_SIZE;

		if (!copy)
			abort();
		memcpy(copy, stream.bytes, size);
		for (int64_t i = 0; i < commands; i++) {
			uint64_t end = whole.offset[i] + COMMAND_HEADER_SIZE + whole.length[i];

			complete += end <= size;
			between |= end == size;
		}
		count = read_all(copy, size, &index);
		CHECK(count == complete || (complete == 0 && count == BM_STREAM_TRUNCATED));
		count =
		    bm_stream_index(copy, size, 1, &index.position, &index.columns, &index.fault);
		CHECK(count == (between ? 0 : BM_STREAM_TRUNCATED));
		free(copy);
	}
}

static void test_streams_that_follow(void)
{
	struct stream stream = {0};
	struct index index;

	add_header(&stream, 1);
	add_commands(&stream, 1);
	add_header(&stream, 2);
	add_commands(&stream, 2);
	CHECK(read_all(stream.bytes, stream.size, &index) == 10);
	CHECK(index.version[4] == 1 && index.version[5] == 2);
	append(&stream, "x", 1);
	CHECK(read_all(stream.bytes, stream.size, &index) == 10);
	CHECK(bm_stream_index(stream.bytes, stream.size, 1, &index.position, &index.columns,
			      &index.fault) == BM_STREAM_BAD_MAGIC);
	CHECK(index.fault.offset == stream.size - 1);
}

static void expect_fault(struct stream *stream, int code, uint32_t attribute_number)
{
	struct index index;

	seal_last(stream);
	CHECK(read_all(stream->bytes, stream->size, &index) == code);
	CHECK(index.fault.code == code && index.fault.slot == attribute_number);
	CHECK(index.fault.offset == stream->command);
}

static void test_faults(void)
{
	struct stream stream = {0};

	add_header(&stream, 1);
	begin(&stream, 99);
	expect_fault(&stream, BM_STREAM_BAD_COMMAND, 0);
	stream.size = stream.command;
	begin(&stream, BTRFS_SEND_C_FALLOCATE);
	expect_fault(&stream, BM_STREAM_BAD_COMMAND, 0);
	stream.size = stream.command;
	begin(&stream, BTRFS_SEND_C_RMDIR);
	expect_fault(&stream, BM_STREAM_MISSING, BTRFS_SEND_A_PATH);
	string(&stream, BTRFS_SEND_A_PATH, "d");
	string(&stream, BTRFS_SEND_A_PATH, "d");
	expect_fault(&stream, BM_STREAM_TWICE, BTRFS_SEND_A_PATH);
	stream.size -= 5;
	attribute(&stream, BTRFS_SEND_A_INO, "1234", 4);
	expect_fault(&stream, BM_STREAM_BAD_SIZE, BTRFS_SEND_A_INO);
	stream.size -= 2;
	expect_fault(&stream, BM_STREAM_BAD_LENGTH, BTRFS_SEND_A_INO);
	stream.size = stream.command + COMMAND_HEADER_SIZE;
	number(&stream, BTRFS_SEND_A_FILEATTR, 0);
	expect_fault(&stream, BM_STREAM_BAD_ATTRIBUTE, BTRFS_SEND_A_FILEATTR);
}

/* A line is written as a whole or not at all, whatever the room. */
static void test_room(void)
{
	uint8_t name[900];
	struct stream stream = {0};
	struct index index;
	int written = 0;

	memset(name, 0xff, sizeof(name));
	add_header(&stream, 1);
	begin(&stream, BTRFS_SEND_C_SET_XATTR);
	attribute(&stream, BTRFS_SEND_A_PATH, name, sizeof(name));
	attribute(&stream, BTRFS_SEND_A_XATTR_NAME, name, sizeof(name));
	attribute(&stream, BTRFS_SEND_A_XATTR_DATA, name, sizeof(name));
	seal_last(&stream);
	CHECK(read_all(stream.bytes, stream.size, &index) == 1);
	for (uint64_t capacity = 1; capacity < 60000; capacity += 331) {
		struct bm_stream_text *text = bm_stream_text_create(1);
		uint8_t *out = malloc(capacity);
		uint64_t used;
		int64_t lines;

		if (!text || !out)
			abort();
		lines = bm_stream_text_lines(text, stream.bytes, &index.columns, 0, 1, out,
					     capacity, &used, &index.fault);
		CHECK(lines == written || (lines == 1 && !written));
		CHECK(used == (lines ? 16 + 2 + 3600 + 6 + 3600 + 1 + 3600 + 9 : 0));
		written = lines == 1;
		free(out);
		bm_stream_text_destroy(text);
	}
	CHECK(written);
}

static uint32_t random32(void)
{
	static uint64_t state = 88172645463325252ull;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 32);
}

/* Bytes changed at random, CRCs made right again: whatever comes out, nothing may be overrun. */
static void test_random_damage(char *text)
{
	struct stream stream = {0};
	struct index whole, index;

	add_header(&stream, 2);
	add_commands(&stream, 2);
	CHECK(read_all(stream.bytes, stream.size, &whole) == 5);
	for (int round = 0; round < 100000; round++) {
		struct stream broken = stream;
		uint32_t n = random32() % 5;
		size_t start = whole.offset[n];
		size_t end = start + COMMAND_HEADER_SIZE + whole.length[n];
		uint8_t *copy = malloc(stream.size);
		uint64_t used;
		int64_t count;

		if (!copy)
			abort();
		for (uint32_t changes = 1 + random32() % 3; changes; changes--)
			broken.bytes[start + 4 + random32() % (end - start - 4)] ^=
			    (uint8_t)(1 << random32() % 8);
		seal(broken.bytes, start, end);
		memcpy(copy, broken.bytes, stream.size);
		count = read_all(copy, stream.size, &index);
		if (count > 0)
			print_all(copy, &index, count, round & 1, text, &used);
		free(copy);
	}
}

int main(void)
{
	char *text = malloc(TEXT_MAX);

	if (!text)
		abort();
	setenv("TZ", "UTC", 1);
	tzset();
	for (uint32_t version = 1; version <= 3; version++) {
		test_reading(version, text);
		test_cuts(version);
	}
	test_streams_that_follow();
	test_faults();
	test_room();
	test_random_damage(text);
	free(text);
	return finish("stream");
}
