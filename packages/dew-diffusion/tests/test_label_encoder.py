"""Class labels as a condition."""

from __future__ import annotations

import numpy as np
import pytest

from dew.inputs.encoders import Encoder, LabelEncoder


def test_a_name_becomes_its_label_and_the_empty_one_the_last():
    encoder = LabelEncoder(("cat", "dog"))
    assert isinstance(encoder, Encoder)
    tokens = encoder.tokenize(["dog", "", "cat"])
    assert tokens.tolist() == [1, 2, 0] and tokens.dtype == np.int32
    np.testing.assert_array_equal(encoder.encode({}, tokens), [[0, 1, 0], [0, 0, 1], [1, 0, 0]])


def test_a_name_that_is_no_class_is_refused_with_the_nearest_one():
    with pytest.raises(ValueError, match="'dgo' is no class of this model; did you mean 'dog'"):
        LabelEncoder(("cat", "dog")).tokenize(["dgo"])
    with pytest.raises(ValueError, match="the classes are cat, dog"):
        LabelEncoder(("cat", "dog")).tokenize(["7"])


@pytest.mark.parametrize("classes", [(), ("cat", "cat"), ("cat", "")])
def test_names_that_do_not_tell_classes_apart_are_refused(classes):
    with pytest.raises(ValueError, match="classes="):
        LabelEncoder(classes)
