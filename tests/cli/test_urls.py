"""Commands over the URLs of caches and corpora: the same answers, each index fetched once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import here
from tests.support.buckets import config_of, put_cache, put_corpus
from tests.support.processes import start
from tests.support.scripted_s3 import ScriptedS3

pytestmark = pytest.mark.slow
URL = "s3://lake/run/c.h5"
PLAIN = "s3://lake/corpora/plain"


@pytest.fixture
def server(blend_config: dict[str, Any], shared: Path) -> Iterator[ScriptedS3]:
    """A bucket with a cache and its corpora, and with these for a build."""
    with ScriptedS3() as s3:
        put_cache(s3, here.build(blend_config, shared, "c").path)
        config_of(s3, blend_config, shared)
        yield s3


def run(server: ScriptedS3, shared: Path, words: list[str]) -> tuple[int, str, str]:
    """Run a command; {config} stands for the configuration of corpora in the bucket."""
    words = [word.format(config=shared / "remote.json") for word in words]
    done = start(words, environment=server.environment)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["plan", "{config}"], "4,000"),
        (["explain", "{config}", URL], "same"),
        (["verify", URL], "verified"),
        (["verify", URL, "--corpora"], "verified"),
        (["ready", URL], ""),
        (["inspect", URL], "train"),
        (["check", PLAIN], "plain"),
        (["check", PLAIN, "--vocab-size", "60000"], "plain"),
    ],
)
def test_what_is_sound(words: list[str], told: str, server: ScriptedS3, shared: Path) -> None:
    """No index is fetched twice, and no tokens but by who asks for their range."""
    code, out, _ = run(server, shared, words)
    assert code == 0
    assert told in out
    for name, data in server.objects.items():
        if name.endswith(".idx"):
            assert server.bytes_of(name) in (0, len(data))
        elif name.endswith(".bin"):
            asked = "--vocab-size" in words and name.startswith("lake/corpora/plain")
            assert server.bytes_of(name) == (len(data) if asked else 0)


@pytest.mark.parametrize(
    ("words", "suffix", "code", "message"),
    [
        (["verify", URL], "c.h5", 4, "differ"),
        (["verify", URL, "--corpora"], ".idx", 3, "s3://lake/run/corpora/"),
        (["check", PLAIN], "corpora/plain.idx", 3, "unsound"),
    ],
)
def test_what_is_not(
    words: list[str], suffix: str, code: int, message: str, server: ScriptedS3, shared: Path
) -> None:
    """What does not exist is named as for files: its own exit code, and what is wrong."""
    for name in [name for name in server.objects if name.endswith(suffix)]:
        data = bytearray(server.objects[name])
        middle = len(data) // 2
        data[middle : middle + 4] = bytes(byte ^ 255 for byte in data[middle : middle + 4])
        server.put(name, bytes(data))
    found, out, err = run(server, shared, words)
    assert found == code, err
    assert message in out + err


@pytest.mark.parametrize("view", [False, True])
def test_tokens_out_of_range(
    view: bool, server: ScriptedS3, shared: Path, corpora: dict[str, str], tmp_path: Path
) -> None:
    """They are found where they are in the files, wherever a view has them."""
    prefix, url = corpora["plain"], "s3://lake/corpora/checked"
    if view:
        words = ["select", prefix, "--sample", "0.3", "--seed", "4", "-o", tmp_path / "view"]
        assert start(words).returncode == 0
        prefix = str(tmp_path / "view")
    put_corpus(server, prefix, url)
    faults = []
    for corpus in (prefix, url):
        code, out, err = run(server, shared, ["check", corpus, "--vocab-size", "900", "--json"])
        assert code == 3, err
        faults.append(json.loads(out)["faults"][0]["message"])
    assert faults[0] == faults[1]
    assert "expected 0 to 899" in faults[0]


def test_a_cache_that_is_not_there(server: ScriptedS3, shared: Path) -> None:
    """A cache that is not there is not ready."""
    code, out, err = run(server, shared, ["ready", "s3://lake/run/none.h5"])
    assert code == 5
    assert "s3://lake/run/none.h5" in out + err


def test_another_configuration(server: ScriptedS3, shared: Path) -> None:
    """Another configuration has another key."""
    path = shared / "remote.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "seed": 5}))
    code, out, _ = run(server, shared, ["explain", "{config}", URL])
    assert code == 7
    assert "seed" in out
