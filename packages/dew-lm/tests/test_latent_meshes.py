"""Latent attention and its indexer over meshes: the numbers of one device."""

from __future__ import annotations

from pathlib import Path

import pytest

from dew.testing.devices import result_on_devices


@pytest.mark.slow
def test_trained_parameters_and_statistics_are_those_of_one_device():
    gaps = result_on_devices(str(Path(__file__).with_name("latent_on_eight.py")))
    assert len(gaps) == 4
    for name, gap in gaps.items():
        assert gap < 1e-11, (name, gap)  # float64; another choice of keys would be off by 1e-3 and more
