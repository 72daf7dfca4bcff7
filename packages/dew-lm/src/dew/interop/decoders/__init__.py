"""Decoders in the layouts that Hugging Face's transformers reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dew.lazy import lazy

if TYPE_CHECKING:
    from dew.interop.decoders.adapters import load_decoder_adapter as load_decoder_adapter
    from dew.interop.decoders.adapters import save_decoder_adapter as save_decoder_adapter
    from dew.interop.decoders.adapters import write_adapter as write_adapter
    from dew.interop.decoders.catalogue import Layout as Layout
    from dew.interop.decoders.catalogue import family_of as family_of
    from dew.interop.decoders.catalogue import layout_of as layout_of
    from dew.interop.decoders.folder import save_pretrained_decoder as save_pretrained_decoder
    from dew.interop.decoders.folder import write_task as write_task
    from dew.interop.decoders.reading import PretrainedDecoder as PretrainedDecoder
    from dew.interop.decoders.reading import read_decoder as read_decoder

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Layout": "dew.interop.decoders.catalogue:dew-lm",
        "PretrainedDecoder": "dew.interop.decoders.reading:dew-lm",
        "family_of": "dew.interop.decoders.catalogue:dew-lm",
        "load_decoder_adapter": "dew.interop.decoders.adapters:dew-lm",
        "save_decoder_adapter": "dew.interop.decoders.adapters:dew-lm",
        "write_adapter": "dew.interop.decoders.adapters:dew-lm",
        "layout_of": "dew.interop.decoders.catalogue:dew-lm",
        "read_decoder": "dew.interop.decoders.reading:dew-lm",
        "save_pretrained_decoder": "dew.interop.decoders.folder:dew-lm",
        "write_task": "dew.interop.decoders.folder:dew-lm",
    },
)
