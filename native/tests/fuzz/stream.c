// SPDX-License-Identifier: GPL-2.0-only
/*
 * Send streams of all versions: an input says which commands there are and what is in them, mostly
 * what must be, with lengths and CRCs that are right; an eighth of the inputs is the stream itself.
 */
#include "stream/stream.h"

#include <stdlib.h>
#include <time.h>

#define COMMANDS 16
#define ROWS 64
#define TEXT (4u << 20)
#define MOST 4096u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct output {
	uint8_t *bytes;
	size_t size;
};

static void append(struct output *out, const void *bytes, size_t size)
{
	if (size > MOST - out->size)
		size = MOST - out->size;
	memcpy(out->bytes + out->size, bytes, size);
	out->size += size;
}

/* The next bytes of the input, zeros behind its end. */
static uint64_t take(struct output *in, size_t bytes)
{
	uint64_t value = 0;

	bytes = bytes < in->size ? bytes : in->size;
	memcpy(&value, in->bytes, bytes);
	in->bytes += bytes;
	in->size -= bytes;
	return value;
}

/* An attribute of the size that it must have, or of any. */
static void append_attribute(struct output *out, struct output *in, uint16_t number,
			     uint32_t version)
{
	const int32_t wanted = bm_stream_attribute_rules[number % 36].size;
	uint8_t value[64];
	uint16_t size = (uint16_t)(wanted < 0 ? take(in, 1) % sizeof(value) : (uint64_t)wanted);

	for (size_t i = 0; i < size && i < sizeof(value); i++)
		value[i] = (uint8_t)take(in, 1);
	if (size > sizeof(value))
		size = sizeof(value);
	append(out, &number, sizeof(number));
	/* in later versions data go on to the end of the command */
	if (version == 1 || number != BTRFS_SEND_A_DATA)
		append(out, &size, sizeof(size));
	append(out, value, size);
}

/* A command with all attributes that it must have; some are left out, some others come along. */
static void append_command(struct output *out, struct output *in, uint32_t version)
{
	const size_t start = out->size;
	const uint16_t type = (uint16_t)(take(in, 1) % 28);
	const uint64_t mandatory = bm_stream_command_rules[type % 27].mandatory, how = take(in, 1);
	const uint8_t zeros[COMMAND_HEADER_SIZE] = {0};
	uint32_t length, crc;

	append(out, zeros, sizeof(zeros));
	for (uint16_t number = 0; number < 36; number++)
		if (mandatory >> number & 1 && (how >> 3 || number % 8 != (how & 7)))
			append_attribute(out, in, number, version);
	for (uint64_t more = how < 64 ? how % 4 : 0; more; more--)
		append_attribute(out, in, (uint16_t)(take(in, 1) % 40), version);
	if (out->size - start < COMMAND_HEADER_SIZE)
		return;
	length = (uint32_t)(out->size - start - COMMAND_HEADER_SIZE);
	memcpy(out->bytes + start, &length, sizeof(length));
	memcpy(out->bytes + start + 4, &type, sizeof(type));
	crc = bm_crc32c(0, out->bytes + start, out->size - start);
	memcpy(out->bytes + start + 6, &crc, sizeof(crc));
}

/* A stream of commands as the input says. */
static void build(struct output *out, struct output *in, uint32_t version)
{
	append(out, BTRFS_SEND_STREAM_MAGIC, sizeof(BTRFS_SEND_STREAM_MAGIC));
	append(out, &version, sizeof(version));
	while (in->size && out->size < MOST)
		append_command(out, in, version);
}

struct index {
	uint64_t offset[COMMANDS], first[COMMANDS + 1], attribute_offset[ROWS];
	uint32_t length[COMMANDS], attribute_length[ROWS];
	uint16_t type[COMMANDS], version[COMMANDS], attribute_type[ROWS];
	struct bm_stream_columns columns;
};

static void start(struct index *index)
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
	    .capacity = COMMANDS,
	    .attribute_capacity = ROWS,
	};
}

/* All commands that were read lie in the stream, attributes in their commands. */
static void check(const struct index *index, int64_t count, size_t size)
{
	for (int64_t i = 0; i < count; i++) {
		const uint64_t start = index->offset[i] + COMMAND_HEADER_SIZE;

		if (start > size || index->length[i] > size - start)
			abort();
		for (uint64_t row = index->first[i]; row < index->first[i + 1]; row++)
			if (index->attribute_offset[row] < start ||
			    index->attribute_offset[row] + index->attribute_length[row] >
				start + index->length[i])
				abort();
	}
}

static void use(const uint8_t *stream, const struct index *index, int64_t count,
		struct bm_stream_text *text, uint64_t room)
{
	static uint8_t out[TEXT];
	static struct bm_stream_inode inodes[COMMANDS / 2 + 1];
	static struct bm_span pieces[COMMANDS];
	static struct bm_stream_times times[COMMANDS];
	struct bm_fault fault;
	uint64_t used;

	bm_stream_text_lines(text, stream, &index->columns, 0, (uint64_t)count, out, room, &used,
			     &fault);
	bm_stream_inodes(stream, &index->columns, (uint64_t)count, 255, inodes, pieces, times);
}

static void read_all(const uint8_t *stream, size_t size, int how)
{
	struct bm_stream_text *text = bm_stream_text_create(how & 1);
	struct bm_stream_position position = {0};
	static struct index index;
	struct bm_fault fault;
	int64_t count;

	start(&index);
	do {
		count = bm_stream_index(stream, size, how & 2, &position, &index.columns, &fault);
		check(&index, count, size);
		if (count > 0)
			use(stream, &index, count, text, how & 4 ? 300 : TEXT);
	} while (count > 0);
	bm_stream_text_destroy(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t room[MOST];
	struct output out = {.bytes = room};
	uint8_t *stream, copy[MOST];
	struct output in = {.bytes = copy};

	if (!size || size > MOST)
		return 0;
	memcpy(copy, data + 1, size - 1);
	in.size = size - 1;
	if (data[0] >> 5)
		build(&out, &in, 1 + (data[0] >> 3) % 3u);
	else
		append(&out, copy, in.size);
	/* of its exact size, for AddressSanitizer */
	stream = malloc(out.size ? out.size : 1);
	if (!stream)
		abort();
	memcpy(stream, room, out.size);
	tzset();
	read_all(stream, out.size, data[0]);
	free(stream);
	return 0;
}
