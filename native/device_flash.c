// SPDX-License-Identifier: GPL-2.0-only
/*
 * Flash: pages are spread over dies, dies share channels, channels share the interface. A read
 * senses each of its pages on its die, carries it over the channel of that die and over the
 * interface. Pages of different dies go on at the same time; a die is busy until its page left it.
 */
#include "device.h"

#include <stdlib.h>

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

struct service flash_serve(struct flash *flash, const struct request *request, uint64_t now)
{
	const struct bm_flash *model = flash->model;
	uint64_t dies = (uint64_t)model->channels * model->dies;
	uint64_t at = request->offset, end = request->offset + request->length;
	struct service service = {.free = now, .done = now};

	now += model->overhead;
	while (at < end) {
		uint64_t page = at / model->page_size, next = (page + 1) * model->page_size;
		uint64_t bytes = (next < end ? next : end) - at;
		uint64_t *die = &flash->die_free[page % dies];
		uint64_t *channel = &flash->channel_free[page % model->channels];

		*die = later(now, *die) + model->sense;
		*channel = later(*die, *channel) + bytes * model->channel_byte / 1000;
		*die = *channel;
		flash->link_free =
		    later(*channel, flash->link_free) + bytes * model->link_byte / 1000;
		service.done = flash->link_free;
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
	flash->die_free = calloc(dies, sizeof(*flash->die_free));
	flash->channel_free = calloc(model->channels, sizeof(*flash->channel_free));
	if (!flash->die_free || !flash->channel_free)
		return bm_fail(fault, (struct bm_fault){.code = BM_NOMEM});
	return BM_OK;
}

void flash_deinit(struct flash *flash)
{
	free(flash->die_free);
	free(flash->channel_free);
}
