"""The controls of a published model: resolved from its files, judged one by one, and as a policy of Dew's.

A control's value is that of `generation_config.json`, else of `config.json`, else of its `text_config`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from dew.inference.text.controls import CONTROLS, KINDS, Control
from dew.sampling.text.config import Sampling

WHOSE = {"policy", "transform", "distribution"}
"""Whom an explicit `sampling=` replaces."""


@dataclass(frozen=True)
class Controls:
    """The values that a source sets.

    Attributes:
        values: control -> value, those that are not null.
        replaced: whether the caller brings a policy of their own, so that the source's distribution counts
            for nothing.
    """

    values: Mapping[str, Any]
    replaced: bool = False

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a control where it counts and is not neutral, else `default`."""
        value = self.values.get(name)
        return default if neutral(CONTROLS[name], value) or not self.counts(name) else value

    def counts(self, name: str) -> bool:
        """Whether a control is looked at in this source's mode."""
        control = CONTROLS[name]
        return not (self.replaced and control.consumer in WHOSE) and self._in_mode(control)

    @property
    def sampled(self) -> bool:
        """Whether the source draws."""
        return self.values.get("do_sample") is True

    @property
    def searched(self) -> bool:
        """Whether the source searches with beams."""
        return self.beams > 1

    @property
    def beams(self) -> int:
        """How many beams the source searches with."""
        asked = self.values.get("num_beams")
        return asked if isinstance(asked, int) else 1

    def _in_mode(self, control: Control) -> bool:
        return {
            "always": True,
            "sampling": self.sampled and not self.searched,
            "search": self.searched,
            "greedy": not self.sampled and not self.searched,
            "drafting": self.values.get("use_mtp") is True,
        }[control.mode]


def read_controls(
    generation_config: Mapping[str, Any], config: Mapping[str, Any], *, replaced: bool = False
) -> Controls:
    """The controls of a source, each one checked.

    Args:
        generation_config: of `generation_config.json`; empty where there is none.
        config: of `config.json`.
        replaced: whether the caller brings a policy.

    Raises:
        ValueError: a name that no control has, a value of another kind, or a control that is not done here;
            the message names each with its reason.
    """
    unknown = sorted(set(generation_config) - set(CONTROLS))
    if unknown:
        raise ValueError(
            f"generation_config.json holds {', '.join(unknown)}: no control of that name is known here, and "
            "none is ignored; take it out of the file"
        )
    text = config.get("text_config")
    sources = (generation_config, config, text if isinstance(text, Mapping) else {})
    found = {name: next((each[name] for each in sources if name in each), None) for name in CONTROLS}
    controls = Controls({name: value for name, value in found.items() if value is not None}, replaced)
    problems = [problem for name in CONTROLS if (problem := refusal(controls, name))]
    problems += combinations(controls)
    if problems:
        raise ValueError(
            "the source's generation controls cannot be followed: "
            + "; ".join(problems)
            + ". Change the file, "
            "or build TextGeneration(model, variables, ...) with a policy of your own"
        )
    return controls


def neutral(control: Control, value: Any) -> bool:
    """Whether `value` makes `generate()` do nothing for the control."""
    return any(value is each or (type(value) is not bool and each == value) for each in control.neutral)


def refusal(controls: Controls, name: str) -> str:
    """Why a control cannot be followed, or nothing."""
    control, value = CONTROLS[name], controls.values.get(name)
    if name == "penalty_alpha" and controls.values.get("top_k") in (0, 1):
        return ""
    if value is None or not controls.counts(name) or neutral(control, value):
        return ""
    if control.refused:
        return f"{name}={value!r} ({control.refused})"
    wanted, fits = KINDS[control.kind]
    return "" if fits(value) else f"{name}={value!r} (it must be {wanted})"


def combinations(controls: Controls) -> list[str]:
    """Why controls cannot be followed together."""
    beams, count = controls.beams, controls.values.get("num_return_sequences", 1)
    found: list[str] = []
    if not controls.searched:
        return found
    if controls.sampled and not controls.replaced:
        found.append(
            f"do_sample=True with num_beams={beams} (the chance that a search keeps a beam is no token's, so "
            "no likelihood of the draw could be told)"
        )
    if controls.values.get("use_mtp") is True:
        found.append(f"use_mtp=True with num_beams={beams} (a request runs one strategy)")
    if isinstance(count, int) and count > beams:
        found.append(
            f"num_return_sequences={count} with num_beams={beams} (a search returns its width at most)"
        )
    return found


def sampling_of(controls: Controls) -> Sampling:
    """The policy. A source that does not sample takes the best token; a control it leaves unset does nothing.

    Rows are padded with `pad_token_id`, else with the first end id, else with 0.

    Raises:
        ValueError: a value that breaks its rule, as `Sampling` says.
    """
    ends = controls.get("eos_token_id")
    ids = () if ends is None else (ends,) if isinstance(ends, int) else tuple(ends)
    pad = controls.get("pad_token_id", ids[0] if ids else 0)
    if not controls.sampled or controls.searched:
        return Sampling(temperature=0.0, eos_id=ids, pad_id=pad)
    return Sampling(
        temperature=controls.get("temperature", 1.0),
        top_k=controls.get("top_k") or None,
        eos_id=ids,
        pad_id=pad,
        top_p=controls.get("top_p", 1.0),
        min_p=controls.get("min_p", 0.0),
    )


def json_object(path: str) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no file.

    Raises:
        ValueError: it holds no object.
    """
    file = Path(path)
    if not file.is_file():
        return {}
    try:
        found: object = json.loads(file.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no JSON object")
    return cast("dict[str, Any]", found)
