"""What all tests share."""

from __future__ import annotations

import inspect
import json
import os
import random
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from distcache.storage.timeouts import SCALE, limits
from tests.support import here, needs
from tests.support.corpora import blend_fields, write_corpora
from tests.support.large import write_large
from tests.support.odd import compile_odd
from tests.support.secrets import places_with_secrets

# Torch would start a thread for each core in every process of the tests.
os.environ.setdefault("OMP_NUM_THREADS", "1")
FAILED: set[Path] = set()

settings.register_profile(
    "distcache",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    print_blob=True,
)
settings.load_profile("distcache")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by their folder, leave out what is not due, and skip what this machine lacks."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        for mark in needs.marks_of(item.path):
            item.add_marker(mark)
        reasons = filter(None, (needs.missing(mark.name) for mark in item.iter_markers()))
        if reason := "; ".join(dict.fromkeys(reasons)):
            item.add_marker(pytest.mark.skip(reason))
        if item.get_closest_marker("few") is not None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for same in cases.values():
        mark = same[0].get_closest_marker("few")
        assert mark is not None, "only tests with the mark are in the dictionary"
        # By chance, which is always the same: a fixed stride would leave out whole parameters.
        chance = random.Random(same[0].originalname)
        kept = chance.sample(range(len(same)), min(mark.args[0], len(same)))
        for place, item in enumerate(same):
            if place not in kept:
                item.add_marker("more")
    early = [item for item in items if not all(map(needs.is_due, releases_of(item)))]
    config.hook.pytest_deselected(items=early)
    items[:] = [item for item in items if item not in early]


def releases_of(item: pytest.Item) -> list[str]:
    """Return the releases of Megatron-Core from which on a test holds, and its file."""
    found = [mark.args[0] for mark in item.iter_markers("since")]
    return found + [release for release in [needs.since(item.path)] if release]


class SkippedFile(pytest.Item):
    """What stands for the tests of a file that imports a library which is not installed."""

    library = ""

    def runtest(self) -> None:
        """Say which."""
        pytest.skip(f"{self.library} is not installed")


class Module(pytest.Module):
    """A file of tests, which may lack a library."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """Return its tests, or one that is skipped and can be deselected by the folder's marks."""
        try:
            return super().collect()
        except pytest.Collector.CollectError as error:
            cause = error.__cause__
            if not isinstance(cause, ModuleNotFoundError) or cause.name is None:
                raise
            if cause.name.partition(".")[0] in ("distcache", "tests"):
                raise
            item: SkippedFile = SkippedFile.from_parent(self, name="imports")
            item.library = cause.name
            return [item]


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    """Collect files in this way."""
    found: pytest.Module = Module.from_parent(parent, path=module_path)
    return found


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> None:
    """Refuse a mark on a function that is no test, where it would be without effect."""
    if not inspect.isfunction(obj):
        return
    marks = [mark.name for mark in getattr(obj, "pytestmark", [])]
    if marks and not name.startswith("test"):
        raise collector.CollectError(f"{name} has a mark, and is no test")
    if marks.count("few") > 1:
        raise collector.CollectError(f"{name} has the mark few twice, of which one counts")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make a test that is skipped an error, where nothing may be; remember what has failed."""
    report = yield
    if report.skipped and os.environ.get("DISTCACHE_REQUIRE") == "all":
        report.outcome = "failed"
        report.longrepr = f"skipped, and DISTCACHE_REQUIRE=all: {report.longrepr}"
    directory = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and directory is not None:
        FAILED.add(directory)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Make a file that skips itself an error, too, where nothing may be skipped."""
    report = yield
    if report.skipped and os.environ.get("DISTCACHE_REQUIRE") == "all":
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} skips itself, and DISTCACHE_REQUIRE=all"
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leave nothing of a run, but for what has failed."""
    factory = getattr(session.config, "_tmp_path_factory", None)
    base = None if factory is None else factory._basetemp
    if base is None:
        return
    for path in base.iterdir():
        if path not in FAILED and not path.is_symlink() and not path.name.startswith("popen-"):
            shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def no_secret_is_kept(request: pytest.FixtureRequest) -> Iterator[None]:
    """No file that a test with a store leaves, and no command line, has a secret."""
    uses_store = bool({"server", "seaweed"} & set(request.fixturenames))
    directory = request.getfixturevalue("tmp_path") if uses_store else None
    yield
    if directory is not None:
        assert places_with_secrets(directory) == []


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A scripted store without objects, to which this process is led."""
    from tests.support.buckets import fresh_process_of_buckets  # noqa: PLC0415  not everywhere
    from tests.support.scripted_s3 import ScriptedS3  # noqa: PLC0415

    with ScriptedS3() as s3, fresh_process_of_buckets(monkeypatch, s3.environment):
        yield s3


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is preloaded into a process to make its filesystem odd, or to strike at a call."""
    return compile_odd(tmp_path_factory.mktemp("odd"))


@pytest.fixture(scope="session")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Prefixes of all corpora by name."""
    return write_corpora(tmp_path_factory.mktemp("corpora"))


@pytest.fixture
def blend_config(corpora: dict[str, str]) -> dict[str, object]:
    """The fields of a configuration with all splits, three corpora and several epochs."""
    return blend_fields(corpora)


@pytest.fixture
def own_corpora(blend_config: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """The configuration with copies of its corpora."""
    for source in blend_config["blend"]:
        own = tmp_path / Path(source["path"]).name
        for suffix in (".idx", ".bin"):
            shutil.copy(source["path"] + suffix, str(own) + suffix)
        source["path"] = str(own)
    return blend_config


@pytest.fixture
def scale_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Multiplies every time limit of this process, and of those that it starts."""

    def scale(factor: float) -> None:
        monkeypatch.setenv(SCALE, str(factor))
        limits.cache_clear()

    yield scale
    limits.cache_clear()


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes limits of a module small (or large), so that little reaches them: numbers only."""

    def change(module: str, **limits: float) -> None:
        for name, value in limits.items():
            assert name.isupper(), "only limits are changed, no functions"
            assert isinstance(value, int | float), "only numbers are limits"
            monkeypatch.setattr(f"{module}.{name}", value)

    return change


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the files that this process opens by `os.open`, in their order."""
    paths: list[str] = []
    original = os.open

    def noting(path: Any, *more: Any, **options: Any) -> int:
        paths.append(str(path))
        return original(path, *more, **options)

    monkeypatch.setattr(os, "open", noting)
    return paths


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory for caches."""
    directory = tmp_path / "shared"
    directory.mkdir()
    return directory


@pytest.fixture(scope="session")
def large_config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two large sections, with the last epoch apart or a partial sample kept, and small ones."""
    directory = tmp_path_factory.mktemp("large")
    small = write_corpora(directory)
    large = write_large(directory / "large", 1_000_000)
    return {
        "sequence_length": 24,
        "seed": 77,
        "samples": {"train": 8_000_000, "valid": 5_000_000, "test": 1000},
        "drop_last_partial_validation_sequence": False,
        "blend_per_split": {
            "train": [large],
            "valid": [write_large(directory / "second", 1_300_000)],
            "test": [
                {"path": small["holes"], "weight": 0.4},
                {"path": small["third"], "weight": 0.6},
            ],
        },
        "tokenizer": {"class": "X"},
    }


@pytest.fixture(scope="session")
def large_file(large_config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration in a file."""
    path = tmp_path_factory.mktemp("config") / "large.json"
    path.write_text(json.dumps(large_config))
    return path


@pytest.fixture(scope="session")
def serial_bytes(large_config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What one process with one thread builds."""
    return Path(here.build(large_config, tmp_path_factory.mktemp("serial")).path).read_bytes()
