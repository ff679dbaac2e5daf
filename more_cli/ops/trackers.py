"""The trackers that come with `more`; each imports its package when it is made."""

from __future__ import annotations

from typing import Any

from more_cli.ops.tracking import Tracker, Values

PROJECT = "more"
"""Name of the project or experiment that runs are listed under."""


class Wandb(Tracker):
    """Weights & Biases; WANDB_MODE=offline keeps the run on this machine."""

    def __init__(self) -> None:
        import wandb

        self._package: Any = wandb

    def start(self, name: str, facts: Values) -> None:
        self._run = self._package.init(project=PROJECT, name=name, config=dict(facts))

    def log(self, step: int, values: Values) -> None:
        self._run.log(dict(values), step=step)

    def finish(self, summary: Values) -> None:
        self._run.summary.update(dict(summary))
        self._run.finish()


class Trackio(Tracker):
    """Trackio, which keeps runs on this machine."""

    def __init__(self) -> None:
        import trackio

        self._package: Any = trackio

    def start(self, name: str, facts: Values) -> None:
        self._package.init(project=PROJECT, name=name, config=dict(facts), embed=False)

    def log(self, step: int, values: Values) -> None:
        self._package.log(dict(values), step=step)

    def finish(self, summary: Values) -> None:
        """Keep the summary as values of its own and end the run."""
        self._package.log({f"summary/{name}": value for name, value in summary.items()})
        self._package.finish()


class Mlflow(Tracker):
    """MLflow, at MLFLOW_TRACKING_URI; statuses are in the artifact `edits.json`, as a metric is a number."""

    def __init__(self) -> None:
        import mlflow

        self._package: Any = mlflow
        self._texts: list[Values] = []

    def start(self, name: str, facts: Values) -> None:
        self._package.set_experiment(PROJECT)
        self._package.start_run(run_name=name)
        self._package.log_params(dict(facts))

    def log(self, step: int, values: Values) -> None:
        """Keep the numbers of a step, and its texts for the end."""
        self._package.log_metrics(_numbers(values), step=step)
        if texts := {key: value for key, value in values.items() if isinstance(value, str)}:
            self._texts.append({"step": step, **texts})

    def finish(self, summary: Values) -> None:
        self._package.log_metrics({_plain(f"summary/{key}"): value for key, value in _numbers(summary).items()})
        self._package.log_dict(self._texts, "edits.json")
        self._package.end_run()


class TensorBoard(Tracker):
    """TensorBoard: event files in `runs/` of the current folder."""

    def __init__(self) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._make: Any = SummaryWriter

    def start(self, name: str, facts: Values) -> None:
        self._writer = self._make(comment=f"-{name}")
        self._writer.add_text("facts", "\n\n".join(f"{key}: {value}" for key, value in facts.items()))

    def log(self, step: int, values: Values) -> None:
        for key, value in values.items():
            if isinstance(value, str):
                self._writer.add_text(key, value, step)
            else:
                self._writer.add_scalar(key, value, step)

    def finish(self, summary: Values) -> None:
        for key, value in _numbers(summary).items():
            self._writer.add_scalar(f"summary/{key}", value)
        self._writer.close()


def _numbers(values: Values) -> dict[str, float]:
    return {_plain(key): float(value) for key, value in values.items() if not isinstance(value, str)}


def _plain(key: str) -> str:
    """Return a name without what MLflow refuses in one."""
    return key.replace("@", "_at_")
