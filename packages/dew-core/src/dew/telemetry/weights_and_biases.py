"""A run's metrics, previews and final checkpoint on Weights & Biases."""

from __future__ import annotations

import base64
import importlib.util
import re
import secrets
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dew.artifacts import Artifacts
from dew.telemetry.png import encode_png
from dew.telemetry.previews import Picture, Sample, preview_items
from dew.telemetry.rows import FOLDER
from dew.telemetry.tracker import Tracker

if TYPE_CHECKING:
    from dew.config.trainer import Wandb

STEP = "step"
"""The metric all others are drawn over. W&B's own step must rise, and drops what a resumed run logs again."""
IDENTITY = "wandb_id"


class WandbTracker(Tracker):
    """Reports to one W&B run, which a resumed run goes on with.

    Offline, `wandb sync` would let a second process's rows replace the first's. There each process makes a
    W&B run of its own, and the run's identity groups them.

    Args:
        config: project, entity and whether to stay offline.
        directory: the run directory; W&B's files and the run's identity are kept in its tracking folder.
        name: shown for the run, and the name of its model artifact.
        record: the configuration as `run.json` holds it.
        summary: further facts of the run.

    Raises:
        ImportError: the package `wandb` is not installed.
    """

    def __init__(
        self,
        config: Wandb,
        directory: str,
        *,
        name: str,
        record: Mapping[str, object],
        summary: Mapping[str, object] | None = None,
    ) -> None:
        if importlib.util.find_spec("wandb") is None:
            raise ImportError(
                "trainer.wandb reports to Weights & Biases, whose package is missing: "
                "pip install 'dew-core[wandb]'",
                name="wandb",
            )
        self._config = config
        self._folder = Path(directory) / FOLDER
        self._name = name
        self._facts = {**record, **(summary or {})}
        self._checkpoint: tuple[str, int] | None = None
        self._run: Any = None
        self._account: Mapping[str, Any] = {}

    def started(self, *, step: int, total_steps: int, unit: str) -> None:
        import wandb

        self._folder.mkdir(parents=True, exist_ok=True)
        known = identity(self._folder / IDENTITY)
        offline = self._config.offline
        same: dict[str, Any] = {"group": known} if offline else {"id": known, "resume": "allow"}
        self._run = wandb.init(
            project=self._config.project,
            entity=self._config.entity,
            mode="offline" if offline else None,
            name=self._name,
            dir=str(self._folder),
            config=dict(self._facts),
            settings=wandb.Settings(silent=True),
            **same,
        )
        self._run.config.update({"total_steps": total_steps, "unit": unit}, allow_val_change=True)
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        self._run.log({**values, STEP: step})

    def evaluated(self, values: Mapping[str, float], *, step: int) -> None:
        self._run.log({**values, STEP: step})

    def preview(self, artifacts: Artifacts, *, step: int) -> None:
        import wandb

        items = list(preview_items(artifacts))
        texts: list[Any] = [[item.prompt, item.text] for item in items if isinstance(item, Sample)]
        pictures = "".join(picture(item) for item in items if isinstance(item, Picture))
        shown: dict[str, Any] = {}
        if texts:
            shown["preview/text"] = wandb.Table(columns=["prompt", "text"], data=texts)
        if pictures:
            shown["preview/images"] = wandb.Html(pictures)
        if shown:
            self._run.log({**shown, STEP: step})

    def checkpointed(self, path: str, *, step: int) -> None:
        self._checkpoint = (path, step)

    def accounted(self, account: Mapping[str, Any], *, step: int) -> None:
        self._account = account

    def finished(self, status: str, *, step: int) -> None:
        """Publish the checkpoint a completed run ends on, and close the W&B run."""
        if self._run is None:
            return
        run, self._run = self._run, None
        try:
            if status == "completed" and self._checkpoint is not None and self._checkpoint[1] == step:
                run.log_artifact(self._checkpoint[0], name=artifact_name(self._name), type="model")
            run.summary["status"] = status
            run.summary["account"] = dict(self._account)
        finally:
            run.finish(exit_code=1 if status == "failed" else 0)


def picture(item: Picture) -> str:
    """An image as HTML that holds it, since `wandb.Image` needs a package that Dew does not."""
    data = base64.b64encode(encode_png(item.pixels)).decode()
    return f'<img src="data:image/png;base64,{data}" title="{escape(item.caption)}">'


def artifact_name(name: str) -> str:
    """`name` with what an artifact's name allows; slashes and spaces become dashes."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", name)


def identity(path: Path) -> str:
    """The W&B id of the run, made on its first start and read from then on."""
    if path.exists():
        return path.read_text().strip()
    made = secrets.token_hex(6)
    path.write_text(made + "\n")
    return made
