"""Time limits: one table, which users read, and one factor."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from distcache.errors import ConfigError
from distcache.storage.timeouts import SCALE, TimeLimits, limits

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def test_the_documentation_has_them_all() -> None:
    """The documentation has them all with the values that they have."""
    section = OPERATIONS.read_text().partition("## Time limits")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    found = {row[1].strip().strip("`"): float(row[2]) for row in rows}
    assert found == msgspec.structs.asdict(TimeLimits())


def test_one_variable_scales_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them."""
    monkeypatch.setenv(SCALE, "0.5")
    limits.cache_clear()
    try:
        scaled, plain = msgspec.structs.asdict(limits()), msgspec.structs.asdict(TimeLimits())
        assert scaled == {name: value / 2 for name, value in plain.items()}
    finally:
        limits.cache_clear()


@pytest.mark.parametrize("text", ["", "0", "-1", "nan", "inf", "1e12", "two"])
def test_what_is_no_factor(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no factor is refused with the variable's name."""
    monkeypatch.setenv(SCALE, text)
    limits.cache_clear()
    try:
        with pytest.raises(ConfigError, match=SCALE):
            limits()
    finally:
        limits.cache_clear()
