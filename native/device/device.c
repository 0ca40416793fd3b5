// SPDX-License-Identifier: GPL-2.0-only
/*
 * A host and a device beside each other. The host is one thread: it computes, submits, and waits.
 * What it submits goes through the elevator to the device as soon as that has room. Two kinds of
 * events move the device on: it turns to the next of its requests, and it finishes one, which makes
 * room. Both happen in the order of their time, up to the moment at which the host does something.
 */
#include "device/device.h"

#include <stdlib.h>
#include <string.h>

enum { IDLE = 0, SUBMITTED = 1, SERVED = 2 };

struct run {
	const struct bm_device *device;
	const struct bm_io *ios;
	struct bm_io_time *times;
	struct bm_io_totals *totals;
	uint8_t *state; /* of each io */
	struct elevator elevator;
	struct disk disk;
	struct flash flash;
	struct request *queue; /* at the device, in the order of arrival */
	size_t queued;
	uint64_t *busy; /* when served requests are done: a heap, the first on top */
	size_t busy_count;
	uint64_t clock; /* of the last event */
	uint64_t free;	/* when the device can turn to the next request */
	bool endless;	/* a time is more than INT64_MAX */
};

/* ---------------------------------------------------------------------- requests under way -- */

static void busy_push(struct run *run, uint64_t done)
{
	size_t at = run->busy_count++;

	while (at && run->busy[(at - 1) / 2] > done) {
		run->busy[at] = run->busy[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	run->busy[at] = done;
}

static void busy_pop(struct run *run)
{
	uint64_t last = run->busy[--run->busy_count];
	size_t at = 0, child;

	while ((child = 2 * at + 1) < run->busy_count) {
		if (child + 1 < run->busy_count && run->busy[child + 1] < run->busy[child])
			child++;
		if (run->busy[child] >= last)
			break;
		run->busy[at] = run->busy[child];
		at = child;
	}
	run->busy[at] = last;
}

/* Give the device what it has room for. */
static void dispatch(struct run *run)
{
	while (run->queued + run->busy_count < run->device->queue_depth) {
		size_t io = elevator_take(&run->elevator, run->clock);

		if (io == NO_IO)
			return;
		run->queue[run->queued++] = (struct request){
		    .io = io,
		    .offset = run->ios[io].offset,
		    .length = run->elevator.waiting[io].end - run->ios[io].offset,
		    .write = run->ios[io].write,
		};
		run->totals->requests++;
	}
}

/* The device turns to one of its requests. */
static void serve(struct run *run)
{
	size_t chosen =
	    run->device->disk ? disk_choose(&run->disk, run->queue, run->queued, run->clock) : 0;
	struct request request = run->queue[chosen];
	struct service service = run->device->disk ? disk_serve(&run->disk, &request, run->clock)
						   : flash_serve(&run->flash, &request, run->clock);

	memmove(&run->queue[chosen], &run->queue[chosen + 1],
		(--run->queued - chosen) * sizeof(*run->queue));
	run->free = service.free;
	run->totals->buffered += service.buffered;
	run->totals->seeks += service.seek;
	run->endless |= service.done > INT64_MAX || service.free > INT64_MAX;
	for (size_t io = request.io; io != NO_IO; io = run->elevator.waiting[io].next_io) {
		run->times[io].started = run->clock;
		run->times[io].done = service.done;
		run->state[io] = SERVED;
	}
	busy_push(run, service.done);
}

/* The next event, unless it is later than `until`; whether there was one. */
static bool step_device(struct run *run, uint64_t until)
{
	uint64_t turn = run->free > run->clock ? run->free : run->clock;

	if (run->busy_count && (!run->queued || run->busy[0] <= turn)) {
		if (run->busy[0] > until)
			return false;
		if (run->busy[0] > run->clock)
			run->clock = run->busy[0];
		busy_pop(run);
		dispatch(run);
		return true;
	}
	if (!run->queued || turn > until)
		return false;
	run->clock = turn;
	serve(run);
	return true;
}

/* -------------------------------------------------------------------------------- the host -- */

/* Clocks that went too far, before they come round to 0. */
static int too_late(struct bm_fault *fault, uint64_t place)
{
	return bm_fail(fault, (struct bm_fault){.code = BM_PAST_END, .offset = place});
}

static int bad_step(struct bm_fault *fault, uint64_t place, uint64_t found)
{
	return bm_fail(fault,
		       (struct bm_fault){.code = BM_BAD_VALUE, .offset = place, .found = found});
}

/*
 * Move the device on to `now`. With an elevator the kernel leaves it to a worker (kblockd) to give
 * requests to the device, so what the host submits at one moment waits there together.
 */
static void advance(struct run *run, uint64_t now)
{
	if (now <= run->clock)
		return;
	dispatch(run);
	while (step_device(run, now))
		;
	run->clock = now;
}

static void submit(struct run *run, size_t io, uint64_t now)
{
	advance(run, now);
	run->times[io].issued = now;
	run->state[io] = SUBMITTED;
	elevator_add(&run->elevator, io, now);
	if (run->device->elevator == BM_ELEVATOR_none)
		dispatch(run);
}

static int run_steps(struct run *run, const struct bm_io_step *steps, size_t step_count,
		     size_t io_count, struct bm_fault *fault)
{
	uint64_t now = 0;

	for (size_t i = 0; i < step_count; i++) {
		bool waits = steps[i].io < 0;
		uint64_t io = (uint64_t)(waits ? ~steps[i].io : steps[i].io);

		if (io >= io_count || waits != (run->state[io] != IDLE))
			return bad_step(fault, i, io);
		if (steps[i].think > INT64_MAX - now)
			return too_late(fault, i);
		now += steps[i].think;
		if (!waits) {
			submit(run, io, now);
			continue;
		}
		dispatch(run);
		while (run->state[io] != SERVED && !run->endless)
			step_device(run, UINT64_MAX);
		if (run->endless)
			return too_late(fault, i);
		if (run->times[io].done > now) {
			run->totals->waited += run->times[io].done - now;
			now = run->times[io].done;
		}
	}
	advance(run, UINT64_MAX);
	run->totals->end = now;
	return run->endless ? too_late(fault, step_count) : BM_OK;
}

static int check_ios(const struct bm_device *device, const struct bm_io *ios, size_t count,
		     struct bm_fault *fault)
{
	if (!device->disk == !device->flash || !device->queue_depth ||
	    device->queue_depth > 1u << 20 || !device->fifo_batch)
		return bad_step(fault, 0, device->queue_depth);
	for (size_t i = 0; i < count; i++)
		if (!ios[i].length || ios[i].length > device->capacity ||
		    ios[i].offset > device->capacity - ios[i].length)
			return bad_step(fault, i, ios[i].offset);
	return BM_OK;
}

static int run_init(struct run *run, size_t io_count, struct bm_fault *fault)
{
	const struct bm_device *device = run->device;

	run->state = calloc(io_count + 1, 1);
	run->queue = malloc((device->queue_depth + 1u) * sizeof(*run->queue));
	run->busy = malloc((device->queue_depth + 1u) * sizeof(*run->busy));
	if (!run->state || !run->queue || !run->busy ||
	    elevator_init(&run->elevator, device, run->ios, io_count) < 0)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	return device->disk ? disk_init(&run->disk, device, fault)
			    : flash_init(&run->flash, device, fault);
}

int bm_device_run(const struct bm_device *device, const struct bm_io *ios, size_t io_count,
		  const struct bm_io_step *steps, size_t step_count, struct bm_io_time *times,
		  struct bm_io_totals *totals, struct bm_fault *fault)
{
	struct run run = {.device = device, .ios = ios, .times = times, .totals = totals};
	int ret = check_ios(device, ios, io_count, fault);

	*totals = (struct bm_io_totals){0};
	memset(times, 0, io_count * sizeof(*times));
	if (!ret)
		ret = run_init(&run, io_count, fault);
	if (!ret)
		ret = run_steps(&run, steps, step_count, io_count, fault);
	elevator_deinit(&run.elevator);
	disk_deinit(&run.disk);
	flash_deinit(&run.flash);
	free(run.state);
	free(run.queue);
	free(run.busy);
	return ret;
}
