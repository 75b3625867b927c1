"""Filesystems that lack something: what can be done is done, all else is refused beforehand."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from distcache.cache import open_cache
from tests.faults.odd import compile_odd, odd
from tests.support import here
from tests.support.caches import workspace_of
from tests.support.corpora import write_corpora
from tests.support.processes import DISTCACHE, LIMIT, clean_environment, start

pytestmark = pytest.mark.mpi

NO_LOCKS = [f"flock={number}" for number in (37, 95, 22, 38)]
# No links, none that is right, and no rename that refuses to replace.
NO_LINKS = [
    *("link=1", "link=18", "link=symlink", "link=within"),
    *("link=1 renameat2=22", "link=symlink renameat2=38"),
]
HARMLESS = [
    *("chmod=1", "chmod=95", "dirsync=22", "dirsync=95", "link=1 renameat2=22 chmod=1 dirsync=95"),
    *("flock=0", "madvise=22", "fallocate=95", "fallocate=38", "statvfs=none", "times=1"),
]
LYING = ["statvfs=endless"]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is preloaded."""
    return compile_odd(tmp_path_factory.mktemp("odd"))


@pytest.fixture
def config(blend_config: dict[str, Any], tmp_path: Path) -> Path:
    """The configuration in a file."""
    path = tmp_path / "blend.json"
    path.write_text(json.dumps(blend_config))
    return path


def hidden(directory: Path) -> list[str]:
    """Return the hidden names in a directory."""
    return sorted(path.name for path in directory.iterdir() if path.name.startswith("."))


@pytest.fixture
def commands(
    config: Path, corpora: dict[str, str], shared: Path, tmp_path: Path
) -> dict[str, list[Any]]:
    """Words of each command that writes, and the directory that it writes to."""
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": "a b c " * n}) + "\n" for n in range(1, 200)))
    tokenizer = tmp_path / "tokenizer.json"
    vocabulary = {"[UNK]": 0, "a": 1, "b": 2, "c": 3}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    tokenizer.write_text(
        json.dumps(
            {
                "version": "1.0",
                "truncation": None,
                "padding": None,
                "added_tokens": [],
                "normalizer": None,
                "pre_tokenizer": {"type": "Whitespace"},
                "post_processor": None,
                "decoder": None,
                "model": model,
            }
        )
    )
    tokenized = ["--tokenizer", tokenizer, "--eod", "0"]
    cache = here.build(json.loads(config.read_text()), tmp_path / "built", "c").path
    return {
        "build": ["build", config, "-o", shared, "--name", "c"],
        "ingest": ["ingest", "text", text, *tokenized, "-o", shared / "t"],
        "merge": ["merge", corpora["plain"], corpora["second"], "-o", shared / "m"],
        "localize": ["localize", cache, "--store", shared / "local"],
    }


@pytest.mark.few(24)
@pytest.mark.parametrize("command", ["build", "ingest", "merge", "localize"])
@pytest.mark.parametrize("what", [*NO_LOCKS, *NO_LINKS, *HARMLESS, *LYING])
def test_it_works_or_is_refused(
    what: str, command: str, commands: dict[str, list[Any]], library: Path, shared: Path
) -> None:
    """With one sentence, before there is anything; and nothing hidden stays."""
    done = start(commands[command], environment=odd(library, what))
    refused = what in NO_LOCKS and command == "localize"
    if not refused:
        assert done.returncode == 0, done.stderr
        names = {path.name for path in shared.iterdir()}
        assert names & {"c.h5", "t.idx", "m.idx", "local"}
    else:
        assert done.returncode in (1, 2), done.stderr
        said = [line for line in done.stderr.splitlines() if line.startswith("distcache: ")]
        assert len(said) == 1, done.stderr
        assert "lock" in said[0]
        assert "building" not in done.stderr.replace(".building", "")
        assert not list(shared.glob("*.idx"))
    assert hidden(shared) == []


def test_without_symbolic_links(
    commands: dict[str, list[Any]], corpora: dict[str, str], library: Path, shared: Path
) -> None:
    """What needs one says what to do instead; all else works."""
    odd_one = odd(library, "symlink=1")
    for command in ("build", "ingest", "merge"):
        assert start(commands[command], environment=odd_one).returncode == 0
    done = start(commands["localize"], environment=odd_one)
    assert done.returncode == 2, done.stderr
    assert "its filesystem has no symbolic links; give --bin none, or --bin copy" in done.stderr
    for kind in ("none", "copy"):
        again = start([*commands["localize"], "--bin", kind], environment=odd_one)
        assert again.returncode == 0, again.stderr
    view = ["select", corpora["plain"], "--documents", "0:2", "-o", shared / "v"]
    done = start(view, environment=odd_one)
    assert done.returncode == 2, done.stderr
    assert "has no symbolic links; write the view elsewhere" in done.stderr


@pytest.mark.few(1)
@pytest.mark.parametrize("what", NO_LOCKS)
def test_made_up_corpora_need_no_locks(what: str, library: Path, shared: Path) -> None:
    """`mock` writes them nevertheless."""
    words = ["mock", "-o", shared / "mock", "--documents", "100"]
    done = start(words, environment=odd(library, what))
    assert done.returncode == 0, done.stderr


def test_a_directory_that_cannot_be_synced(commands: dict[str, list[Any]], library: Path) -> None:
    """A directory that cannot be synced is named."""
    for command in ("build", "ingest", "merge", "localize"):
        done = start(commands[command], environment=odd(library, "dirsync=5"))
        assert done.returncode == 1
        assert "Input/output error: '/" in done.stderr


@pytest.mark.few(2)
@pytest.mark.parametrize("what", NO_LINKS)
def test_without_links_no_output_is_replaced(
    what: str, commands: dict[str, list[Any]], library: Path, shared: Path, tmp_path: Path
) -> None:
    """Another cache of the name is kept, the same is found, and no file is a symbolic link."""
    assert start(commands["build"], environment=odd(library, what)).returncode == 0
    before = (shared / "c.h5").read_bytes()
    again = start(commands["build"], environment=odd(library, what))
    assert again.returncode == 0, again.stderr
    config = json.loads((tmp_path / "blend.json").read_text())
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**config, "seed": 4321}))
    words = ["build", other, "-o", shared, "--name", "c"]
    taken = start(words, environment=odd(library, what))
    assert taken.returncode == 7, taken.stderr
    assert (shared / "c.h5").read_bytes() == before
    (shared / "m.bin").write_bytes(b"mine")
    merged = start(commands["merge"], environment=odd(library, what))
    assert merged.returncode != 0
    assert (shared / "m.bin").read_bytes() == b"mine"
    assert not (shared / "m.idx").exists()
    assert not any(path.is_symlink() for path in shared.iterdir())


@pytest.mark.few(1)
@pytest.mark.parametrize("number", [1, 12, 19])
def test_files_that_cannot_be_mapped_are_read(
    number: int,
    commands: dict[str, list[Any]],
    config: Path,
    library: Path,
    shared: Path,
    corpora: dict[str, str],
) -> None:
    """By every command, and in training: some filesystems allow few mappings, or none."""
    refusing = odd(library, f"mmap={number}:.idx mmap={number}:.h5")
    for command in ("build", "ingest", "merge", "localize"):
        done = start(commands[command], environment=refusing)
        assert done.returncode == 0, done.stderr
    code = f"import distcache; d = distcache.open({str(shared / 'c.h5')!r}).dataset('train'); "
    code += "print(len(d), d[0]['tokens'][:5].tolist())"
    words = [sys.executable, "-W", "ignore", "-c", code]
    found = [
        subprocess.run(words, env=clean_environment(more), capture_output=True, check=True).stdout
        for more in ({}, refusing)
    ]
    assert found[0] == found[1]


@pytest.mark.few(2)
@pytest.mark.parametrize("command", ["build", "ingest", "merge"])
def test_a_full_filesystem_is_refused_or_noticed(
    command: str, commands: dict[str, list[Any]], library: Path, shared: Path
) -> None:
    """One that says that it is full, though it is not."""
    done = start(commands[command], environment=odd(library, "statvfs=full"))
    assert done.returncode == (6 if command == "build" else 0), done.stderr
    if command == "build":
        assert "free space" in done.stderr
        assert start(commands[command]).returncode == 0


@pytest.mark.few(2)
@pytest.mark.parametrize("rounds", range(3))
@pytest.mark.parametrize("nodes", [("", ""), ("a", "b")])
def test_jobs_that_build_the_same(
    blend_config: dict[str, Any],
    tmp_path: Path,
    library: Path,
    shared: Path,
    nodes: tuple[str, str],
    rounds: int,
) -> None:
    """They end with one right cache, and both well, though locks do not exclude."""
    config = tmp_path / "c.json"
    config.write_text(json.dumps({**blend_config, "samples": {"train": 400_000}}))
    words = [DISTCACHE, "build", str(config), "-o", str(shared), "--name", "c"]
    jobs = []
    for node in nodes:
        name = {"DISTCACHE_NODE_NAME": node} if node else {}
        environment = clean_environment({**odd(library, "flock=0"), **name})
        jobs.append(subprocess.Popen(words, env=environment, stderr=subprocess.PIPE))
        time.sleep(0.2 * rounds)
    ends = [(job.communicate(timeout=LIMIT)[1].decode(), job.returncode) for job in jobs]
    assert [code for _, code in ends] == [0, 0], ends
    alone = here.build(json.loads(config.read_text()), tmp_path / "alone", "c")
    assert (shared / "c.h5").read_bytes() == Path(alone.path).read_bytes()
    assert hidden(shared) == []


def test_a_dead_builder_of_another_machine_is_followed(
    config: Path, library: Path, shared: Path
) -> None:
    """After some time without a heartbeat."""
    gone = workspace_of(shared / "c.h5")
    gone.make()
    (gone.path / "owner").write_text("elsewhere pid:[1] 17 4711 00ff\n")
    words = ["build", config, "-o", shared, "--name", "c"]
    environment = {**odd(library, "flock=0"), "DISTCACHE_TIMEOUT_SCALE": "0.05"}
    done = start(words, environment=environment)
    assert done.returncode == 0, done.stderr
    assert hidden(shared) == []


def test_many_files_and_slow_unlinks(
    blend_config: dict[str, Any], config: Path, library: Path, shared: Path
) -> None:
    """What 2,048 ranks have left is gone after a build, though the heartbeat continued."""
    workspace = workspace_of(shared / "c.h5")
    assert workspace.take()
    workspace.prepare(build_key(blend_config, shared))
    for rank in range(2048):
        (workspace.path / f"journal.0123.{rank}.jsonl").touch()
    workspace.release()
    words = ["build", config, "-o", shared, "--name", "c"]
    done = start(words, environment=odd(library, "unlink=slow"))
    assert done.returncode == 0, done.stderr
    assert hidden(shared) == []


def build_key(fields: dict[str, Any], shared: Path) -> str:
    """Return the key of a configuration."""
    return here.build(fields, shared / "once").key


def test_a_cache_opens_wherever_it_was_built(
    config: Path, library: Path, shared: Path, tmp_path: Path
) -> None:
    """A cache opens wherever it was built; whatever was missing, the bytes are the same."""
    expected = Path(
        here.build(json.loads(config.read_text()), tmp_path / "plain").path
    ).read_bytes()
    for number, what in enumerate((*NO_LOCKS, *HARMLESS)):
        words = ["build", config, "-o", shared, "--name", f"c{number}"]
        assert start(words, environment=odd(library, what)).returncode == 0
        path = shared / f"c{number}.h5"
        assert path.read_bytes() == expected
        assert open_cache(path).key


@pytest.mark.few(2)
@pytest.mark.parametrize("suffix", [".idx", ".bin"])
@pytest.mark.parametrize("command", ["build", "check", "localize"])
def test_a_corpus_that_shrinks(
    command: str, suffix: str, blend_config: dict[str, Any], tmp_path: Path, shared: Path
) -> None:
    """While it is read: exit code 3 and the file's name, and no SIGBUS."""
    (tmp_path / "own").mkdir()
    corpora = write_corpora(tmp_path / "own")
    fields = {**blend_config, "blend": [{"path": corpora["plain"], "weight": 1.0}]}
    config = tmp_path / "c.json"
    config.write_text(json.dumps(fields))
    cache = here.build(fields, tmp_path / "before", "c").path
    words = {
        "build": ["build", config, "-o", shared],
        "check": ["check", "--json", corpora["plain"]],
        "localize": ["localize", cache, "--store", shared / "local"],
    }[command]
    victim = corpora["plain"] + suffix
    place = {"build": "planning", "check": "outline", "localize": "copying"}[command]
    program = (os.sys.executable, "-m", "tests.faults.shrinker", victim, place, "--")  # type: ignore[attr-defined]
    done = start(words, program=program)
    assert done.returncode == 3, (done.returncode, done.stderr)
    assert victim in done.stderr + done.stdout
    assert errno.errorcode[errno.EIO] not in done.stderr
