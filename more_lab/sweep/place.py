"""Where the jobs of a sweep run, perhaps on another machine than the one that plans them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from more_cli.model.machine import Machine


@dataclass(frozen=True)
class Place(Machine):
    """The machine of a job by its options: whether there is such a device is asked where the job runs."""

    def __post_init__(self) -> None:
        """Check nothing here."""

    @property
    def machine(self) -> Machine:
        """The machine, checked."""
        return Machine(**asdict(self))

    def versions(self, threads: int) -> dict[str, str]:
        """Return what decides the bytes of a job, but the processor: which one a cluster gives is known afterwards."""
        from more_cli.model.versions import versions

        known = versions(Machine(dtype=self.dtype, attention=self.attention))
        known |= {"device": self.device, "threads": str(threads)}
        return {name: version for name, version in known.items() if name != "cpu"}
