"""The report in headless Chromium: it fits a desktop and a phone, and its script works."""

import re
import shutil
import subprocess

import numpy as np
import pytest

from dew.artifacts import ImageGrid, TextSamples
from dew.report import write_report
from dew.telemetry import JournalTracker

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--allow-file-access-from-files",
    "--virtual-time-budget=3000",
    "--dump-dom",
)
FRAME = """<!doctype html><title></title><iframe id="frame" style="width:{width}px;height:900px;border:0"
src="{page}"></iframe><script>
frame.onload = () => {{
  const page = frame.contentDocument, root = page.documentElement;
  const plot = page.querySelector(".plot"), box = plot.getBoundingClientRect();
  plot.dispatchEvent(new PointerEvent("pointermove", {{ clientX: box.right, clientY: box.top + 5 }}));
  const tip = plot.querySelector(".tip");
  const shown = [...page.querySelectorAll(".panel")].filter((panel) => panel.offsetHeight > 0);
  document.title = [root.clientWidth, root.scrollWidth, tip.textContent, shown.length].join("|");
}};</script>"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The report of a run whose names, values and texts are long."""
    folder = tmp_path_factory.mktemp("runs") / ("a-run-with-a-long-name-" * 4)
    record = {"objective": "lm", "data": {"path": "/" + "folder" * 40}, "rules": [["a", "b"]] * 40}
    tracker = JournalTracker(str(folder), record=record)
    tracker.started(step=0, total_steps=400, unit="tokens")
    for step in range(1, 401):
        tracker.log({"train/loss": 5.0 / step + step % 2, "train/a_metric_" + "long" * 12: 1.0}, step=step)
    for step in (200, 400):
        tracker.evaluated({"validation/perplexity": 4.5}, step=step)
        text = TextSamples(prompts=["def "], texts=["unbroken" * 60 + "\n\tindented"])
        tracker.preview((text, ImageGrid(images=np.zeros((9, 8, 8, 3)))), step=step)
        tracker.checkpointed(str(folder / "checkpoints" / str(step)), step=step)
    tracker.notice("a message " + "unbroken" * 50, step=400)
    tracker.finished("completed", step=400)
    return write_report(folder)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_and_its_script_works(page, tmp_path, width):
    frame = page.parent / f"frame{width}.html"
    frame.write_text(FRAME.format(width=width, page=page.name))
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={tmp_path}", "--window-size=1400,1000"]
    done = subprocess.run([*command, frame.as_uri()], capture_output=True, text=True, timeout=60)
    title = re.search(r"<title>([^<]*)</title>", done.stdout)
    assert title is not None, done.stderr[-500:]
    client, scroll, tip, panels = title[1].split("|")
    assert client == str(width) and scroll == client
    assert tip.startswith("step 400loss 0.0125smoothed 0.")
    assert panels == "1"
