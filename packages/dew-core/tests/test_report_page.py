"""The report: it holds everything it shows, loads nothing, and runs nothing a model wrote."""

import json
import math
import re
import struct
import zlib

import numpy as np
import pytest

from dew.artifacts import ImageGrid, TextSamples
from dew.report import render_report, write_report
from dew.report.scales import log_ticks, round_ticks, values_scale
from dew.report.series import is_noisy, smooth, thin
from dew.telemetry import JournalTracker, read_journal
from dew.telemetry.png import encode_png

HOSTILE = "</pre><script>alert(1)</script>\x00\u202e<img src=x onerror=alert(2)>"


@pytest.fixture
def run(tmp_path):
    """Journals a run and returns its report."""

    def make(steps=40, *, loss=lambda step: 5.0 / step, text="x", images=None, status="completed", **record):
        folder = tmp_path / "mine"
        tracker = JournalTracker(str(folder), record={"objective": "lm", **record}, clock=lambda: 1e9)
        tracker.started(step=0, total_steps=steps, unit="tokens")
        for step in range(1, steps + 1):
            tracker.log({"train/loss": loss(step), "train/tokens_per_second": 1234.0}, step=step)
        tracker.evaluated({"validation/perplexity": 4.321}, step=steps)
        shown = (TextSamples(prompts=[text], texts=[text]),)
        tracker.preview(shown if images is None else (*shown, ImageGrid(images=images)), step=steps)
        tracker.checkpointed(str(folder / "checkpoints" / "40"), step=steps)
        tracker.finished(status, step=steps)
        return render_report(read_journal(folder), now=1e9 + 7200)

    return make


def test_the_page_asks_for_nothing_from_elsewhere(run):
    page = run(images=np.zeros((1, 4, 4, 3)))
    assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?(https?:)?//""", page)
    assert set(re.findall(r'(?:src|href)="([a-z]*:)', page)) == {"data:"}
    assert "default-src 'none'" in page


def test_the_figures_of_the_run_are_on_the_page(run):
    page = run(model={"hidden_size": 128}, lora=None)
    text = re.sub(r"<(style|script).*?</\1>|<[^>]+>", " ", page, flags=re.S)
    for figure in ("4.321", "1.23k", "40 of 40 steps", "finished", "2 h ago", "hidden_size", "128", "unset"):
        assert figure in text, figure


def test_what_a_model_writes_is_text_and_nothing_else(run):
    page = run(text=HOSTILE, tokenizer=HOSTILE)
    assert "alert(1)</script>" not in page and "<img src=x" not in page
    assert "\x00" not in page and "\u202e" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 3


def test_a_metric_called_like_markup_does_not_end_the_script(tmp_path):
    tracker = JournalTracker(str(tmp_path), record={})
    tracker.started(step=0, total_steps=1, unit="tokens")
    tracker.log({"train/</script <b>": 1.0}, step=1)
    tracker.finished("completed", step=1)
    page = render_report(read_journal(tmp_path), now=0.0)
    assert "</script <b" not in page
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', page)[1])
    assert data[0]["name"] == "</script <b>"


def test_a_reference_stands_in_the_chart_of_its_metric(tmp_path):
    tracker = JournalTracker(str(tmp_path), record={})
    tracker.started(step=0, total_steps=2, unit="rows")
    scores = {"validation/hits": 1.0, "validation/hits.at_the_start": 0.25, "validation/of_v1.5": 3.0}
    tracker.evaluated(scores, step=2)
    tracker.finished("completed", step=2)
    page = render_report(read_journal(tmp_path), now=0.0)
    assert page.count("<figure") == 2
    assert "last 1 · at the start last 0.25" in page
    assert re.findall(r"<dt>validation ([^<]*)</dt>", page) == ["hits", "of v1.5"]


def test_a_long_run_stays_small_and_keeps_its_spike(run):
    page = run(20_000, loss=lambda step: 50.0 if step == 12_345 else 2.0 + math.sin(step) / 10)
    assert len(page.encode()) < 1_000_000
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', page)[1])
    assert len(data[0]["x"]) <= 2000
    assert dict(zip(data[0]["x"], data[0]["y"], strict=True))[12_345] == 50.0


def test_values_that_are_no_numbers_are_said_and_break_the_line(run):
    page = run(loss=lambda step: math.nan if step in (7, 9) else 1.0)
    assert "loss was not finite at 2 of 40 logged steps, first at step 7" in page
    raw = re.search(r'<path class="(?:smooth|raw)" d="([^"]*)"', page)[1]
    assert raw.count("M") == 3 and "nan" not in raw


def test_a_run_without_a_journal_has_a_page(tmp_path):
    (tmp_path / "run.json").write_text('{"objective": "lm", "model": {"hidden_size": 8}}')
    page = write_report(tmp_path).read_text()
    assert "not started" in page and "No metric is logged yet" in page and "hidden_size" in page


def test_a_picture_outside_the_run_is_not_read(tmp_path, run):
    run(images=np.zeros((1, 4, 4, 3)))
    (tmp_path / "secret.png").write_bytes(encode_png(np.zeros((1, 1, 3), np.uint8)))
    journal = tmp_path / "mine" / "tracking" / "journal.jsonl"
    journal.write_text(journal.read_text().replace("previews/00000040_1.png", "../../secret.png"))
    page = render_report(read_journal(tmp_path / "mine"), now=0.0)
    assert "../../secret.png is missing" in page and "<img" not in page


def test_pictures_are_encoded_as_png_says():
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3) * 13
    data = encode_png(pixels)
    size = data.index(b"IDAT")
    assert struct.unpack(">IIBB", data[16:26]) == (3, 2, 8, 2)
    rows = zlib.decompress(data[size + 4 :])
    first, second = np.frombuffer(rows[1:10], np.uint8), np.frombuffer(rows[11:20], np.uint8)
    assert (rows[0], rows[10]) == (2, 2)
    assert (first == pixels[0].ravel()).all() and (first + second == pixels[1].ravel()).all()


def test_images_span_black_to_white(run, tmp_path):
    run(images=np.array([-1.0, 0.0, 1.0, 3.0]).reshape(1, 1, 4, 1))
    data = (tmp_path / "mine" / "tracking" / "previews" / "00000040_1.png").read_bytes()
    assert list(zlib.decompress(data[data.index(b"IDAT") + 4 :])) == [2, 0, 128, 255, 255]


def test_thinning_keeps_ends_extremes_and_gaps():
    points = [(step, 1.0) for step in range(1000)]
    points[300], points[301], points[302] = (300, 9.0), (301, -9.0), (302, math.nan)
    kept = thin(points, 60)
    assert len(kept) <= 60 and kept == sorted(kept, key=lambda point: point[0])
    assert {0, 300, 301, 302, 999} <= {step for step, _ in kept}


def test_smoothing_starts_at_the_first_value_and_skips_gaps():
    smoothed = smooth([(1, 3.0), (2, math.nan), (3, 6.0)])
    keep = 1 - 2 / 6
    assert [step for step, _ in smoothed] == [1, 3]
    assert [value for _, value in smoothed] == pytest.approx([3.0, (3.0 * keep + 6.0) / (keep + 1)])


def test_a_schedule_is_not_taken_for_noise():
    assert not is_noisy([(step, math.cos(step / 100)) for step in range(300)])
    assert is_noisy([(step, (-1.0) ** step) for step in range(300)])


def test_axes_have_round_marks():
    assert round_ticks(0.0, 2200.0, 5) == [0.0, 500.0, 1000.0, 1500.0, 2000.0]
    assert round_ticks(1.23, 1.31, 4) == pytest.approx([1.24, 1.26, 1.28, 1.3])
    assert log_ticks(20, 2200) == [20, 50, 100, 200, 500, 1000, 2000]
    assert log_ticks(1, 1e6) == [10.0**power for power in range(7)]


def test_the_first_steps_do_not_flatten_the_rest():
    scale, cut = values_scale([100.0] + [1.0 + index / 1000 for index in range(200)])
    assert cut and scale.high < 2.0
    flat, cut = values_scale([3.0, 3.0])
    assert not cut and flat.low < 3.0 < flat.high


def test_a_title_writes_short_forms_in_capitals():
    from dew.report.curves import title

    assert [title(name) for name in ("train/kl", "validation/knn_probe", "train/clip_fraction")] == [
        "KL",
        "KNN probe",
        "clip fraction",
    ]
