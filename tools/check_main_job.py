"""Check what `uv run dew train lm` is promised to reach, on a finished run of it.

    uv run python tools/check_main_job.py [RUN]      default: the newest run under checkpoints

Held-out perplexity per byte below 4.5, and a preview that reads like Python without being copied from the
training text. Prints one line a check; exit status 1 when any fails.
"""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path

from dew.data.text.cache import tokenized
from dew.data.text.config import TextFiles
from dew.data.text.tokenizer import ByteTokenizer
from dew.objectives.lm import LMRunConfig
from dew.telemetry.history import read_journal

PERPLEXITY = 4.5
KEYWORDS = 3
COPIED_RUN = 64


def newest() -> Path:
    runs = sorted(Path("checkpoints").glob("*/run.json"), key=lambda path: path.stat().st_mtime)
    if not runs:
        sys.exit("no run under checkpoints; train one with: uv run dew train lm")
    return runs[-1].parent


def training_text(config: LMRunConfig) -> bytes:
    """The training split as bytes, from the run's own data settings."""
    assert isinstance(config.data, TextFiles) and config.tokenizer == "byte"
    directory, _ = tokenized(config.data.corpus(ByteTokenizer()), ByteTokenizer())
    return (Path(directory) / "train.bin").read_bytes()


def copied(text: str, source: bytes) -> bool:
    """Whether any run of `COPIED_RUN` bytes of `text` stands in `source`."""
    data = text.encode()
    return any(data[at : at + COPIED_RUN] in source for at in range(len(data) - COPIED_RUN + 1))


def main() -> int:
    run = Path(sys.argv[1]) if len(sys.argv) > 1 else newest()
    config = LMRunConfig.load(str(run))
    history = read_journal(run)
    perplexity = list(history.validation["validation/perplexity"].values())[-1]
    item = history.previews[-1].items[0]
    text = item["prompt"] + item["text"]
    words = set(re.findall(r"\w+", text)) & set(keyword.kwlist)
    checks = {
        "completed": history.status == "completed",
        f"perplexity {perplexity:.3f} below {PERPLEXITY}": perplexity < PERPLEXITY,
        "printable": all(char.isprintable() or char in "\n\t" for char in text),
        "has a colon": ":" in text,
        "has a line end": "\n" in text,
        "has an indented line": re.search(r"\n[ \t]+\S", text) is not None,
        f"keywords {sorted(words)}, at least {KEYWORDS}": len(words) >= KEYWORDS,
        f"no run of {COPIED_RUN} bytes from the training text": not copied(text, training_text(config)),
    }
    print(f"{run}: {history.wall_s:.0f} s\n{text}\n")
    for name, passed in checks.items():
        print("ok    " if passed else "FAILED", name)
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
