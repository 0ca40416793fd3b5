// SPDX-License-Identifier: GPL-2.0-only
/* No memory for what needs no image. */
#include "faults/faults.h"

#include <stdlib.h>
#include <string.h>

#define SIZE 40000
#define IOS 200
#define CYLINDERS 100

static void *open_nothing(void)
{
	static int nothing;

	return &nothing;
}

static void close_nothing(void *stage)
{
	(void)stage;
}

/* ------------------------------------------------------------------------------- compression -- */

static int64_t run_zlib(void *stage, struct answer *answer, struct bm_fault *fault)
{
	static uint8_t data[SIZE], out[2 * SIZE + 4096];
	int64_t ret;

	(void)stage;
	for (size_t i = 0; i < SIZE; i++)
		data[i] = (uint8_t)(i * i >> 8);
	ret = bm_zlib_compress(data, SIZE, 6, 1, 4096, out, sizeof(out));
	if (ret < 0)
		return fault->code = (int32_t)ret;
	add_bytes(answer, out, (size_t)ret);
	return ret;
}

/* -------------------------------------------------------------------------------------- text -- */

static int64_t run_text(void *stage, struct answer *answer, struct bm_fault *fault)
{
	static const struct bm_text_step steps[] = {
	    {.how = BM_TEXT_END}, {.size = 5, .how = BM_TEXT_LITERAL}, {.how = BM_TEXT_END}};
	struct bm_text_form form = {.steps = steps,
				    .step_count = 3,
				    .texts = (const uint8_t *)"leaf\n",
				    .text_size = 5,
				    .sectorsize = 4096,
				    .csum_size = 4};
	static const struct btrfs_header header;
	struct bm_text_question question;
	struct bm_text *text;
	uint8_t out[64];
	uint64_t used;
	int64_t ret;

	(void)stage;
	form.starts[BM_TEXT_LEAF] = 1;
	text = bm_text_create(&form);
	if (!text)
		return fault->code = BM_NOMEM;
	ret = bm_text_block(text, (const uint8_t *)&header, sizeof(header), NULL, 0, 0, out,
			    sizeof(out), &used, &question, fault);
	if (ret >= 0)
		add_bytes(answer, out, used);
	bm_text_destroy(text);
	return ret;
}

static int64_t run_stream_text(void *stage, struct answer *answer, struct bm_fault *fault)
{
	struct bm_stream_text *text = bm_stream_text_create(1);
	const struct bm_stream_columns columns = {0};
	uint8_t out[64];
	uint64_t used;
	int64_t ret;

	(void)stage;
	if (!text)
		return fault->code = BM_NOMEM;
	ret = bm_stream_text_lines(text, out, &columns, 0, 0, out, sizeof(out), &used, fault);
	add_number(answer, used);
	bm_stream_text_destroy(text);
	return ret;
}

/* ----------------------------------------------------------------------------------- devices -- */

static int64_t run_device(const struct bm_device *device, struct answer *answer,
			  struct bm_fault *fault)
{
	static struct bm_io ios[IOS];
	static struct bm_io_step steps[2 * IOS];
	static struct bm_io_time times[IOS];
	struct bm_io_totals totals = {0};
	size_t count = 0;
	int ret;

	for (size_t i = 0; i < IOS; i++) {
		ios[i] = (struct bm_io){.offset = i * 7919 % 5000 * 512, .length = 4096};
		steps[count++] = (struct bm_io_step){1000, (int64_t)i};
		if (i % 8 == 7)
			steps[count++] = (struct bm_io_step){0, ~(int64_t)(i - 3)};
	}
	ret = bm_device_run(device, ios, IOS, steps, count, times, &totals, fault);
	if (ret >= 0)
		add_bytes(answer, times, sizeof(times));
	return ret;
}

static int64_t run_disk(void *stage, struct answer *answer, struct bm_fault *fault)
{
	static const struct bm_disk_zone zone = {
	    .sectors = CYLINDERS * 2 * 60, .cylinders = CYLINDERS, .sectors_per_track = 60};
	static uint64_t seeks[CYLINDERS];
	const struct bm_disk disk = {.zones = &zone,
				     .zone_count = 1,
				     .seek_time = seeks,
				     .seek_count = CYLINDERS,
				     .heads = 2,
				     .sector_size = 512,
				     .revolution = 11111111,
				     .link_sector = 50000,
				     .watermark = 500,
				     .segments = 3,
				     .segment_size = 256,
				     .read_ahead = 128};
	const struct bm_device device = {.disk = &disk,
					 .capacity = CYLINDERS * 2 * 60 * 512,
					 .queue_depth = 4,
					 .elevator = BM_ELEVATOR_mq_deadline,
					 .fifo_batch = 4,
					 .read_expire = 500000000,
					 .max_request = 1 << 18};

	(void)stage;
	for (size_t i = 1; i < CYLINDERS; i++)
		seeks[i] = 1000000 + 20000 * i;
	return run_device(&device, answer, fault);
}

static int64_t run_flash(void *stage, struct answer *answer, struct bm_fault *fault)
{
	const struct bm_flash flash = {.channels = 3,
				       .dies = 2,
				       .page_size = 4096,
				       .command = 2000,
				       .sense = 60000,
				       .channel_byte = 1500,
				       .link_byte = 2000};
	const struct bm_device device = {.flash = &flash,
					 .capacity = 1 << 24,
					 .queue_depth = 8,
					 .elevator = BM_ELEVATOR_none,
					 .fifo_batch = 1,
					 .max_request = 1 << 18};

	(void)stage;
	return run_device(&device, answer, fault);
}

const struct scenario others[] = {
    {"zlib", open_nothing, run_zlib, NULL, close_nothing},
    {"text of items", open_nothing, run_text, NULL, close_nothing},
    {"text of streams", open_nothing, run_stream_text, NULL, close_nothing},
    {"disk", open_nothing, run_disk, NULL, close_nothing},
    {"flash", open_nothing, run_flash, NULL, close_nothing},
};
const size_t others_count = sizeof(others) / sizeof(*others);
