// SPDX-License-Identifier: GPL-2.0-only
/*
 * Devices: runs of hosts and devices made at random; what is found must be possible, and whatever
 * contradicts itself must be refused. The figures themselves are tested from Python.
 */
#include "check.h"
#include "kernels.h"

#include <stdlib.h>
#include <string.h>

enum { IOS = 300, CYLINDERS = 400 };

static uint64_t state = 1;

static uint64_t random_below(uint64_t limit)
{
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return (state >> 24) % limit;
}

static struct bm_disk_zone zones[2] = {
    {.sectors = 200 * 4 * 90,
     .cylinders = 200,
     .sectors_per_track = 90,
     .track_skew = 9,
     .cylinder_skew = 20},
    {.first_sector = 200 * 4 * 90,
     .sectors = 190 * 4 * 60,
     .first_cylinder = 200,
     .cylinders = 200,
     .first_track = 8,
     .sectors_per_track = 60,
     .track_skew = 6,
     .cylinder_skew = 14},
};

static void random_run(void)
{
	static uint64_t seeks[CYLINDERS];
	static struct bm_io ios[IOS];
	static struct bm_io_step steps[2 * IOS];
	static struct bm_io_time times[IOS];
	struct bm_disk disk = {.zones = zones,
			       .zone_count = 2,
			       .seek_time = seeks,
			       .seek_count = CYLINDERS,
			       .heads = 4,
			       .sector_size = 512,
			       .revolution = 11111111,
			       .head_switch = 900000,
			       .miss_overhead = 500000,
			       .hit_overhead = 100000,
			       .link_sector = 50000,
			       .watermark = 500,
			       .segments = (uint32_t)random_below(4),
			       .segment_size = 256,
			       .read_ahead = 128,
			       .shortest_first = (uint32_t)random_below(2)};
	struct bm_flash flash = {.channels = 3,
				 .dies = 2,
				 .page_size = 4096,
				 .command = 2000,
				 .sense = 60000,
				 .channel_byte = 1500,
				 .link_byte = 2000};
	struct bm_device device = {.capacity = 512ull * (200 * 4 * 90 + 190 * 4 * 60),
				   .queue_depth = 1 + (uint32_t)random_below(32),
				   .elevator = (uint32_t)random_below(2),
				   .fifo_batch = 1 + (uint32_t)random_below(16),
				   .read_expire = random_below(500000000),
				   .max_request = random_below(1 << 18)};
	struct bm_io_totals totals;
	struct bm_fault fault;
	size_t count = 0;

	if (random_below(3))
		device.disk = &disk;
	else
		device.flash = &flash;
	for (int i = 1; i < CYLINDERS; i++)
		seeks[i] = 1000000 + 20000 * (uint64_t)i;
	for (size_t i = 0; i < IOS; i++) {
		ios[i].length = 512 * (1 + (uint32_t)random_below(64));
		ios[i].offset = 512 * random_below(device.capacity / 512 - 64);
		if (i && random_below(2) && ios[i - 1].offset + 65536 <= device.capacity)
			ios[i].offset = ios[i - 1].offset + ios[i - 1].length;
		if (ios[i].offset + ios[i].length > device.capacity)
			ios[i].offset = 0;
		ios[i].write = device.disk && !random_below(10);
		steps[count++] = (struct bm_io_step){random_below(3000000), (int64_t)i};
		if (random_below(3))
			steps[count++] = (struct bm_io_step){0, ~(int64_t)random_below(i + 1)};
	}
	CHECK(bm_device_run(&device, ios, IOS, steps, count, times, &totals, &fault) == BM_OK);
	for (size_t i = 0; i < IOS; i++)
		CHECK(times[i].issued <= times[i].started && times[i].started < times[i].done);
	/* one step too many, a request beyond the device, a zone without sectors */
	steps[count] = (struct bm_io_step){0, IOS - 1};
	CHECK(bm_device_run(&device, ios, IOS, steps, count + 1, times, &totals, &fault) ==
	      BM_BAD_VALUE);
	ios[7].offset = device.capacity - ios[7].length + 1;
	CHECK(bm_device_run(&device, ios, IOS, steps, count, times, &totals, &fault) ==
	      BM_BAD_VALUE);
	ios[7].offset = UINT64_MAX;
	CHECK(bm_device_run(&device, ios, IOS, steps, count, times, &totals, &fault) ==
	      BM_BAD_VALUE);
	ios[7].offset = 0;
	/* times beyond INT64_MAX; more segments than can be counted with one more */
	steps[0].think = UINT64_MAX / 2;
	CHECK(bm_device_run(&device, ios, IOS, steps, count, times, &totals, &fault) ==
	      BM_PAST_END);
	steps[0].think = 0;
	if (device.disk) {
		uint32_t segments = disk.segments;

		disk.segments = UINT32_MAX;
		CHECK(bm_device_run(&device, ios, IOS, steps, count, times, &totals, &fault) ==
		      BM_BAD_VALUE);
		disk.segments = segments;
	}
	flash.channels = disk.heads = 0;
	CHECK(bm_device_run(&device, ios, IOS, steps, count, times, &totals, &fault) ==
	      BM_BAD_VALUE);
}

int main(void)
{
	for (int i = 0; i < 200; i++)
		random_run();
	return finish("device");
}
