/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Devices that reads wait for. All times are nanoseconds from the start of a run, all counts whole
 * numbers, so a run has one outcome whatever computes it.
 *
 * A disk is that of Ruemmler and Wilkes, "An introduction to disk drive modeling" (1994): seek
 * curve, rotation, zones, skews, a buffer into which the drive reads ahead, an interface slower or
 * faster than the medium. Flash is packages behind channels, as in Agrawal et al., "Design
 * tradeoffs for SSD performance" (2008).
 */
#ifndef BTRFS_MODEL_DEVICE_API_H
#define BTRFS_MODEL_DEVICE_API_H

#include <stddef.h>
#include <stdint.h>

#include "base/fault.h"

struct bm_disk_zone {
	uint64_t first_sector; /* logical */
	uint64_t sectors;      /* logical ones; tracks at the zone's end may be spare */
	uint32_t first_cylinder;
	uint32_t cylinders;
	uint32_t first_track; /* of the zone that holds data */
	uint32_t sectors_per_track;
	uint32_t track_skew; /* sectors, from a track to the next of a cylinder */
	uint32_t
	    cylinder_skew; /* sectors, from the last track of a cylinder to the next cylinder */
};

struct bm_disk {
	const struct bm_disk_zone *zones;
	uint64_t zone_count;
	const uint64_t *seek_time; /* by distance in cylinders */
	uint64_t seek_count;	   /* entries: one for each cylinder */
	uint32_t heads;
	uint32_t sector_size;
	uint64_t revolution;
	uint64_t head_switch;
	uint64_t write_settle; /* added to a seek before a write */
	uint64_t miss_overhead;
	uint64_t hit_overhead; /* of a read whose start is in the buffer */
	uint64_t write_overhead;
	uint64_t completion;
	uint64_t reselect;     /* before the interface carries data of a read */
	uint64_t link_sector;  /* the interface carries a sector */
	uint32_t watermark;    /* thousandths of a read in the buffer before the interface starts */
	uint32_t segments;     /* of the buffer; 0: none */
	uint64_t segment_size; /* sectors */
	uint64_t read_ahead;   /* sectors that the drive reads beyond a request */
	uint32_t
	    shortest_first; /* take the request with the shortest access time, not the oldest */
	uint32_t pad;
};

struct bm_flash {
	uint32_t channels;
	uint32_t dies; /* on each channel */
	uint32_t page_size;
	uint32_t pad;
	uint64_t command;      /* the controller has it to itself */
	uint64_t overhead;     /* of a request, beside others */
	uint64_t sense;	       /* a page from the array into its register */
	uint64_t channel_byte; /* picoseconds */
	uint64_t link_byte;    /* picoseconds */
};

enum bm_elevator {
	BM_ELEVATOR_none,	 /* in the order of submission, nothing merged */
	BM_ELEVATOR_mq_deadline, /* the kernel's block/mq-deadline.c, for one direction */
};

struct bm_device {
	const struct bm_disk *disk; /* one of these two; the other is NULL */
	const struct bm_flash *flash;
	uint64_t capacity;    /* bytes */
	uint32_t queue_depth; /* requests that the device takes at once */
	uint32_t elevator;    /* enum bm_elevator */
	uint32_t fifo_batch;  /* requests that it takes in ascending order at a time */
	uint32_t pad;
	uint64_t read_expire; /* after so long the oldest goes first */
	uint64_t max_request; /* bytes that merging stops at */
};

struct bm_io {
	uint64_t offset; /* byte of the device */
	uint32_t length;
	uint32_t write;
};
/* One thing that the host does: `think`, then submit ios[io], or wait for ios[~io]. */
struct bm_io_step {
	uint64_t think;
	int64_t io;
};
struct bm_io_time {
	uint64_t issued;
	uint64_t started; /* by the device */
	uint64_t done;
};
struct bm_io_totals {
	uint64_t end;	   /* of the last step */
	uint64_t waited;   /* of the host */
	uint64_t requests; /* that the device got, after merging */
	uint64_t buffered; /* of them found in the drive's buffer, at least their start */
	uint64_t seeks;	   /* of them that moved the arm */
};
/*
 * Run a host and a device beside each other. Each io is submitted once and is waited for after it
 * was submitted; those that were never waited for are finished as well. What contradicts itself is
 * BM_BAD_VALUE: offset = the io, zone or step, found = its value.
 */
int bm_device_run(const struct bm_device *device, const struct bm_io *ios, size_t io_count,
		  const struct bm_io_step *steps, size_t step_count, struct bm_io_time *times,
		  struct bm_io_totals *totals, struct bm_fault *fault);

#endif
