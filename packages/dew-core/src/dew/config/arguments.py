"""How a configuration field is written on the command line, said without importing the command line's parser.

A field's annotation carries one of the markers below; `constructor` turns it into what tyro reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast

from dew.config.record import decode, encode

if TYPE_CHECKING:
    import tyro

type JSON = bool | int | float | str | list[JSON] | dict[str, JSON] | None
"""A value that JSON can hold."""


@dataclass(frozen=True)
class JsonArgument:
    """Marks a field that is one JSON string on the command line.

    Attributes:
        metavar: what the help shows for it.
        read: from the parsed JSON to the field's value.
        write: from the field's value to JSON.
    """

    metavar: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any]

    def parse(self, text: str) -> Any:
        """The field's value from its JSON string.

        Raises:
            ValueError: `text` is no JSON, or not of the field's form.
        """
        try:
            value = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{text!r} is not JSON ({error}); write {self.metavar} in quotes") from error
        return self.read(value)

    def format(self, value: Any) -> str:
        """The JSON string of a field's value."""
        return json.dumps(self.write(value))


def json_object(value: object) -> dict[str, JSON]:
    """`value` as the JSON object it is: string keys, tuples as lists.

    Raises:
        ValueError: `value` is no mapping, or holds something JSON cannot.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{value!r} must be a JSON object, as in '{{\"hidden_size\": 256}}'")
    return cast("dict[str, JSON]", encode(cast("object", value), ""))


def json_list_argument(item: type) -> JsonArgument:
    """The marker of a tuple of `item` records, written as a JSON list of objects."""

    def read(value: object) -> object:
        return decode(tuple[item, ...], value, item.__name__)

    return JsonArgument(
        f'[{{"{item.__name__} field": value, ...}}, ...]', read, lambda value: encode(value, item.__name__)
    )


JsonDict = Annotated[dict[str, JSON], JsonArgument('{"field": value, ...}', json_object, json_object)]
"""The fields a component is built from, one JSON string on the command line. The component narrows each
itself."""


def constructor(marker: JsonArgument) -> tyro.constructors.PrimitiveConstructorSpec[Any]:
    """The marker as tyro reads it."""
    from tyro.constructors import PrimitiveConstructorSpec

    def is_instance(value: object) -> bool:
        return isinstance(value, (dict, tuple, list))

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=marker.metavar,
        instance_from_str=lambda arguments: marker.parse(arguments[0]),
        is_instance=is_instance,
        str_from_instance=lambda value: [marker.format(value)],
    )
