"""Runs that several test files share."""

from collections.abc import Iterator

import pytest

from more_cli.ops import auto_anchors
from support.helpers import QUICK, World
from support.reverts import Runs
from support.sparing import loaded_once, short_answers, small_states  # noqa: F401 (pytest finds them here)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("revert"))


@pytest.fixture(scope="module")
def silent() -> Iterator[None]:
    """The base asks itself no questions: a test then knows all anchors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto_anchors, "OWN", 0)
        yield


@pytest.fixture(scope="module")
def undisturbed(world: World) -> bytes:
    """The sidecar of one run over the edits of the module's world, from a file and without a break."""
    sidecar = world.root / "undisturbed.more"
    assert world.edit(*QUICK, "--state", sidecar).code == 3
    return sidecar.read_bytes()
