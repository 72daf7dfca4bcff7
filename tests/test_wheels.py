"""What is shipped: each wheel, alone and beside the others, in environments of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.isolated

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples/plugin"
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))


def run(*command: object, cwd: Path = ROOT, **environment: str) -> str:
    """The output of a command that must succeed."""
    settings = {
        name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")
    }
    words = [str(word) for word in command]
    result = subprocess.run(words, capture_output=True, text=True, cwd=cwd, env=settings | environment)
    assert result.returncode == 0, f"{' '.join(words)}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every distribution's wheel, the example plugin's among them, by name."""
    folder = tmp_path_factory.mktemp("wheels")
    for project in [*PACKAGES, EXAMPLE]:
        run("uv", "build", "--wheel", "--out-dir", folder, project)
    return {path.name.split("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}


@dataclass(frozen=True)
class Environment:
    """A virtual environment with some wheels and what they declare, at the versions of the root manifest."""

    folder: Path

    def program(self, name: str) -> Path:
        return self.folder / "bin" / name

    def python(self, code: str) -> str:
        return run(self.program("python"), "-c", code, cwd=self.folder)

    def dew(self, *words: str) -> str:
        return run(self.program("dew"), *words, cwd=self.folder, DEW_CACHE=str(self.folder / "cache"))

    def installed(self) -> set[str]:
        code = "from importlib.metadata import distributions as d; print(*(each.name for each in d()))"
        return {name.lower() for name in self.python(code).split()}


def environment(folder: Path, *requirements: object) -> Environment:
    """Make one."""
    constraints = folder / "constraints.txt"
    pinned = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["constraint-dependencies"]
    constraints.write_text("\n".join(pinned))
    made = Environment(folder / "env")
    run("uv", "venv", "--python", sys.executable, made.folder)
    python = made.program("python")
    run("uv", "pip", "install", "--python", python, "--constraint", constraints, *requirements)
    return made


@pytest.fixture(scope="module")
def core(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return environment(tmp_path_factory.mktemp("core"), wheels["dew-core"])


NEEDS = {
    "dew-lm": ("dew-core",),
    "dew-diffusion": ("dew-core",),
    "dew-jepa": ("dew-core",),
    "dew-rl": ("dew-core", "dew-lm"),
    "dew-inference": ("dew-core",),
}
"""Distribution -> those of Dew that it brings along."""


@dataclass(frozen=True)
class Alone:
    """An environment that holds one distribution and what it declares."""

    name: str
    environment: Environment


@pytest.fixture(scope="module", params=NEEDS)
def alone(
    request: pytest.FixtureRequest, wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Alone:
    name: str = request.param
    held = [wheels[each] for each in (*NEEDS[name], name)]
    return Alone(name, environment(tmp_path_factory.mktemp(name), *held))


@pytest.fixture(scope="module")
def example(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return environment(
        tmp_path_factory.mktemp("example"), wheels["dew-core"], wheels["dew-example"], "pytest"
    )


def shipped(wheel: Path) -> set[str]:
    """The paths in a wheel, its metadata left out."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def metadata(wheel: Path) -> dict[str, list[str]]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        headers = Parser().parsestr(archive.read(name).decode())
    return {key: headers.get_all(key, []) for key in ("Version", "Requires-Dist")}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_wheel_holds_exactly_the_sources(package: Path, wheels: dict[str, Path]):
    source = package / "src"
    files = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    assert shipped(wheels[package.name]) == {name for name in files if "__pycache__" not in name}


def test_no_path_is_in_two_wheels(wheels: dict[str, Path]):
    paths = [name for wheel in wheels.values() for name in shipped(wheel)]
    assert len(paths) == len(set(paths))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_bounds_between_the_distributions_admit_the_versions_here(package: Path, wheels: dict[str, Path]):
    for line in metadata(wheels[package.name])["Requires-Dist"]:
        requirement = Requirement(line)
        if requirement.name.startswith("dew-"):
            assert len(requirement.specifier) == 2, f"{line} needs a lower and an upper bound"
            assert requirement.specifier.contains(metadata(wheels[requirement.name])["Version"][0])


def test_core_alone_helps_and_says_what_to_install(core: Environment):
    assert "none is installed; pip install" in core.dew("train", "--help")
    code = "import dew.cli; raise SystemExit(dew.cli.main(['train', 'lm']) != 2)"
    core.python(code)
    assert core.installed() & {"dew-lm", "dew-inference", "safetensors", "tokenizers", "jinja2"} == set()
    core.python(
        "from dew import Trainer, MeshSpec, Checkpoints, InputSpec; from dew.objectives import Objective"
    )


def test_name_of_a_missing_distribution_says_how_to_get_it(core: Environment):
    code = "import dew.sampling\ntry: dew.sampling.generate\nexcept ImportError as error: print(error)"
    assert core.python(code) == "dew.sampling.generate ships in dew-lm: pip install dew-lm\n"


PICTURES = """
import numpy, os
from PIL import Image
for kind in ("dark", "light"):
    os.makedirs(f"pictures/{kind}", exist_ok=True)
    for number in range(16):
        noise = numpy.random.default_rng(number).integers(0, 120, (16, 16, 3))
        pixels = (noise + 130 * (kind == "light")).astype("uint8")
        Image.fromarray(pixels).save(f"pictures/{kind}/{number}.png")
"""
"""Writes a folder of images in two classes, with the libraries that the images extra brings."""
DECODER = '{"hidden_size": 16, "num_layers": 1, "num_heads": 2}'
ENCODER = '{"patch_size": 2, "hidden_size": 16, "num_layers": 1, "num_heads": 2}'
PREDICTOR = '{"hidden_size": 16, "num_layers": 1, "num_heads": 2}'
ON_PICTURES = [
    "--data.path",
    "pictures",
    "--data.image-size",
    "16",
    "--data.val-batches",
    "1",
    "--trainer.batch-size",
    "8",
]
COMMANDS = {
    "dew-lm": ["lm", "--sample-tokens", "0", "--data.val-windows", "8", "--model.config", DECODER],
    "dew-diffusion": ["diffusion", *ON_PICTURES, "--sampling-steps", "2", "--model.config", ENCODER],
    "dew-jepa": ["jepa", *ON_PICTURES, "--model.config", ENCODER, "--predictor.config", PREDICTOR],
    "dew-rl": ["grpo", "--warm-start.steps", "1", "--group-size", "2", "--model.config", DECODER],
}
"""Distribution -> a recipe of its own, made small, on data that needs no further package."""


def test_distribution_alone_brings_no_other_family_and_no_library_of_one(alone: Alone):
    families = set(NEEDS) - {alone.name, *NEEDS[alone.name]}
    others = {"qwix", "torch", "transformers", "trl", "diffusers", "scikit-learn", "wandb"}
    text = {"tokenizers", "jinja2"} if "dew-lm" not in {alone.name, *NEEDS[alone.name]} else set[str]()
    images = {"pillow"} if alone.name not in ("dew-diffusion", "dew-jepa") else set[str]()
    assert alone.environment.installed() & (families | others | text | images) == set()


def test_every_plugin_and_component_of_a_distribution_alone_can_be_imported(alone: Alone):
    alone.environment.dew("plugins", "check")


@pytest.mark.parametrize("alone", COMMANDS, indirect=True)
def test_recipe_trains_without_any_other_family(alone: Alone):
    options = ["--trainer.steps", "2", "--trainer.name", "run", "--trainer.checkpoint-dir", "runs"]
    if "pictures" in COMMANDS[alone.name]:
        alone.environment.python(PICTURES)
    alone.environment.dew("train", *COMMANDS[alone.name], *options)
    assert (alone.environment.folder / "runs/run/run.json").is_file()


BY_EXTRA = {"dew-inference": "dew.inference.server."}
"""Distribution -> the modules that one of its extras brings the imports of: text is served with `lm`."""


def test_every_module_of_a_distribution_imports_in_its_own_environment(alone: Alone):
    code = """
import importlib, pkgutil, dew
names = [each.name for each in pkgutil.walk_packages(dew.__path__, 'dew.')]
optional = ('dew.__main__', 'dew.telemetry.weights_and_biases', EXTRA)
for name in names:
    if not name.startswith(optional):
        importlib.import_module(name)
print(len(names))
"""
    extra = BY_EXTRA.get(alone.name, "dew.__main__")
    assert int(alone.environment.python(code.replace("EXTRA", repr(extra)))) > 50


def test_example_plugin_passes_its_contracts_and_trains(example: Environment):
    run(
        example.program("python"),
        "-m",
        "pytest",
        "-o",
        "addopts=-q --import-mode=importlib",
        EXAMPLE / "tests",
        cwd=example.folder,
        JAX_PLATFORMS="cpu",
    )
    options = [
        "--trainer.steps",
        "20",
        "--trainer.accumulation",
        "2",
        "--trainer.name",
        "run",
        "--trainer.checkpoint-dir",
        "runs",
    ]
    example.dew("train", "sine", *options, "--trainer.checkpoint-dir", "runs")
    output = example.dew("train", "sine", "--resume", "runs/run", "--trainer.steps", "30")
    assert "runs/run" in output
    assert example.installed() & {"dew-lm", "dew-inference"} == set()


def test_example_plugin_is_small_and_complete():
    kinds = re.findall(r'Component\("(\w+)"', (EXAMPLE / "src/dew_example/plugin.py").read_text())
    assert {"objective", "model", "metric", "dataset", "recipe"} <= set(kinds)
    learned = (EXAMPLE / "src/dew_example/learn.py").read_text()
    assert not re.search(r"accumul|\bema\b|resume|checkpoint", learned.replace("accumulated", ""))
