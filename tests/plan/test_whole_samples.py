"""Corpora whose rows were packed to be samples: the plan says what makes each row one sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distcache.builder.configuration import config_from_mapping
from distcache.plan.problems import plan_warnings
from tests.support import here
from tests.support.corpora import write_lengths


def hints(fields: dict[str, Any]) -> list[str]:
    """Return the warnings that name the extra token."""
    config = config_from_mapping(fields)
    plan = here.plan(config)
    return [text for text in plan_warnings(config, plan) if "add_extra_token" in text]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([65] * 40, "`sequence_length: 65` and `add_extra_token: false`"),
        ([64] * 40, "with `add_extra_token: false` each is one sample"),
        ([63] * 40, None),
        ([65] * 39 + [64, 66], None),
        ([64] * 39 + [63, 65], None),
    ],
)
def test_rows(lengths: list[int], expected: str | None, tmp_path: Path) -> None:
    """Of as many tokens as a sample, or of one more, all of them."""
    prefix = write_lengths(tmp_path / "rows", np.array(lengths))
    fields = {"sequence_length": 64, "split": "100,0,0", "blend": [prefix]}
    found = hints(fields)
    assert len(found) == (expected is not None)
    assert expected is None or expected in found[0]
    assert hints({**fields, "add_extra_token": False}) == []
