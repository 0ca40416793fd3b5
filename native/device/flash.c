// SPDX-License-Identifier: GPL-2.0-only
/*
 * Flash: pages are spread over dies, dies share channels, channels share the interface. A read
 * passes the controller, senses each of its pages on its die, and carries it over the channel of
 * that die and over the interface. Pages of different dies go on at the same time.
 *
 * What is shared has a clock that each use moves on by its length: no more passes than it can carry,
 * but a page that is sensed late does not hold up one that came after it and is sensed early.
 */
#include "device/device.h"

#include <stdlib.h>

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* Pass something shared, from `ready` on, for `time`; when it is through. */
static uint64_t pass(uint64_t *clock, uint64_t now, uint64_t ready, uint64_t time)
{
	*clock = later(*clock, now) + time;
	return later(*clock, ready + time);
}

struct service flash_serve(struct flash *flash, const struct request *request, uint64_t now)
{
	const struct bm_flash *model = flash->model;
	uint64_t dies = (uint64_t)model->channels * model->dies;
	uint64_t at = request->offset, end = request->offset + request->length;
	uint64_t ready = pass(&flash->controller, now, now, model->command) + model->overhead;
	struct service service = {.free = now};

	while (at < end) {
		uint64_t page = at / model->page_size, next = (page + 1) * model->page_size;
		uint64_t bytes = (next < end ? next : end) - at, carried;
		uint64_t *die = &flash->dies[page % dies];

		*die = later(ready, *die) + model->sense;
		carried = pass(&flash->channels[page % model->channels], now, *die,
			       bytes * model->channel_byte / 1000);
		service.done = pass(&flash->link, now, later(carried, service.done),
				    bytes * model->link_byte / 1000);
		at += bytes;
	}
	return service;
}

int flash_init(struct flash *flash, const struct bm_device *device, struct bm_fault *fault)
{
	const struct bm_flash *model = device->flash;
	uint64_t dies = (uint64_t)model->channels * model->dies;

	*flash = (struct flash){.model = model};
	if (!dies || dies > 1u << 20 || !model->page_size)
		return bm_fail(fault, (struct bm_fault){.code = BM_BAD_VALUE, .found = dies});
	flash->dies = calloc(dies, sizeof(*flash->dies));
	flash->channels = calloc(model->channels, sizeof(*flash->channels));
	if (!flash->dies || !flash->channels)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	return BM_OK;
}

void flash_deinit(struct flash *flash)
{
	free(flash->dies);
	free(flash->channels);
}
