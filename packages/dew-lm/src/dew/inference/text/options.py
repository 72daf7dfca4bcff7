"""What `dew generate` asks of a language model. Importing it imports no JAX."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import batched
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dew.inference.text.asking import Asked, as_messages, file_prompts
from dew.inference.text.published import json_object, read_controls, sampling_of
from dew.sampling.text.config import Sampling

if TYPE_CHECKING:
    from dew.config import RunConfig
    from dew.inference.text.task import TextGeneration

SOURCE_FILES = ("generation_config.json", "config.json")
SCREEN = "-"
"""The output that is standard output."""


@dataclass(frozen=True)
class TextOptions:
    """Continue prompts, or answer messages, with a trained language model.

    Attributes:
        prompt: Texts to continue; an empty one continues a newline.
        prompts: File of prompts: one on each line; or .jsonl or .json with texts, objects that hold `prompt`,
            or objects that hold `messages` (and `tools`).
        chat: Take each prompt as a user's message, in the tokenizer's own chat template.
        stop: String that ends a response, itself left out; give the option again for further ones.
        output: File that one JSON object is written to for each response, with its ids and both likelihoods;
            - writes them to the screen.
        sampling: How tokens are drawn; the defaults are the run's own.
        max_new_tokens: Tokens to draw at most; unset takes the length of the run's previews.
        n: Continuations of each prompt; the first is the same whatever their number.
        batch: Prompts that are drawn together; what a prompt draws does not depend on it.
        skip: Prompts at the beginning of the file that are left out, as an earlier call has answered them;
            the others draw what they draw without it.

    Raises:
        ValueError: a number below its least, an empty string to stop at, or `skip` without a file of prompts.
    """

    prompt: tuple[str, ...] = ()
    prompts: str | None = None
    chat: bool = False
    stop: tuple[str, ...] = ()
    output: str | None = None
    sampling: Sampling = Sampling()
    max_new_tokens: int | None = None
    n: int = 1
    batch: int = 8
    skip: int = 0

    positional: ClassVar[tuple[str, ...]] = ("prompt",)
    repeated: ClassVar[tuple[str, ...]] = ("stop",)

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "n", "batch"):
            value: int | None = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if self.skip < 0 or (self.skip and self.prompts is None):
            raise ValueError(f"skip={self.skip} must be 0 or more, and counts prompts of --prompts FILE")
        if "" in self.stop:
            raise ValueError(
                "stop holds an empty string, which every text holds; give one character at least"
            )

    @classmethod
    def of_run(cls, config: RunConfig) -> Self:
        """The options as a run's own configuration has them; prompts are the user's to give."""
        sampling = getattr(config, "sampling", None)
        return cls(sampling=sampling if isinstance(sampling, Sampling) else Sampling())

    @classmethod
    def of_source(cls, folder: str) -> Self:
        """The options as a published model's files have them; 64 tokens where they set no limit.

        Raises:
            ValueError: controls that are not known or not done here, or a file that is no JSON object.
        """
        generation, config = (json_object(os.path.join(folder, name)) for name in SOURCE_FILES)
        controls = read_controls(generation, config)
        unlimited = controls.get("max_new_tokens") is controls.get("max_length") is None
        return cls(
            sampling=sampling_of(controls),
            max_new_tokens=64 if unlimited else controls.get("max_new_tokens"),
            n=controls.get("num_return_sequences", 1),
        )

    def asked(self) -> list[Asked]:
        """Every prompt, in order.

        Raises:
            ValueError: none at all, or a file that holds something else.
            OSError: a file that cannot be read.
        """
        if self.prompts is not None and self.prompt:
            raise ValueError(f"prompts={self.prompts} and a PROMPT are both given; give one of the two")
        given = (
            [Asked(text, text) for text in self.prompt]
            if self.prompts is None
            else file_prompts(self.prompts)
        )
        if not given:
            raise ValueError("there is no prompt: give a PROMPT, or a file of them as --prompts FILE")
        if self.skip >= len(given):
            raise ValueError(
                f"skip={self.skip} leaves none of the {len(given)} prompts in {self.prompts}; lower it"
            )
        return [as_messages(each) for each in given] if self.chat else given

    def check(self, config: object) -> None:
        """Refuse what can be known to fail before a model is read.

        Args:
            config: of the run, or another record that names its `tokenizer`.

        Raises:
            ValueError: no prompt, one that the run's tokenizer cannot read, an output that is there, or a
                string that no token can complete.
            OSError: a file that cannot be read.
        """
        output = self.output
        if output is not None and output != SCREEN:
            if os.path.lexists(output):
                raise FileExistsError(f"output={output} is there already; name a new file, or take it away")
            if not os.path.isdir(os.path.dirname(output) or "."):
                raise FileNotFoundError(f"output={output} lies in no folder; make it first")
        asked = self.asked()
        tokenizer: Any = getattr(config, "tokenizer", None)
        if not isinstance(tokenizer, str):
            folder = getattr(config, "folder", "the model's folder")
            raise ValueError(
                f"{folder} holds no tokenizer.json, so text can be neither read nor written; put the model's "
                "tokenizer there, or continue token ids: dew.pipeline(FOLDER)([[1, 2]], 16, seed=0)"
            )
        from dew.data.text import load_tokenizer
        from dew.inference.text.processor import RunProcessor

        processor = RunProcessor(load_tokenizer(tokenizer))
        for each in asked:
            each.ids(processor)
        if self.stop:
            from dew.sampling.decoding import stop_strings

            stop_strings(processor, self.stop)

    def respond(self, task: TextGeneration, *, seed: int) -> Iterator[str]:
        """The responses as text, as they are drawn where there is one, or a line for each as JSON."""
        from dew.inference.text import answering
        from dew.inference.text.output import write_responses

        asked = self.asked()
        prompts = answering.measured(self, task, asked)
        if self.output is None:
            yield from answering.as_text(self, task, prompts, seed)
        elif self.output == SCREEN:
            yield from answering.as_lines(self, task, prompts, seed)
        else:
            lines = answering.as_lines(self, task, prompts, seed)
            written = write_responses(self.output, batched(lines, self.n), self._kept)
            yield f"{written} responses are in {self.output}\n"

    def _kept(self, written: int) -> str:
        """What an interrupted call has written, and how to go on."""
        answered = self.skip + written // self.n
        again = (
            f"go on with the same options, --skip {answered} and another --output, and join the two files"
            if self.prompts is not None
            else "give the prompts as a file, --prompts FILE, to go on behind those that are answered"
        )
        return f"{written} responses are in {self.output}; {again}"
