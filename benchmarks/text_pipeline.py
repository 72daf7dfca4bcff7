"""Measure tokenizing text into the cache: rate and peak memory, one JSON line per case.

    uv run python benchmarks/text_pipeline.py [--megabytes 1024] [--cases byte-lines bpe-line ...]

The text is the standard library's sources over and over, as they are (`lines`) or with every line end made
a space (`line`: one line). `bpe` is a byte-level BPE of 16,000 entries trained on them, splitting as Llama 3
does. Every case runs in a process of its own with an empty cache. The time leaves out importing libraries;
the peak resident memory includes them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CASES = ("byte-lines", "byte-line", "bpe-lines", "bpe-line")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--measure", nargs=2, metavar=("CASE", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        case, folder = arguments.measure
        measure(case, Path(folder))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, arguments.megabytes << 20, arguments.cases)
        for case in arguments.cases:
            again = [sys.executable, __file__, "--measure", case, name]
            with tempfile.TemporaryDirectory(dir=folder) as cache:
                subprocess.run(again, check=True, env={**os.environ, "DEW_CACHE": cache})


def prepare(folder: Path, size: int, cases: list[str]) -> None:
    """Write the two texts of `size` bytes and the tokenizer."""
    from dew.data.text.corpus import standard_library

    source = b"".join(span.path.read_bytes() for span in standard_library())
    for shape, text in (("lines", source), ("line", source.replace(b"\n", b" "))):
        if any(case.endswith("-" + shape) for case in cases):
            with (folder / f"{shape}.txt").open("wb") as file:
                for start in range(0, size, len(text)):
                    file.write(text[: size - start])
    if any(case.startswith("bpe") for case in cases):
        train_bpe(source.decode()).save(str(folder / "tokenizer.json"))


def train_bpe(text: str):
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=16_000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    return tokenizer


def measure(case: str, folder: Path) -> None:
    """Tokenize one case and print its line."""
    import dew.data.tokens.windows  # noqa: F401 - Grain and JAX take seconds to import
    from dew.data.text import TextFiles, load_tokenizer

    kind, shape = case.split("-")
    path = folder / f"{shape}.txt"
    tokenizer = load_tokenizer("byte" if kind == "byte" else str(folder / "tokenizer.json"))
    spec = TextFiles(path=str(path), seq_len=1024)
    loaded_after = cpu_seconds()
    began = time.perf_counter()
    data = spec.load(batch=8, tokenize=tokenizer)
    seconds, cpu = time.perf_counter() - began, cpu_seconds() - loaded_after
    megabytes = path.stat().st_size / 1e6
    result = {
        "benchmark": "text_pipeline",
        "case": case,
        "megabytes": round(megabytes),
        "seconds": round(seconds, 2),
        "mb_per_s": round(megabytes / seconds, 1),
        "mb_per_cpu_s": round(megabytes / cpu, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "windows": data.records,
        "cores": os.cpu_count(),
    }
    print(json.dumps(result), flush=True)


def cpu_seconds() -> float:
    """User and system seconds of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
