"""Runs that the tests of `revert` share."""

import pytest

from support.reverts import Runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("revert"))
