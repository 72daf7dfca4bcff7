"""Pictures in the report: one sheet a step, in order, within the page's room; and every training metric."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image

from dew.artifacts import ImageGrid, TextSamples
from dew.report import render_report
from dew.report.strip import MOST
from dew.telemetry import JournalTracker, read_journal
from dew.telemetry.previews import picture
from dew.telemetry.sheets import LINE, columns_of, sheet, shown_of

DIGITS = [str(number) for number in range(10)]


def journal(folder, grids, *, metrics=None, texts=()):
    tracker = JournalTracker(str(folder), record={"objective": "toy"}, clock=lambda: 1e9)
    tracker.started(step=0, total_steps=100 * len(grids), unit="images")
    for index, grid in enumerate(grids):
        step = 100 * (index + 1)
        tracker.log(metrics or {"train/loss": 1.0 / step}, step=step)
        tracker.evaluated({"validation/psnr": 20.0 + index}, step=step)
        tracker.preview((*texts, grid), step=step)
    tracker.finished("completed", step=100 * len(grids))
    return render_report(read_journal(folder), now=1e9)


def pictures(page):
    found = re.findall(r'src="data:image/png;base64,([^"]*)"', page)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(each)))) for each in found]


def noise(rows, size, seed=0, channels=3):
    return np.random.default_rng(seed).uniform(-1, 1, (rows, size, size, channels))


@pytest.mark.parametrize(
    ("count", "captions", "expected"),
    [
        (40, DIGITS * 4, (10, "columns: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9")),
        (16, [*DIGITS, *DIGITS[:6]], (10, "columns: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9")),
        (6, ["a", "a", "a", "b", "b", "b"], (3, "rows: a, b")),
        (3, ["a", "b", "c"], (3, "a, b, c")),
        (9, [], (3, "")),
        (10, [], (4, "")),
        (5, ["a", "b", "a", "a", "b"], (3, "a, b, a, a, b")),
    ],
)
def test_rows_and_columns_follow_the_captions(count, captions, expected):
    assert columns_of(count, captions) == expected


def test_tiles_stand_row_by_row_with_a_line_between():
    tiles = np.arange(1, 6, dtype=np.uint8).reshape(5, 1, 1, 1).repeat(4, 1).repeat(4, 2)
    page = sheet(tiles, 3)[..., 0]
    assert page.shape == (9, 14)
    assert page[0, ::5].tolist() == [1, 2, 3] and page[5, ::5].tolist() == [4, 5, LINE]
    assert (page[4] == LINE).all() and (page[:, [4, 9]] == LINE).all()


def test_a_large_image_is_averaged_by_a_whole_factor():
    tile = (np.indices((200, 200)).sum(0) % 2 * 255).astype(np.uint8)[None, ..., None]
    assert sheet(tile, 1).shape == (66, 66, 1)
    assert abs(sheet(tile, 1).astype(float) - 127.5).max() < 15


@pytest.mark.parametrize(
    ("size", "columns", "expected"), [(8, 10, 100), (64, 4, 16), (256, 4, 8), (28, 10, 80)]
)
def test_a_sheet_holds_whole_rows_within_its_area(size, columns, expected):
    assert shown_of(np.zeros((100, size, size, 1), np.uint8), columns) == expected


def test_a_reference_stands_below_its_image():
    grid = ImageGrid(images=np.ones((2, 4, 4, 1)), references=-np.ones((2, 4, 4, 1)))
    shown = picture(grid)
    assert shown.pixels[:, 0, 0].tolist() == [255] * 4 + [0] * 4
    assert shown.caption == "each above its reference" and shown.count == 2


def test_every_step_has_its_sheet_in_order_with_its_scores(tmp_path):
    grids = [ImageGrid(images=np.full((20, 8, 8, 1), level), captions=DIGITS * 2) for level in (-1, 0, 1)]
    page = journal(tmp_path, grids)
    assert [sheet[0, 0] for sheet in pictures(page)] == [0, 128, 255]
    assert re.findall(r'class="card"><h3>([^<]*)', page) == [
        f"step {100 * n} · PSNR {19 + n}" for n in (1, 2, 3)
    ]
    assert page.count("<figcaption>columns: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9</figcaption>") == 3


def test_a_page_of_a_usual_run_stays_under_a_megabyte(tmp_path):
    """Sixty previews of noise, which nothing makes smaller: a few steps are left, the ends among them."""
    page = journal(tmp_path, [ImageGrid(images=noise(16, 64, seed)) for seed in range(60)])
    assert len(page.encode()) < 1_000_000
    steps = [int(each.replace(",", "")) for each in re.findall(r'class="card"><h3>step ([\d,]*)', page)]
    assert steps == [100, 6000] and "2 of 60 steps" in page


def test_small_previews_are_spread_over_the_run(tmp_path):
    page = journal(tmp_path, [ImageGrid(images=noise(16, 8, seed, 1)) for seed in range(60)])
    steps = [int(each.replace(",", "")) for each in re.findall(r'class="card"><h3>step ([\d,]*)', page)]
    assert len(steps) == MOST and (steps[0], steps[-1]) == (100, 6000)
    assert max(np.diff(steps)) <= 600


def test_texts_and_pictures_have_sections_of_their_own(tmp_path):
    texts = (TextSamples(prompts=["one"], texts=["two"]),)
    page = journal(tmp_path, [ImageGrid(images=noise(1, 4))] * 2, texts=texts)
    assert page.count('class="card"') == page.count('class="panel"') == 2
    assert "Images over time" in page and "Texts over time" in page
    assert "Texts over time" not in journal(tmp_path / "other", [ImageGrid(images=noise(1, 4))])


def test_every_training_metric_has_a_curve(tmp_path):
    titles = {"reward": "reward", "kl": "KL", "clip_fraction": "clip fraction", "entropy": "entropy"}
    grids = [ImageGrid(images=noise(1, 4))] * 2
    page = journal(tmp_path, grids, metrics={f"train/{name}": 1.0 for name in titles})
    for title in titles.values():
        assert f">{title}<" in page, title
