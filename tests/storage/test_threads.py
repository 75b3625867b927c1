"""Short tasks over a few threads."""

from __future__ import annotations

import ast
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import distcache
from distcache.storage.threads import map_in_threads


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_results_are_in_order(threads: int, count: int) -> None:
    """Results are in order: as many as items, each at its place."""
    assert map_in_threads(lambda item: item * item, range(count), threads) == [
        item * item for item in range(count)
    ]


def test_several_threads_are_at_it() -> None:
    """Each of two tasks waits for the other, which one thread would wait for in vain."""
    meeting = threading.Barrier(2, timeout=20)
    assert sorted(map_in_threads(lambda _: meeting.wait(), range(2), 2)) == [0, 1]


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_ends_all(threads: int) -> None:
    """It is raised, and what has not begun by then is left."""
    done: list[int] = []

    def act(item: int) -> None:
        if item == 10:
            raise ValueError("ten")
        if item > 10:
            time.sleep(0.001)
        done.append(item)

    with pytest.raises(ValueError, match="ten"):
        map_in_threads(act, range(10_000), threads)
    assert len(done) < 1000


FIRST_DECODE = """
from __future__ import annotations
import sys, threading
import msgspec
from distcache.storage.threads import decodable

sys.setswitchinterval(1e-6)
data = msgspec.msgpack.encode({"x": [{"a": 1}], "y": {"k": {"a": 2, "b": ["q"]}}})
for number in range(300):
    class Inner(msgspec.Struct):
        a: int
        b: list[str] | None = None

    @decodable
    class Outer(msgspec.Struct):
        x: tuple[Inner, ...]
        y: dict[str, Inner]

    def decode():
        together.wait()
        msgspec.msgpack.decode(data, type=Outer)

    together = threading.Barrier(4)
    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_that_are_the_first_to_decode_a_type() -> None:
    """They do not meet within msgspec, where they would crash."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_DECODE], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_type_of_ours_that_is_decoded_is_decodable() -> None:
    """By its decorator: a crash of two threads is too rare for a test to see."""
    decoded: set[str] = set()
    described: set[str] = set()
    ours: set[str] = set()
    for path in Path(distcache.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                ours.add(node.name)
                marks = {ast.unparse(mark) for mark in node.decorator_list}
                described |= {node.name} if "decodable" in marks else set()
            elif isinstance(node, ast.Call):
                decoded |= types_decoded_by(node)
                described |= {ast.unparse(node.args[0])} if is_decodable(node) else set()
    assert {"Receipt", "TokenizerJson", "Ready", "TextOptions"} <= decoded & ours
    assert decoded & ours <= described


def is_decodable(call: ast.Call) -> bool:
    """Return whether a call describes a type after its definition."""
    return ast.unparse(call.func) == "decodable"


def types_decoded_by(call: ast.Call) -> set[str]:
    """Return the names in the type that is given to a function which decodes."""
    name = ast.unparse(call.func).rpartition(".")[2]
    if name not in {"decode", "convert", "_decode"}:
        return set()
    kinds = [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "type")]
    return {node.id for kind in kinds for node in ast.walk(kind) if isinstance(node, ast.Name)}
