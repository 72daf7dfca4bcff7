"""Which devices form a replica, from what they say of themselves."""

from dataclasses import dataclass

import pytest

from dew.training.granules import device_groups, granules_of


@dataclass(frozen=True)
class Plain:
    """A device of a backend without slices."""

    id: int
    process_index: int


@dataclass(frozen=True)
class Sliced:
    id: int
    process_index: int
    slice_index: int


def numbers(groups):
    return [[device.id for device in group] for group in groups]


def test_slices_are_granules_whatever_processes_hold_them():
    devices = [Sliced(index, index // 2, index // 4 % 2) for index in range(8)]
    assert granules_of(devices)[0] == "slices"
    assert numbers(device_groups(devices, 2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_processes_are_granules_where_every_device_shares_one_slice():
    devices = [Sliced(index, index % 4, 0) for index in range(8)]
    kind, granules = granules_of(devices)
    assert kind == "processes" and numbers(granules) == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_a_replica_takes_several_granules_in_their_order():
    devices = [Plain(index, index // 2) for index in range(8)]
    assert numbers(device_groups(devices, 2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert numbers(device_groups(devices, 4)) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_devices_of_one_granule_are_cut_in_their_order():
    devices = [Plain(index, 0) for index in range(6)]
    assert numbers(device_groups(devices, 3)) == [[0, 1], [2, 3], [4, 5]]


def test_replicas_that_do_not_divide_the_granules_are_refused_with_those_that_do():
    devices = [Plain(index, index // 2) for index in range(8)]
    with pytest.raises(ValueError, match=r"mesh\.replicas=3 must divide the 4 processes .*use 1, 2, 4"):
        device_groups(devices, 3)


def test_granules_of_different_size_are_refused():
    devices = [Plain(0, 0), Plain(1, 0), Plain(2, 1)]
    with pytest.raises(ValueError, match=r"processes alike.*from 1 to 2 devices; use mesh\.replicas=1"):
        device_groups(devices, 2)
