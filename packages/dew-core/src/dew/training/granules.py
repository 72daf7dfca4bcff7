"""Which devices are near each other: granules, and the groups of them a hybrid mesh's data axis spans.

Inside a granule devices exchange fast; between granules slowly. A granule is a slice of TPUs or an NVLink
domain where the devices report several, else the devices of one process. A run whose devices all belong to
one granule has no slow border: there the devices, in their order, are the granules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def device_groups(devices: Sequence[Any], replicas: int) -> list[list[Any]]:
    """Devices in `replicas` equal groups, each of whole granules, in the order of the granules.

    Raises:
        ValueError: `replicas` does not divide the number of granules, or granules differ in size.
    """
    if replicas == 1:
        return [list(devices)]
    kind, granules = granules_of(devices)
    if len(granules) % replicas:
        fits = [str(count) for count in range(1, len(granules) + 1) if len(granules) % count == 0]
        raise ValueError(
            f"mesh.replicas={replicas} must divide the {len(granules)} {kind} of this run, so that every "
            f"replica has as many; use {', '.join(fits)}"
        )
    sizes = sorted({len(granule) for granule in granules})
    if len(sizes) > 1:
        raise ValueError(
            f"mesh.replicas={replicas} needs {kind} alike, and they hold from {sizes[0]} to {sizes[-1]} "
            "devices; use mesh.replicas=1, or give each as many"
        )
    each = len(granules) // replicas
    return [
        [device for granule in granules[start : start + each] for device in granule]
        for start in range(0, len(granules), each)
    ]


def granules_of(devices: Sequence[Any]) -> tuple[str, list[list[Any]]]:
    """What the granules are called, and their devices."""
    by_slice, by_process = (_grouped(devices, name) for name in ("slice_index", "process_index"))
    if len(by_slice) > 1:
        return "slices", by_slice
    if len(by_process) > 1:
        return "processes", by_process
    return "devices", [[device] for device in devices]


def _grouped(devices: Sequence[Any], name: str) -> list[list[Any]]:
    found: dict[int, list[Any]] = {}
    for device in devices:
        # Backends without slices have no such attribute: one slice.
        found.setdefault(getattr(device, name, 0), []).append(device)
    return [found[key] for key in sorted(found)]
