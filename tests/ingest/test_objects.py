"""Inputs from a bucket and corpora to one: the corpora of files, byte for byte."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from distcache.corpus import bin_path, idx_path, open_idx
from distcache.corpus.fetched import fetched_indices
from distcache.corpus.loss import loss_path
from distcache.corpus.receipt import receipt_path
from distcache.edit.copy_corpora import copy_corpora
from distcache.errors import ConfigError, NotReady
from distcache.ingest.objects import ObjectWork, _below
from distcache.ranks.communicator import Communicator
from distcache.ranks.progress import NullProgress
from tests.support import here, texts
from tests.support.buckets import fresh_process_of_buckets, name_of, put_corpus
from tests.support.processes import start
from tests.support.scripted_s3 import ScriptedS3
from tests.support.threads import run_ranks

pytestmark = pytest.mark.slow


def test_text_in_a_bucket(server: ScriptedS3, tmp_path: Path) -> None:
    """The corpus is that of the same files, and nothing else is left on the disk."""
    documents = texts.documents(60)
    texts.train_bpe(tmp_path / "tokenizer.json", documents)
    texts.write_jsonl(tmp_path / "a.jsonl", documents[:30])
    texts.write_jsonl(tmp_path / "b.jsonl", documents[30:])
    for name in ("a", "b"):
        server.put(f"lake/text/{name}.jsonl", (tmp_path / f"{name}.jsonl").read_bytes())
    words = ["ingest", "text", "--tokenizer", tmp_path / "tokenizer.json", "--work"]
    words += [tmp_path / "work"]
    inputs = [f"s3://lake/text/{name}.jsonl" for name in ("a", "b")]
    out = tmp_path / "web"
    done = start([*words, *inputs, "-o", out], environment=server.environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(out)]
    local = start([*words, tmp_path / "a.jsonl", tmp_path / "b.jsonl", "-o", tmp_path / "same"])
    assert local.returncode == 0, local.stderr
    for path in (idx_path, bin_path):
        pair = [Path(path(str(tmp_path / name))).read_bytes() for name in ("web", "same")]
        assert pair[0] == pair[1]
    assert [p for p in (tmp_path / "work").rglob("*") if p.is_file()] == []


def test_the_tokens_of_a_corpus_in_a_bucket(
    server: ScriptedS3, corpora: dict[str, str], tmp_path: Path
) -> None:
    """They are compared with its receipt."""
    prefix = str(tmp_path / "merged")
    here.merge([corpora["plain"]], prefix)
    url = put_corpus(server, prefix, "s3://lake/corpora/web")
    server.put(name_of(receipt_path(url)), Path(receipt_path(prefix)).read_bytes())
    words = ["check", url, "--tokens"]
    checked = start(words, environment=server.environment)
    assert checked.returncode == 0, checked.stderr
    server.put(name_of(bin_path(url)), bytes(len(server.objects[name_of(bin_path(url))])))
    assert start(words, environment=server.environment).returncode == 3


def test_what_a_directory_of_a_bucket_yields(server: ScriptedS3, tmp_path: Path) -> None:
    """As one of files: no markers of folders, nothing hidden or temporary, no other suffix."""
    texts.train_bpe(tmp_path / "tokenizer.json", texts.documents(20))
    for name in ("a.jsonl", "sub/b.jsonl", "_temporary/0/c.jsonl", ".git/d.jsonl", "_SUCCESS"):
        server.put(f"lake/web/{name}", b'{"text": "x"}\n')
    for name in ("sub/", "README.md"):
        server.put(f"lake/web/{name}", b"")
    words = ["ingest", "text", "s3://lake/web/", "--tokenizer", tmp_path / "tokenizer.json"]
    words += ["--work", tmp_path / "work"]
    done = start([*words, "-o", tmp_path / "out", "--json"], environment=server.environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["documents"] == 2
    refused = start([*words, "-o", "s3://lake/out/"], environment=server.environment)
    assert refused.returncode == 2


def test_corpora_are_merged(server: ScriptedS3, corpora: dict[str, str], tmp_path: Path) -> None:
    """By three ranks; each object is fetched once, and a loss mask goes along."""
    urls = [put_corpus(server, corpora[name], f"s3://lake/in/{name}") for name in ("plain", "tiny")]
    item = open_idx(corpora["plain"]).item_size
    tokens = len(server.objects["lake/in/plain.bin"]) // item
    mask = (b"\1\0" * tokens)[:tokens]
    server.put("lake/in/plain.loss", mask)
    out = str(tmp_path / "merged")

    def rank(communicator: Communicator) -> None:
        work = ObjectWork(communicator, str(tmp_path / "work"), [*urls, out], NullProgress())
        copy_corpora(communicator, work.corpora(urls), out, 1, NullProgress())
        work.remove()

    server.script()
    assert run_ranks(3, rank) == (3 * [None], [])
    for suffix in (".idx", ".bin"):
        read = [r for r in server.requests if r.method == "GET" and r.name.endswith(suffix)]
        fetched = sum(request.size for request in read if "/in/" in request.name)
        assert fetched == sum(len(server.objects[name_of(url) + suffix]) for url in urls)
    prefixes = [corpora[name] for name in ("plain", "tiny")]
    here.merge(prefixes, tmp_path / "both")
    for path in (idx_path, bin_path):
        pair = [Path(path(str(tmp_path / name))).read_bytes() for name in ("merged", "both")]
        assert pair[0] == pair[1]
    ones = b"\1" * (len(server.objects["lake/in/tiny.bin"]) // item)
    assert Path(loss_path(out)).read_bytes() == mask + ones


def test_a_command_from_a_bucket_again(
    server: ScriptedS3, corpora: dict[str, str], tmp_path: Path
) -> None:
    """It finds what it has made, whose receipt names objects; another object is another corpus."""
    url = put_corpus(server, corpora["plain"], "s3://lake/in/plain")
    server.put("lake/a.jsonl", b'{"input_ids": [1, 2]}\n')
    commands = {
        "merged": ["merge", url],
        "made": ["ingest", "tokens", "s3://lake/a.jsonl", "--vocab-size", "9"],
    }
    for again in (False, True):
        for name, own in commands.items():
            words = [*own, "-o", tmp_path / name, "--work", tmp_path / f"work{again}"]
            done = start(words, environment=server.environment)
            assert done.returncode == 0, done.stderr
    inputs = {
        name: json.loads(Path(receipt_path(str(tmp_path / name))).read_text())["inputs"]
        for name in commands
    }
    assert inputs["merged"][0]["path"] == url
    assert inputs["made"][0]["path"] == "s3://lake/a.jsonl"
    server.put("lake/a.jsonl", b'{"input_ids": [1, 3]}\n')
    words = [*commands["made"], "-o", tmp_path / "made", "--work", tmp_path / "work"]
    assert start(words, environment=server.environment).returncode == 7
    server.put("lake/a.jsonl", b'{"input_ids": [1, 30]}\n')
    words = [*commands["made"], "-o", tmp_path / "wrong", "--work", tmp_path / "work"]
    done = start(words, environment=server.environment)
    assert "distcache: s3://lake/a.jsonl: line 1" in done.stderr, done.stderr


def test_standard_input_is_named(tmp_path: Path) -> None:
    """In receipts and in errors."""
    words = ["ingest", "tokens", "-", "--format", "jsonl", "--vocab-size", "9"]
    words += ["-o", tmp_path / "out", "--work", tmp_path / "work"]
    wrong = start(words, text='{"input_ids": [10]}\n')
    assert wrong.returncode == 3
    assert "distcache: standard input: line 1" in wrong.stderr
    for _ in range(2):
        done = start(words, text='{"input_ids": [1]}\n')
        assert done.returncode == 0, done.stderr
    (entry,) = json.loads(Path(receipt_path(str(tmp_path / "out"))).read_text())["inputs"]
    assert entry["path"] == "standard input"
    assert start(words, text='{"input_ids": [2]}\n').returncode == 7


def test_what_was_fetched_is_not_fetched_again(server: ScriptedS3, tmp_path: Path) -> None:
    """What was fetched is not fetched again unless the object has changed."""
    server.put("lake/a.jsonl", b"one")
    for content, size in ((b"one", 3), (b"one", 0), (b"other", 5)):
        if server.objects["lake/a.jsonl"] != content:
            server.modified["lake/a.jsonl"] += 100
            server.objects["lake/a.jsonl"] = content
        server.script()
        work = ObjectWork(here.ALONE, str(tmp_path), ["s3://lake/a.jsonl"], NullProgress())
        (path,) = work.inputs(["s3://lake/a.jsonl"])
        assert Path(path).read_bytes() == content
        assert server.bytes_of() == size
        assert work._lock is not None
        os.close(work._lock)  # as a killed process does


def test_the_index_of_an_array_comes_with_it(server: ScriptedS3, tmp_path: Path) -> None:
    """Under any name; what an earlier run has left of an index that is gone is not read."""
    for name in ("b.bin", "b.bin.index"):
        server.put(f"lake/raw/{name}", b"12345678")
    for there in (True, False):
        work = ObjectWork(here.ALONE, str(tmp_path), ["s3://lake/raw/"], NullProgress())
        (array,) = work.inputs(["s3://lake/raw/"], None, "raw")
        assert Path(f"{array}.index").exists() == there
        server.objects.pop("lake/raw/b.bin.index", None)
        assert work._lock is not None
        os.close(work._lock)  # as a killed process does


def test_paths_are_left_alone(tmp_path: Path) -> None:
    """No directory is made."""
    work = ObjectWork(here.ALONE, str(tmp_path / "work"), ["a.jsonl", "data/b"], NullProgress())
    assert work.inputs(["a.jsonl"]) == ["a.jsonl"]
    assert work.corpora(["data/a"]) == ["data/a"]
    work.remove()
    assert not (tmp_path / "work").exists()


def test_what_is_not_there(server: ScriptedS3, tmp_path: Path) -> None:
    """What is not there is named."""
    work = ObjectWork(here.ALONE, str(tmp_path / "work"), ["s3://lake/none.jsonl"], NullProgress())
    with pytest.raises(Exception, match=r"s3://lake/none\.jsonl: no such object"):
        work.inputs(["s3://lake/none.jsonl"])


def test_a_directory_without_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory without objects is no input."""
    config = tmp_path / "msc.yaml"
    provider = {"type": "file", "options": {"base_path": str(tmp_path / "data")}}
    config.write_text(json.dumps({"profiles": {"mine": {"storage_provider": provider}}}))
    (tmp_path / "data" / "some").mkdir(parents=True)
    with fresh_process_of_buckets(monkeypatch, {"MSC_CONFIG": str(config)}):
        work = ObjectWork(here.ALONE, str(tmp_path / "work"), ["msc://mine/some/"], NullProgress())
        with pytest.raises(NotReady, match="no objects below"):
            work.inputs(["msc://mine/some/"])
        (tmp_path / "data" / "some" / "a.jsonl").write_text("x")
        (path,) = work.inputs(["msc://mine/some/"])
        assert Path(path).read_text() == "x"


def test_inputs_are_removed_at_the_end(
    server: ScriptedS3, corpora: dict[str, str], tmp_path: Path
) -> None:
    """And a second job that does the same is told to wait."""
    url = put_corpus(server, corpora["plain"], "s3://lake/in/plain")
    out = str(tmp_path / "merged")
    work = ObjectWork(here.ALONE, str(tmp_path / "work"), [url, out], NullProgress())
    with pytest.raises(ConfigError, match="in use by another job"):
        ObjectWork(here.ALONE, str(tmp_path / "work"), [url, out], NullProgress())
    here.merge(work.corpora([url]), out)
    work.remove()
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize("command", ["convert", "materialize", "merge", "select"])
def test_commands_that_write_files(command: str, corpora: dict[str, str]) -> None:
    """Commands that write files say that they do."""
    done = start([command, corpora["plain"], "-o", "s3://lake/out"])
    assert done.returncode == 2
    assert "cannot be in a bucket" in done.stderr


def test_tokens_that_were_replaced_since_they_were_examined(
    server: ScriptedS3, corpora: dict[str, str]
) -> None:
    """They are a fault, also if nobody has read of the object before."""
    url = put_corpus(server, corpora["plain"], "s3://lake/plain")
    with fetched_indices(here.ALONE, [url], NullProgress()):
        facts = here.sound(url)
        assert here.audit({url: facts}, {}, vocabulary=60_000) == []
        server.put("lake/plain.bin", server.objects["lake/plain.bin"][::-1])
        (fault,) = here.audit({url: facts}, {}, vocabulary=60_000)
        assert "s3://lake/plain.bin: is another object" in fault.message


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("*.jsonl", ["a.jsonl", "b.jsonl"]),
        ("[ab].jsonl", ["a.jsonl", "b.jsonl"]),
        ("?.jsonl", ["a.jsonl", "b.jsonl"]),
        ("*/*.jsonl", ["deep/c.jsonl"]),
        ("**/*.jsonl", ["a.jsonl", "b.jsonl", "deep/c.jsonl", "deep/er/d.jsonl"]),
        ("deep/**", ["deep/c.jsonl", "deep/er/d.jsonl", "deep/note.txt"]),
        (".h*", [".hidden.jsonl"]),
    ],
)
def test_patterns_of_objects(server: ScriptedS3, pattern: str, found: list[str]) -> None:
    """As those of files: a star is within a name, and what is hidden has to be named."""
    names = ("a.jsonl", "b.jsonl", "deep/c.jsonl", "deep/er/d.jsonl", "deep/note.txt")
    for name in (*names, ".hidden.jsonl", "deep/.x/e.jsonl", "odd#?.csv"):
        server.put(f"lake/text/{name}", b"{}\n")
    assert _below(f"s3://lake/text/{pattern}", None) == [f"s3://lake/text/{n}" for n in found]


def test_a_pattern_that_matches_no_object(server: ScriptedS3) -> None:
    """It is said below which directory."""
    server.put("lake/text/a.jsonl", b"{}\n")
    with pytest.raises(NotReady, match=r"\*.parquet: matches no object below s3://lake/text/"):
        _below("s3://lake/text/*.parquet", None)
    with pytest.raises(ConfigError, match="not in the bucket"):
        _below("s3://la*/text/a", None)
