/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the models of devices share: the elevator of the host, and the two kinds of device. Not part
 * of the interface.
 */
#ifndef BTRFS_MODEL_DEVICE_H
#define BTRFS_MODEL_DEVICE_H

#include "image/internal.h"

#include <stdbool.h>

#define NO_IO SIZE_MAX

/*
 * device/elevator.c: requests that wait in the kernel. A request is one or more neighbouring ios; it
 * is known by the io that starts first.
 */
struct waiting {
	uint64_t end;	     /* byte behind the request */
	uint64_t since;	     /* of the oldest io */
	uint64_t order;	     /* of the oldest io in the fifo */
	size_t next_io;	     /* of the same request */
	size_t last_io;	     /* of the request */
	size_t older, newer; /* requests in the order of submission */
};
struct elevator {
	const struct bm_device *device;
	const struct bm_io *ios;
	size_t *by_offset; /* ios, ascending */
	size_t *rank;	   /* place of an io there */
	struct waiting *waiting;
	uint64_t *set[11]; /* ranks that wait: bits, and above them bits of words that are not 0 */
	int levels;
	size_t oldest, newest;
	size_t next_rank; /* where the ascending sweep goes on */
	uint64_t added;
	uint32_t batch;
};
int elevator_init(struct elevator *elevator, const struct bm_device *device,
		  const struct bm_io *ios, size_t count);
void elevator_deinit(struct elevator *elevator);
void elevator_add(struct elevator *elevator, size_t io, uint64_t now);
/* The request that goes to the device next, NO_IO: none waits. */
size_t elevator_take(struct elevator *elevator, uint64_t now);

/* A request at the device. */
struct request {
	size_t io;
	uint64_t offset;
	uint64_t length;
	bool write;
};
/* What became of it. */
struct service {
	uint64_t done;
	uint64_t free; /* the device turns to the next one */
	bool buffered;
	bool seek;
};

/* device/disk.c */
struct segment {
	uint64_t start, end; /* sectors */
	uint64_t used;	     /* at which request; 0: empty */
};
struct disk {
	const struct bm_disk *model;
	uint64_t cylinder;
	uint64_t head;
	uint64_t link_free;
	uint64_t requests;
	struct segment *segments;
	struct segment *active; /* it is being read into, NULL: none */
	uint64_t active_since;	/* when active->end was reached */
	uint64_t active_limit;	/* sector at which that stops */
};
int disk_init(struct disk *disk, const struct bm_device *device, struct bm_fault *fault);
void disk_deinit(struct disk *disk);
/* Which of the requests comes next at `now`. */
size_t disk_choose(const struct disk *disk, const struct request *requests, size_t count,
		   uint64_t now);
struct service disk_serve(struct disk *disk, const struct request *request, uint64_t now);

/* device/flash.c */
struct flash {
	const struct bm_flash *model;
	uint64_t *dies; /* when each is free */
	uint64_t *channels;
	uint64_t controller;
	uint64_t link;
};
int flash_init(struct flash *flash, const struct bm_device *device, struct bm_fault *fault);
void flash_deinit(struct flash *flash);
struct service flash_serve(struct flash *flash, const struct request *request, uint64_t now);

#endif
