"""Every array, name and description equals that of Megatron-Core itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from distcache.builder.configuration import config_from_mapping
from distcache.cache import open_cache
from distcache.errors import ConfigError
from distcache.megatron.export import export
from tests.judges.matrix import configuration
from tests.judges.megatron import alone, build_with_megatron, selected
from tests.plan.test_make import plan_of
from tests.support import here

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

MATRIX = range(340)


@pytest.fixture(autouse=True, scope="module")
def _process_group() -> Iterator[None]:
    with alone():
        yield


def test_enough_of_the_matrix_is_built(corpora: dict[str, str]) -> None:
    """At least 200 configurations are compared array by array; the others are refused by both."""

    def is_built(number: int) -> bool:
        try:
            plan_of(configuration(number, corpora))
        except ConfigError:
            return False
        return True

    assert sum(map(is_built, MATRIX)) >= 200


@pytest.mark.few(120)
@pytest.mark.parametrize("number", selected(MATRIX))
def test_matrix(number: int, corpora: dict[str, str], tmp_path: Path) -> None:
    """What Megatron builds, distcache exports to the byte; what it refuses, Megatron fails at."""
    fields = configuration(number, corpora)
    config = config_from_mapping(fields)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    try:
        outcome = here.build(fields, tmp_path / "shared")
    except ConfigError as error:
        if any("never finish" in problem for problem in error.problems):
            return  # Megatron would loop
        with pytest.raises((AssertionError, IndexError, ValueError)):
            build_with_megatron(config, theirs)
        return
    build_with_megatron(config, theirs)
    made = export(open_cache(outcome.path), ours)
    expected = {path.name: path.read_bytes() for path in theirs.iterdir()}
    assert sorted(made.files) == sorted(expected)
    for name, content in expected.items():
        assert (ours / name).read_bytes() == content, name
    before = {path: path.stat().st_mtime_ns for path in ours.iterdir()}
    build_with_megatron(config, ours)
    assert {path: path.stat().st_mtime_ns for path in ours.iterdir()} == before
