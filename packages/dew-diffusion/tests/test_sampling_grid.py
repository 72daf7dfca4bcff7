"""Grids: their known values, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from dew.diffusion import Grid
from dew.diffusion.grid import at_times
from dew.diffusion.presets import EDM, Cosine, Flow, Linear

SD = Linear(beta_start=0.00085, beta_end=0.012, betas="scaled_linear")


def test_edm_grid_of_eighteen():
    sigma = EDM().build().grid(18).sigma
    np.testing.assert_allclose(sigma[:4], [80, 57.58598472, 40.7855738, 28.3745846], rtol=1e-8)
    np.testing.assert_allclose(sigma[-3:], [0.02293452, 0.00752802, 0.002], rtol=1e-6)


def test_edm_grid_tells_a_quarter_of_the_log():
    grid = EDM().build().grid(5)
    np.testing.assert_allclose(grid.sigma, [80, 17.52783, 2.515219, 0.1697528, 0.002], rtol=1e-6)
    np.testing.assert_allclose(
        grid.noise_level, [1.0955067, 0.7159475, 0.2305900, -0.4433531, -1.5536520], rtol=1e-6
    )


def test_closed_grid_has_zero_once():
    grid = EDM().build().grid(6)
    closed = grid.closed()
    assert len(closed) == 7
    assert np.count_nonzero(closed.sigma == 0) == 1
    assert closed.closed() is closed
    np.testing.assert_array_equal(closed.sigma[:-1], grid.sigma)


def test_hundred_levels_of_a_table_are_distinct():
    grid = SD.build().grid(100)
    assert len(np.unique(grid.sigma)) == len(np.unique(grid.time)) == 100
    np.testing.assert_allclose(grid.ratio[[0, -1]], [14.6146412, 0.0291671582], rtol=1e-8)


def test_log_snr_spacing_is_even():
    grid = SD.build().grid(9, spacing="log_snr")
    np.testing.assert_allclose(np.diff(np.log(grid.ratio), 2), 0, atol=1e-12)


def test_table_is_walked_from_its_last_entry_and_ends_at_no_entry_twice():
    times = SD.build().grid(4, spacing="time").time
    np.testing.assert_array_equal(times, [999, 749, 499, 249])
    thirteen = SD.build().grid(13, spacing="time").time
    np.testing.assert_array_equal(thirteen[[0, 1, 2, -1]], [999, 922, 845, 76])


def test_table_refuses_more_even_times_than_it_has():
    with pytest.raises(ValueError, match="steps=1001 exceeds the 1000 entries"):
        SD.build().grid(1001, spacing="time")


def test_flow_shifts_its_times_once():
    times = Flow(shift=3.0).build().grid(4).time
    np.testing.assert_allclose(times, [1, 0.9, 0.75, 0.5])


@pytest.mark.parametrize("preset", [Cosine(), Flow()])
def test_schedule_without_signal_refuses_spacing_by_ratio(preset):
    with pytest.raises(ValueError, match=r"spacing='karras' needs .* use spacing='time'"):
        preset.build().grid(8, spacing="karras")


def test_level_that_repeats_is_refused():
    with pytest.raises(ValueError, match=r"points 1 and 2 have sigma 0\.5 and 0\.5"):
        at_times(EDM().build(), [2.0, 0.5, 0.5])


def test_times_beyond_the_schedule_are_refused():
    with pytest.raises(ValueError, match="beyond the schedule's first time 1"):
        at_times(Flow().build(), [1.5, 0.5])


def test_times_that_are_no_times_are_refused():
    with pytest.raises(ValueError, match="must be finite and not negative"):
        at_times(Flow().build(), [0.5, -0.5])
    with pytest.raises(ValueError, match="of at least 1"):
        at_times(Flow().build(), [])


def test_grids_of_equal_numbers_are_equal():
    process = EDM().build()
    assert process.grid(5) == process.grid(5)
    assert hash(process.grid(5)) == hash(process.grid(5))
    assert process.grid(5) != process.grid(6)
    assert process.grid(5) != "a grid"


def test_grid_is_not_writable():
    grid = Grid(time=[1.0], alpha=[0.0], sigma=[1.0], noise_level=[1.0])
    with pytest.raises(ValueError, match="read-only"):
        grid.sigma[0] = 2
