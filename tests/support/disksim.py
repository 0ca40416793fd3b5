# SPDX-License-Identifier: GPL-2.0-only
"""Drives of DiskSim 4.0: its files in ``valid/`` read as tables that devices are built of."""

import re
from pathlib import Path
from typing import Any

from btrfs_model.cost.device import Device, build


def _number(text: str, name: str) -> float:
    """The value of a parameter in one of the files."""
    found = re.search(rf"{re.escape(name)}\s*=\s*(-?[\d.]+)", text)
    assert found is not None, name
    return float(found[1])


def _zones(model: str) -> list[dict[str, int]]:
    """The zones; sectors that are left out within a track or cylinder are not."""
    by_track = _number(model, "Sparing scheme used") == 1
    zones = []
    for zone in model.split("dm_layout_g1_zone {")[1:]:
        first, on_track = _number(zone, "First cylinder number"), _number(zone, "Blocks per track")
        zones.append(
            {
                "first_cylinder": int(first),
                "cylinders": int(_number(zone, "Last cylinder number") - first + 1),
                "sectors_per_track": int(on_track),
                "track_skew": int(_number(zone, "Skew for track switch")),
                "cylinder_skew": int(_number(zone, "Skew for cylinder switch")),
                "empty_tracks": int(_number(zone, "Empty space at zone front") // on_track),
                "spare_tracks": int(_number(zone, "Number of spares")) if by_track else 0,
            }
        )
    return zones


def _seek(folder: Path, model: str) -> dict[str, Any]:
    """The curve that was measured point by point."""
    found = re.search(r"Full seek curve\s*=\s*(\S+?),", model)
    assert found is not None
    points = [line.split(",") for line in (folder / found[1]).read_text().splitlines()[1:] if line]
    return {
        "form": "table",
        "distance": [int(distance) for distance, _ in points],
        "time_ms": [float(time) for _, time in points],
    }


def drive(folder: Path, name: str) -> Device:
    """A drive whose parameters stand in DiskSim's files, with one request at a time."""
    model = next(folder.glob(f"{name}_validate.model")).read_text()
    named = folder / f"{name}_validate.diskspecs"
    specs = (named if named.exists() else folder / f"{name}.diskspecs").read_text()
    bus = (folder / f"{name}.parv").read_text().split("BUS1 {")[1]
    sector = _number(bus, "Read block transfer time")
    table = {
        "kind": "disk",
        "heads": _number(model, "Number of data surfaces"),
        "sector_size": 512,
        "rpm": _number(model, "Rotation speed (in rpms)"),
        "zones": _zones(model),
        "seek": _seek(folder, model),
        "head_switch_ms": _number(model, "Head switch time"),
        # a drive that starts to write before the arm has settled does so in no time here
        "write_settle_ms": max(0.0, _number(model, "Add. write settling delay")),
        "miss_overhead_ms": _number(specs, "Read miss over. after read"),
        "hit_overhead_ms": _number(specs, "Read hit over. after read"),
        "write_overhead_ms": _number(specs, "Write miss over. after read"),
        "completion_ms": _number(specs, "Read completion overhead"),
        "reselect_ms": _number(specs, "First reselect overhead"),
        "link_mb_s": 512 / sector / 1000,
        "watermark": _number(specs, "High (read) water mark"),
        "segments": _number(specs, "Number of buffer segments"),
        "segment_sectors": _number(specs, "Segment size (in blks)"),
        "read_ahead_sectors": _number(specs, "Maximum read-ahead (blks)"),
        "order": "oldest",
        "queue_depth": 1,
    }
    return build(name, table)
