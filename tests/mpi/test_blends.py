"""Large blends, drawn by all ranks from guesses, are those of one process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distcache.build.prepare import make_plan_together
from distcache.plan.assignment import assign_all
from distcache.plan.costs import BLEND_SLICE
from distcache.plan.decode import config_from_mapping
from distcache.plan.layout import make_layout
from distcache.progress import Silent
from distcache.ranks.communicator import SerialCommunicator
from tests.caches import build_here
from tests.large import write_large
from tests.processes import LAUNCHERS, start

pytestmark = pytest.mark.mpi


@pytest.fixture(scope="module", params=["by weight", "exhaustive"])
def blend_case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """More than three slices of a blend over sections that are small beside it."""
    directory = tmp_path_factory.mktemp("corpora")
    sizes = np.random.default_rng(4).lognormal(9.8, 0.7, 24).astype(int)
    corpora: list[Any] = [
        write_large(directory / str(number), int(size)) for number, size in enumerate(sizes)
    ]
    samples = None
    if request.param == "by weight":
        corpora = [
            {"path": path, "weight": float(size)} for path, size in zip(corpora, sizes, strict=True)
        ]
        samples = 2_300_000
    return {
        "sequence_length": 8,
        "split": "1",
        "samples": {"train": samples, "valid": 0, "test": 0},
        "blend": corpora,
        "tokenizer": {"class": "X"},
    }


@pytest.fixture(scope="module")
def alone(blend_case: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache that one process builds."""
    return Path(build_here(blend_case, tmp_path_factory.mktemp("alone")).path)


def test_the_blend_is_drawn_by_all(blend_case: dict[str, Any]) -> None:
    """Or the tests below would say nothing about it."""
    plan = make_plan_together(SerialCommunicator(), config_from_mapping(blend_case), 1, Silent())
    assert plan.blends[0].size > 3 * BLEND_SLICE
    for ranks in (2, 3):
        assert len(assign_all(plan.items, make_layout(plan.items), ranks).blends) == 1


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_bytes_are_those_of_one_process(
    launcher: str, ranks: int, blend_case: dict[str, Any], alone: Path, tmp_path: Path
) -> None:
    """Whichever rank draws them."""
    config = tmp_path / "c.json"
    config.write_text(json.dumps(blend_case))
    done = start(["build", config, "-o", tmp_path], ranks, launcher)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == alone.read_bytes()


def test_slices_from_wrong_guesses_are_drawn_again(
    blend_case: dict[str, Any], alone: Path, tmp_path: Path
) -> None:
    """From the state that the slice before has ended with, one after the other."""
    config = tmp_path / "c.json"
    config.write_text(json.dumps(blend_case))
    program = [sys.executable, "-m", "tests.mpi.wrong_guesses"]
    done = start(["build", config, "-o", tmp_path], 3, program=program)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("drawn again") >= 2
    assert Path(done.stdout.strip()).read_bytes() == alone.read_bytes()
