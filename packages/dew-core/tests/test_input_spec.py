"""What one example looks like."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dew.inputs import Condition, Field, InputSpec


class Words:
    def tokenize(self, captions):
        return [len(caption) for caption in captions]


def test_each_condition_tokenizes_into_its_own_field():
    spec = InputSpec(
        Field("image", (8, 8, 3)),
        {"textcontext": Condition(Words()), "style": Condition(Words(), field="style_text")},
    )
    assert spec.tokenize(["ab", "c"]) == {"text": [2, 1], "style_text": [2, 1]}


def test_no_condition_gives_no_field():
    assert InputSpec(Field("text", (9,))).tokenize(["ab"]) == {}


def test_two_conditions_cannot_read_one_field():
    with pytest.raises(ValueError, match="'a' and 'b' both read field 'text'"):
        InputSpec(Field("image", (8,)), {"a": Condition(Words()), "b": Condition(Words())})


def test_a_field_needs_a_name_and_positive_sizes():
    with pytest.raises(ValueError, match="key=''"):
        Field("", (1,))
    with pytest.raises(ValueError, match=r"\(2, 0\)"):
        Field("image", (2, 0))


def test_importing_the_descriptions_imports_no_arrays():
    code = "import sys, dew.inputs.spec; sys.exit('jax' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
