"""Write docs/guides/families.md: which decoders are read and written, and how far each was checked.

    uv run --group oracle python tools/families_page.py

Floors and movements are measured in transformers when the page is written; CI measures them again in
packages/dew-lm/tests/test_families_oracle.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import make_family_golden as golden
import numpy as np
from family_cases import CASES, SIZES, Case

PAGE = Path(__file__).resolve().parent.parent / "docs/guides/families.md"
HEAD = """# Families of decoders

`tools/families_page.py` writes this page. Each `model_type` below is read by `dew.interop.load_pretrained`
and written by `Pretrained.save` and `save_pretrained_decoder`. Which one reads a folder is decided by its
`model_type` alone. A model that came from no folder is written by the family of the lowest precedence that
can tell all of it.

{precedence}

## How far each was checked

Tests compare logits and gradients with transformers {version}, load what is written there, and read it back
to equal bytes. A tolerance is ten times the *floor*: what float32 itself loses in transformers, measured
against float64 at settings that bite. The *gradient floor* is the same for the worst tensor's gradient,
relative to its largest entry. Each field that is read is altered in transformers alone, and has to move the
logits by at least a hundred tolerances; the forms of GELU, which cannot, by more than one, and are tested by
themselves. Sizes, biases and ties are told apart by the tensors.

Of torch's conventions one is no part of the function: the vector of a padding token gets no gradient there.

| case | floor | gradient floor | altered, and how far the logits move |
| --- | --- | --- | --- |
"""
TAIL = """
The cases are in `tools/family_cases.py`: vocabulary 97, width 64, 4 layers (6 for gemma3_text), 4 heads with
2 key heads, 128 positions, rows of 40 tokens (80 for YaRN), weights of standard deviation 0.3 and perturbed
norms.
"""


def precedence() -> str:
    """Families in the order in which they are asked to write a model."""
    from dew.interop.decoders.catalogue import families

    rows = [f"| `{each.model_type}` | `{each.architecture}` | {each.precedence} |" for each in families()]
    return "\n".join(["| model_type | class | precedence |", "| --- | --- | --- |", *rows])


def movements(case: Case) -> Iterator[str]:
    """Each alteration and how far it moves the logits."""
    base = golden.torch_logits(golden.torch_model(case).double(), case)
    for altered in (*case.altered, *case.weak):
        moved = golden.torch_logits(golden.torch_model(case, **altered).double(), case)
        yield f"{told(altered, case)} {np.abs(moved - base).max():.2g}"


def told(altered: Any, case: Case) -> str:
    """An alteration in short: of a record the entries that differ."""
    stated = {**SIZES, **case.fields}
    parts: list[str] = []
    for name, value in altered.items():
        before = stated.get(name)
        if isinstance(value, dict):
            record = before if isinstance(before, dict) else {}
            parts += [f"{key}={item}" for key, item in value.items() if record.get(key) != item][:3]
        elif value != before:
            shown = str(value).replace("_attention", "")
            parts.append(f"{name}={shown}")
    return "`" + ", ".join(parts) + "`"


def main() -> None:
    """Measure and write the page."""
    import torch
    import transformers

    torch.set_num_threads(1)
    rows: list[str] = []
    for name, case in CASES.items():
        floor, gradient = golden.floors(case)
        rows.append(f"| {name} | {floor:.1e} | {gradient:.1e} | {'; '.join(movements(case))} |")
        print(rows[-1])
    head = HEAD.format(precedence=precedence(), version=transformers.__version__)
    PAGE.write_text(head + "\n".join(rows) + "\n" + TAIL)


if __name__ == "__main__":
    main()
