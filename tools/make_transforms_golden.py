"""What transformers' logits processors do to random scores.

    uv run --group oracle python tools/make_transforms_golden.py

writes packages/dew-lm/tests/golden/transforms.npz. Inputs are not stored: `case` makes them from the
transform's name. Of the results the kept sets are stored as bits, of transforms that change scores also one
random projection of each row. A row whose kept set changes when the setting moves by a thousandth of itself
is left out, since it hangs on rounding; more than 1,000 rows of each transform stay.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).resolve().parent.parent / "packages/dew-lm/tests/golden/transforms.npz"
VOCAB, PROMPT, DRAWS, ROWS = 24, 12, 8, 160
EOS = (3, 7)
ENTRIES = (((1, 2), -5.0), ((3,), 1.0), ((2, 1, 0), 2.5), ((0,), -0.5), ((4, 4), float("-inf")))
WORDS = ((5,), (3,), (1, 2), (0, 1, 0))
SETTINGS: Mapping[str, tuple[tuple[Any, ...], ...]] = {
    "Temperature": ((0.1,), (0.5,), (0.7,), (0.9,), (1.3,), (2.0,), (5.0,)),
    "TopK": ((1,), (2,), (3,), (5,), (9,), (23,), (99,)),
    "TopP": ((0.05,), (0.2,), (0.4,), (0.6,), (0.8,), (0.9,), (0.99,)),
    "MinP": ((0.01,), (0.05,), (0.1,), (0.2,), (0.4,), (0.7,), (0.9,)),
    "Typical": ((0.05,), (0.2,), (0.4,), (0.6,), (0.8,), (0.9,), (0.97,)),
    "EpsilonCutoff": ((3e-4,), (3e-3,), (0.01,), (0.03,), (0.1,), (0.3,), (0.8,)),
    "EtaCutoff": ((3e-4,), (3e-3,), (0.01,), (0.03,), (0.1,), (0.3,), (0.8,)),
    "TopH": ((0.1,), (0.3,), (0.5,), (0.7,), (0.9,), (0.4, 7), (0.8, 3)),
    "Renormalize": ((),) * 7,
    "RemoveInvalidValues": ((),) * 7,
    "RepetitionPenalty": ((0.5,), (0.9,), (1.05,), (1.2,), (1.5,), (2.0,), (10.0,)),
    "PromptRepetitionPenalty": ((0.5,), (0.9,), (1.05,), (1.2,), (1.5,), (2.0,), (10.0,)),
    "NoRepeatNGram": ((1,), (2,), (2,), (3,), (3,), (4,), (9,)),
    "PromptNoRepeatNGram": ((1,), (2,), (2,), (3,), (3,), (4,), (9,)),
    "sequence_bias": ((ENTRIES,),) * 7,
    "bad_words": ((WORDS,), (WORDS,), (WORDS,), (WORDS, 3), (WORDS, EOS), (WORDS, (5,)), (WORDS, 2)),
    "SuppressTokens": (((0,),), ((1, 5, 9),), (EOS,), ((23,),), ((2, 2),), ((4, 8),), (tuple(range(20)),)),
    "BeginSuppressTokens": ((EOS,), (EOS, 1), (EOS, 2), ((0,),), ((5, 9), 1), ((1,), 3), ((2, 4), 0)),
    "ForcedBOS": ((0,), (1,), (2,), (5,), (9,), (12,), (23,)),
    "ForcedEOS": ((3,), (EOS,), (3, 8), (EOS, 9), (EOS, 12), (3, 15), (7, 20)),
    "MinLength": ((0, 3), (4, 3), (8, EOS), (12, EOS), (15, 3), (18, EOS), (30, 7)),
    "MinNewTokens": ((0, 3), (1, 3), (2, EOS), (4, EOS), (6, 3), (8, EOS), (30, 7)),
    "ExponentialDecayLengthPenalty": (
        (0, 1.01, 3),
        (0, 1.5, EOS),
        (2, 2.0, EOS),
        (4, 1.1, 3),
        (5, 0.5, EOS),
        (6, 3.0, 7),
        (1, 1.0, 3),
    ),
}
"""Transform of `dew.sampling.decoding` -> its settings; each is tried on `ROWS` rows."""
CHANGES = (
    "Temperature",
    "Renormalize",
    "RemoveInvalidValues",
    "RepetitionPenalty",
    "PromptRepetitionPenalty",
    "sequence_bias",
    "ExponentialDecayLengthPenalty",
)
THRESHOLDS = ("TopP", "MinP", "Typical", "EpsilonCutoff", "EtaCutoff", "TopH")


@dataclass(frozen=True)
class Case:
    """Random rows: prompts are left padded, with ids that must not be read."""

    tokens: np.ndarray
    valid: np.ndarray
    step: np.ndarray
    logits: np.ndarray

    def prompt(self, row: int) -> np.ndarray:
        return self.tokens[row, :PROMPT][self.valid[row, :PROMPT]]

    def history(self, row: int) -> np.ndarray:
        return self.tokens[row][self.valid[row]]


def case(name: str, index: int) -> Case:
    """The rows for one setting of a transform."""
    draw = np.random.default_rng(zlib.crc32(f"{name} {index}".encode()))
    lengths = draw.integers(1, PROMPT + 1, ROWS)
    # Every fourth prompt is one token long, where a forced begin token acts.
    lengths[::4] = 1
    step = draw.integers(0, DRAWS, ROWS)
    # Few ids, so that sequences repeat.
    tokens = draw.integers(0, 6, (ROWS, PROMPT + DRAWS)).astype(np.int32)
    slots = np.arange(PROMPT + DRAWS)
    valid = (slots >= PROMPT - lengths[:, None]) & (slots < PROMPT + step[:, None])
    logits = (draw.normal(size=(ROWS, VOCAB)) * draw.uniform(0.5, 5, (ROWS, 1))).astype(np.float32)
    # The reference makes a NaN of an end token that is ruled out; Dew leaves it out.
    if name != "ExponentialDecayLengthPenalty":
        logits[draw.random((ROWS, VOCAB)) < 0.08 * (np.arange(ROWS) % 3 == 0)[:, None]] = -np.inf
        # No row is without a finite score.
        logits[np.arange(ROWS), draw.integers(0, VOCAB, ROWS)] = 1.5
    if name == "RemoveInvalidValues":
        logits[draw.random((ROWS, VOCAB)) < 0.1] = np.nan
        logits[draw.random((ROWS, VOCAB)) < 0.1] = np.inf
    return Case(tokens, valid, step.astype(np.int32), logits)


def processor(name: str, setting: tuple[Any, ...], rows: Case, row: int) -> Any:
    """transformers' processor for one row, whose prompt it may need."""
    import torch
    from transformers.generation import logits_process as reference

    prompt = torch.tensor(rows.prompt(row)[None], dtype=torch.long)
    start = prompt.shape[1]

    def ids(value: Any) -> Any:
        return [value] if isinstance(value, int) else list(value)

    def top_h(fraction: float, candidates: int = 100) -> Any:
        made = reference.TopHLogitsWarper(fraction)
        made.top_n = candidates
        return made

    make: Mapping[str, Callable[..., Any]] = {
        "Temperature": reference.TemperatureLogitsWarper,
        "TopK": reference.TopKLogitsWarper,
        "TopP": reference.TopPLogitsWarper,
        "MinP": reference.MinPLogitsWarper,
        "Typical": reference.TypicalLogitsWarper,
        "EpsilonCutoff": reference.EpsilonLogitsWarper,
        "EtaCutoff": reference.EtaLogitsWarper,
        "TopH": top_h,
        "Renormalize": reference.LogitNormalization,
        "RemoveInvalidValues": reference.InfNanRemoveLogitsProcessor,
        "RepetitionPenalty": reference.RepetitionPenaltyLogitsProcessor,
        "PromptRepetitionPenalty": lambda p: reference.EncoderRepetitionPenaltyLogitsProcessor(p, prompt),
        "NoRepeatNGram": reference.NoRepeatNGramLogitsProcessor,
        "PromptNoRepeatNGram": lambda n: reference.EncoderNoRepeatNGramLogitsProcessor(n, prompt),
        "sequence_bias": lambda e: reference.SequenceBiasLogitsProcessor(dict(e)),
        "bad_words": lambda w, eos=None: reference.NoBadWordsLogitsProcessor(
            [list(each) for each in w], None if eos is None else ids(eos)
        ),
        "SuppressTokens": reference.SuppressTokensLogitsProcessor,
        "BeginSuppressTokens": lambda t, offset=0: reference.SuppressTokensAtBeginLogitsProcessor(
            t, start + offset
        ),
        "ForcedBOS": reference.ForcedBOSTokenLogitsProcessor,
        "ForcedEOS": lambda eos, length=None: reference.ForcedEOSTokenLogitsProcessor(
            start + DRAWS if length is None else length, ids(eos)
        ),
        "MinLength": lambda length, eos: reference.MinLengthLogitsProcessor(length, ids(eos)),
        "MinNewTokens": lambda count, eos: reference.MinNewTokensLengthLogitsProcessor(
            start, count, ids(eos)
        ),
        "ExponentialDecayLengthPenalty": lambda first, factor, eos: reference.ExponentialDecayLengthPenalty(
            (first, factor), ids(eos), start
        ),
    }
    return make[name](*setting)


def results(name: str, setting: tuple[Any, ...], rows: Case) -> np.ndarray:
    """`[ROWS, VOCAB]`, each row through transformers by itself, without padding."""
    import torch

    found = []
    for row in range(ROWS):
        ids = torch.tensor(rows.history(row)[None], dtype=torch.long)
        scores = torch.from_numpy(rows.logits[row : row + 1].copy())
        found.append(processor(name, setting, rows, row)(ids, scores)[0].numpy())
    return np.stack(found)


def kept(scores: np.ndarray) -> np.ndarray:
    """What is not ruled out."""
    return ~np.isneginf(scores)


def projected(scores: np.ndarray) -> np.ndarray:
    """One number for each row, which moves with every one of its scores."""
    weights = np.random.default_rng(0).uniform(0.5, 1.5, scores.shape[1])
    # The largest numbers are counted by their sign; nothing else would show beside them.
    huge = np.abs(scores) > 1e30
    bounded = np.where(huge | ~np.isfinite(scores), np.nan_to_num(np.sign(scores)) * 1000, scores)
    return (bounded.astype(np.float64) @ weights).astype(np.float32)


def golden(name: str) -> dict[str, np.ndarray]:
    """The stored arrays of one transform."""
    sets, clear, sums = [], [], []
    for index, setting in enumerate(SETTINGS[name]):
        rows = case(name, index)
        scores = results(name, setting, rows)
        steady = np.ones(ROWS, bool)
        if name in THRESHOLDS:
            for factor in (0.999, 1.001):
                moved = (min(setting[0] * factor, 1 - 1e-9), *setting[1:])
                steady &= (kept(results(name, moved, rows)) == kept(scores)).all(axis=1)
        sets.append(kept(scores))
        clear.append(steady)
        sums.append(projected(scores))
    assert sum(each.sum() for each in clear) > 1000, name
    arrays = {f"{name}/kept": np.packbits(np.stack(sets)), f"{name}/clear": np.packbits(np.stack(clear))}
    if name in CHANGES:
        arrays[f"{name}/sum"] = np.stack(sums)
    return arrays


def main() -> None:
    import torch
    import transformers

    arrays: dict[str, np.ndarray] = {}
    for name in SETTINGS:
        arrays |= golden(name)
    note = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "command": "uv run --group oracle python tools/make_transforms_golden.py",
        "dtype": "float32",
    }
    np.savez_compressed(GOLDEN, note=np.frombuffer(json.dumps(note).encode(), np.uint8), **arrays)
    print(GOLDEN, GOLDEN.stat().st_size)


if __name__ == "__main__":
    main()
