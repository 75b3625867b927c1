"""`trace`, `report` and `rest` on the command line."""

from __future__ import annotations

import gzip
import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer
from typer.testing import CliRunner

import distcache
from distcache.cli.main import app
from distcache.corpus.idx import open_idx
from distcache.errors import DistcacheError
from tests.ledger.test_steps import line
from tests.orders.orders import Tokens, build_numbered
from tests.support.processes import start
from tests.support.texts import train_bpe, write_jsonl


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of three corpora whose tokens are their running numbers."""
    return build_numbered(tmp_path_factory.mktemp("ledger"))


def run(*words: str | Path, code: int = 0) -> str:
    """Run a command, those of the ledger in this process; return what it writes, or its error."""
    if words[0] not in ("trace", "report", "rest"):
        done = start(words)
        assert done.returncode == code, done.stderr
        return done.stdout
    result = CliRunner().invoke(app, list(map(str, words)))
    if isinstance(result.exception, DistcacheError):
        assert result.exception.exit_code == code, result.exception
        return str(result.exception)
    assert result.exit_code == code, result.exception or result.output
    return result.stdout


def rows(*words: str | Path) -> list[dict[str, Any]]:
    """Return the rows that a command writes as lines of JSON."""
    return [json.loads(line) for line in run(*words, "--json").splitlines()]


def test_steps_by_options(cache: Path) -> None:
    """Each step has its samples, with micro batch, rank and slot, and the parts of documents."""
    words = ["--global-batch-size", "8", "--micro-batch-size", "2", "--data-parallel-size", "2"]
    found = rows("trace", cache, "--steps", "3:5", *words)
    assert sorted({row["step"] for row in found}) == [3, 4]
    truth = Tokens(cache)
    samples = itertools.groupby(found, key=lambda row: row["position"])
    for (position, parts), wanted in zip(samples, range(16, 32), strict=True):
        own = list(parts)
        corpus, tokens = truth.of(position)
        offset = position % 8
        assert position == wanted
        for row in own:
            assert (row["step"], row["job"]) == (1 + position // 8, 0)
            assert (row["skipped"], row["rolled_back"]) == (False, False)
            assert row["corpus"] == truth.cache.prefixes[corpus]
            place = (row["micro_batch"], row["rank"], row["slot"])
            assert place == (offset // 4, offset % 4 // 2, offset % 2)
        assert sum(row["end"] - row["begin"] for row in own) == len(tokens)


def test_steps_by_a_command_or_a_log_are_the_same(cache: Path, tmp_path: Path) -> None:
    """A training command, its options in a log, and the lines of the log say the same steps."""
    log = tmp_path / "train.log"
    log.write_text("".join(line(n, 8 * n, 8) for n in range(1, 11)))
    command = [
        "--",
        "torchrun",
        "pretrain_gpt.py",
        "--global-batch-size",
        "8",
        "--seq-length",
        "16",
    ]
    by_log = rows("trace", cache, "--steps", "3:5", "--log", log)
    by_command = run("trace", cache, "--steps", "3:5", "--json", *command)
    assert by_log == [json.loads(line) for line in by_command.splitlines()]
    later = rows("trace", cache, "--steps", "3", "--log", log, "--begin-at", "8")
    assert later[0]["position"] == 8


def test_a_table_has_a_row_for_each_part(cache: Path, tmp_path: Path) -> None:
    """Parquet has the rows of JSON, with the columns that are known."""
    out = tmp_path / "steps.parquet"
    words = ["trace", cache, "--steps", "1:11", "--global-batch-size", "10"]
    said = json.loads(run(*words, "-o", out, "--json"))
    table = pq.read_table(out).to_pylist()
    assert table == rows(*words)
    assert said == [{"out": str(out), "rows": len(table)}]
    assert {"step", "source"} <= set(table[0])
    assert not {"rank", "slot"} & set(table[0])
    words = ["--positions", "0:4", "--global-batch-size", "10", "--no-sources"]
    run("trace", cache, *words, "-o", out)
    assert not {"step", "rank", "source", "row"} & set(pq.read_schema(out).names)


def test_columns_are_those_of_all_jobs(cache: Path, tmp_path: Path) -> None:
    """A job whose steps were skipped, or rolled back, has its columns after one without any."""
    logs = [tmp_path / "0.log", tmp_path / "1.log"]
    logs[0].write_text("".join(line(n, 8 * n, 8) for n in range(1, 7)))
    again = "".join(line(n, 8 * n, 8) for n in (5, 7, 8, 9))  # 6 is skipped
    logs[1].write_text(
        "------------------------ arguments ------------------------\n"
        "  iterations_to_skip .............. [6]\n"
        "-------------------- end of arguments ---------------------\n"
        " successfully loaded checkpoint from /c [ t 1/1, p 1/1 ] at iteration 4\n" + again
    )
    words = ["trace", cache, "--steps", "1:10", "--log", logs[0], "--log", logs[1]]
    found = rows(*words)
    run(*words, "-o", tmp_path / "t.parquet")
    assert pq.read_table(tmp_path / "t.parquet").to_pylist() == found
    assert {row["step"] for row in found if row["rolled_back"]} == {5, 6}
    assert {(row["step"], row["job"]) for row in found if row["skipped"]} == {(6, 1)}


LOADED = " successfully loaded checkpoint from /c [ t 1/1, p 1/1 ] at iteration {}\n"


def test_what_was_seen_in_a_step_that_no_log_has_is_found(cache: Path, tmp_path: Path) -> None:
    """A document of a job whose log is lost: its position is said, without a step, and a note."""
    log = tmp_path / "later.log"
    log.write_text(LOADED.format(5) + "".join(line(n, 8 * n, 8) for n in (6, 7, 8)))
    document = rows("trace", cache, "--positions", "3")[0]
    word = f"{document['corpus']}:{document['document']}"
    done = start(["trace", cache, "--find", word, "--log", log, "--split", "train", "--json"])
    assert done.returncode == 0, done.stderr
    found = [json.loads(row) for row in done.stdout.splitlines()]
    (early,) = [row for row in found if row["position"] == 3]
    unknown = ("step", "job", "skipped", "rolled_back")
    assert [early[name] for name in unknown] == [None] * 4
    assert "samples 0 to 39 of the run were consumed by steps after iteration 0" in done.stderr
    table = tmp_path / "t.parquet"
    run("trace", cache, "--find", word, "--log", log, "--split", "train", "-o", table)
    assert pq.read_table(table).to_pylist() == found


def test_logs_are_packed_or_several_or_of_other_forks(cache: Path, tmp_path: Path) -> None:
    """By gzip; as the words that a shell makes of a pattern; and with = for a colon."""
    lines = [line(n, 8 * n, 8) for n in range(1, 13)]
    whole = tmp_path / "whole.log"
    whole.write_text("".join(lines))
    steps = ["trace", cache, "--steps", "1:13"]
    expected = rows(*steps, "--log", whole)
    packed = tmp_path / "whole.log.gz"
    packed.write_bytes(gzip.compress(whole.read_bytes()))
    assert rows(*steps, "--log", packed) == expected
    files = [tmp_path / f"job-{number}.log" for number in (10, 8, 9)]  # as a shell sorts them
    for file, begin in zip(files, (8, 0, 4), strict=True):
        file.write_text((LOADED.format(begin) if begin else "") + "".join(lines[begin : begin + 4]))
    found = rows(*steps, "--log", *files, "--global-batch-size", "8")
    assert [row["job"] for row in found] == [(row["step"] - 1) // 4 for row in expected]
    assert [row | {"job": 0} for row in found] == expected
    other = tmp_path / "other.log"
    other.write_text(
        "".join(
            f"iteration={n:8d}/ 100 | consumed_samples={8 * n:9d} | global_batch_size=    8 | \n"
            for n in range(1, 13)
        )
    )
    assert rows(*steps, "--log", other) == expected


def test_options_count_instead_of_those_of_a_log(cache: Path, tmp_path: Path) -> None:
    """What a log lacks, or a release that it does not name, is given beside it."""
    log = tmp_path / "train.log"
    text = "--- arguments ---\n iterations_to_skip .... [2]\n train_iters .... nan\n"
    text += "--- end of arguments ---\n" + "".join(line(n, 8 * n, 8) for n in (5, 10))
    log.write_text(text.replace("---\n iter", "---\n log_interval ..... 5\n iter"))
    done = start(["trace", cache, "--steps", "1:11", "--log", log, "--json"])
    assert done.returncode == 0, done.stderr
    assert "train_iters: 'nan' is no value of this option" in done.stderr
    assert "give --megatron RELEASE" in done.stderr
    words = ["--megatron", "0.16", "--micro-batch-size", "2", "--data-parallel-size", "2"]
    found = rows("trace", cache, "--steps", "1:11", "--log", log, *words)
    assert {row["step"] for row in found if row["skipped"]} == {3}
    assert {row["rank"] for row in found} == {0, 1}


def test_what_is_left_of_a_logged_run(cache: Path, tmp_path: Path) -> None:
    """A log says how many samples were consumed, and which of them training did not learn from."""
    log = tmp_path / "train.log"
    text = "--- arguments ---\n iterations_to_skip .... [2]\n--- end of arguments ---\n"
    log.write_text(text + "".join(line(n, 8 * n, 8) for n in (1, 3, 4, 5)))
    done = start(["rest", cache, "--log", log, "-o", tmp_path / "a", "--json"])
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["after"][0]["samples"] == 40
    assert found["after"][0]["learned"] == [[0, 8], [16, 40]]
    said = "the run consumed 40 samples: 5 steps of 1 job, 1 step skipped"
    assert said in done.stderr
    inputs = sum(
        row["end"] - row["begin"] - row["label_only"]
        for row in rows("trace", cache, "--positions", "0:40")
        if not 8 <= row["position"] < 16
    )
    assert sum(one["trained_tokens"] for one in found["corpora"]) == inputs
    done = start(["report", cache, "--log", log, "--json"])
    assert json.loads(done.stdout)["samples"] == 40
    assert said in done.stderr
    for words, message in [
        (["--samples", "3", "--log", log], "give one of the two"),
        ([], "give what training has consumed: --log FILE, --samples N"),
    ]:
        assert message in run("rest", cache, "-o", tmp_path / "b", *words, code=2)
    words = ["--log", log, "--split", "valid"]
    assert "leave --samples and --split out" in run("report", cache, *words, code=2)


def test_documents_are_found_without_training(tmp_path: Path) -> None:
    """In a cache that has validation only."""
    valid = build_numbered(tmp_path, split="0,1,0", samples={"train": 0, "valid": 20, "test": 0})
    found = rows("trace", valid, "--find", f"{tmp_path}/corpora/short:all")
    assert {row["split"] for row in found} == {"valid"}


def test_what_cannot_be_asked_is_refused(cache: Path, tmp_path: Path) -> None:
    """Each wrong question gets one clear answer."""
    empty = tmp_path / "empty.log"
    empty.write_text("nothing\n")
    pipe, cut = tmp_path / "pipe", tmp_path / "cut.log.gz"
    os.mkfifo(pipe)
    cut.write_bytes(gzip.compress(line(1, 8, 8).encode() * 1000)[:-20])
    for words, said in [
        ([], "give one of --steps, --positions and --find"),
        (["--steps", "1", "--positions", "2"], "give one of"),
        (["--steps", "1"], "follows from --log FILE"),
        (["--step", "5:8"], "did you mean --steps?"),
        (["--steps", "x"], "expected a number, or A:B"),
        (["--steps", "4:4", "--global-batch-size", "8"], "has nothing in it"),
        (["--steps", "0:2", "--global-batch-size", "8"], "steps have numbers from 1 on"),
        (["--positions", "0:99999"], "from 0 on"),
        (["--steps", "1", "--log", empty], "has no line of an iteration"),
        (["--steps", "1", "--log", tmp_path], "is a directory: give its logs, as --log"),
        (["--steps", "1", "--log", pipe], "Not a regular file"),
        (["--steps", "1", "--log", tmp_path / "none.log"], "No such file"),
        (["--steps", "1", "--log", cut], "cannot be read"),
        (["--steps", "1", "--global-batch-size", "9" * 20], "is more than"),
        (["--steps", "1", "--global-batch-size", "4", "--train-samples", "9" * 20], "is more than"),
        (["--find", "nowhere:5"], "is neither a corpus"),
        (["--find", "nowhere"], "expected CORPUS:NUMBERS"),
        (["--steps", "1", "--global-batch-size", "8", "--datset", "1"], "did you mean --dataset?"),
        (["--steps", "1", "--global-batch-size", "8", "--micro-batch-size", "0"], "be positive"),
        (["--find", f"{cache.parent.parent}/corpora/short:9999"], "has 200 documents"),
        (["--positions", ""], "--positions"),
        (["--positions", "1", "--split", "test"], "has no split 'test'"),
        (
            ["--positions", "1", "--text", "1"],
            "no receipt names a tokenizer; give --tokenizer FILE",
        ),
    ]:
        assert said in run("trace", cache, *words, code=2), words


def test_a_directory_of_caches_is_named(cache: Path, tmp_path: Path) -> None:
    """By all three, with the caches in it."""
    for words in (["trace", "--positions", "1"], ["report"], ["rest", "--samples", "9"]):
        more = ["-o", tmp_path / "rest"] if words[0] == "rest" else []
        said = run(words[0], cache.parent, *words[1:], *more, code=2)
        assert f"is a directory; the caches in it are {cache}" in said


def test_a_pattern_that_no_shell_has_expanded(cache: Path, tmp_path: Path) -> None:
    """Its files are in the order of their numbers; one without a line is said."""
    for number, steps in ((9, (1, 2, 3)), (10, (3, 4)), (11, ())):
        text = "".join(line(n, 8 * n, 8) for n in steps)
        (tmp_path / f"job-{number}.out").write_text(text)
    done = start(["trace", cache, "--steps", "4", "--log", tmp_path / "job-*.out", "--json"])
    assert done.returncode == 0, done.stderr
    assert f"note: {tmp_path}/job-11.out: has no line of an iteration" in done.stderr
    assert "the run consumed 32 samples: 5 steps of 2 jobs, 1 step rolled back" in done.stderr
    assert "matches no file" in run(
        "trace", cache, "--steps", "4", "--log", tmp_path / "no-*", code=2
    )


def test_a_log_of_another_run_is_said(cache: Path, tmp_path: Path) -> None:
    """Steps that took more samples than there are cannot be of this cache."""
    log = tmp_path / "train.log"
    log.write_text("".join(line(n, 100 * n, 100) for n in range(1, 11)))
    done = start(["trace", cache, "--steps", "1:11", "--log", log])
    assert done.returncode == 0
    assert "took samples beyond" in done.stderr


def test_a_report(cache: Path, tmp_path: Path) -> None:
    """Numbers as JSON, a table for people, and a page."""
    page = tmp_path / "report.html"
    found = json.loads(run("report", cache, "-o", page, "--json"))
    assert len(found["corpora"]) == 3
    assert page.read_text().count("<svg") == 6
    assert page.stat().st_size < 1_500_000
    said = run("report", cache, "--window", "2steps", "--global-batch-size", "10")
    assert "13 windows" in said
    assert "expected a number" in run("report", cache, "--window", "x", code=2)
    assert "--global-batch-size" in run("report", cache, "--window", "3steps", code=2)
    said = run("report", cache, "-o", tmp_path / "none" / "r.html", code=2)
    assert "there is no directory" in said
    assert "is a directory" in run("report", cache, "-o", tmp_path, code=2)
    assert "unknown option or word: --widow" in run("report", cache, "--widow", "3", code=2)


def test_what_is_left_is_said(cache: Path, tmp_path: Path) -> None:
    """Views, a configuration that builds, and Megatron's options."""
    out = tmp_path / "rest"
    said = run("rest", cache, "--samples", "100", "-o", out)
    assert "--per-split-data-args-path" in said
    rest = json.loads((out / "rest.json").read_text())
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "sequence_length": 24,
                "seed": 1,
                "samples": {"train": 50, "valid": 5, "test": 0},
                "mid_level_dataset_surplus": 0.5,
                "blend_per_split": rest["blend_per_split"],
            }
        )
    )
    run("build", config, "-o", tmp_path, "--name", "again")
    assert "expected CACHE@SAMPLES" in run(
        "rest", cache, "--samples", "1", "-o", out, "--and", "x", code=2
    )
    cyclic = ["--dataloader-type", "cyclic", "--micro-batch-size", "2", "--data-parallel-size", "2"]
    words = ["rest", cache, "--samples", "300", "-o", tmp_path / "cyclic", *cyclic]
    found = json.loads(run(*words, "--global-batch-size", "4", "--json"))
    assert found["corpora"][0]["times"] >= 1


def test_data_is_removed_and_shown_to_be(tmp_path: Path) -> None:
    """Rows are found in a cache, dropped from the corpus, and in no sample of the next cache."""
    chosen = np.random.default_rng(4)
    texts = [f"text {n} " + "word " * int(chosen.integers(3, 60)) for n in range(400)]
    texts[100] = ""
    train_bpe(tmp_path / "tokenizer.json", texts)
    write_jsonl(tmp_path / "a.jsonl", texts)
    words = ["--tokenizer", tmp_path / "tokenizer.json", "--append-eod", "--eod", "<|endoftext|>"]
    run("ingest", "text", tmp_path / "a.jsonl", "-o", tmp_path / "a", *words)
    config: dict[str, Any] = {
        "sequence_length": 64,
        "seed": 1,
        "samples": {"train": 300, "valid": 0, "test": 0},
        "split": "100,0,0",
        "blend": [str(tmp_path / "a")],
    }
    (tmp_path / "c.json").write_text(json.dumps(config))
    run("build", tmp_path / "c.json", "-o", tmp_path, "--name", "first")
    first, lines = tmp_path / "first.h5", str(tmp_path / "rows.txt")
    Path(lines).write_text("a.jsonl:120-123\r\n\na.jsonl:300\n", encoding="utf-8-sig")
    parts = rows("trace", first, "--find", lines, "--text", "3")
    assert {part["line"] for part in parts} == {120, 121, 122, 123, 300}
    assert {part["document"] for part in parts} == {118, 119, 120, 121, 298}
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    told = [part for part in parts if "text" in part]
    assert len({part["position"] for part in told}) == 3
    for part in told:
        ids = tokenizer.encode(texts[part["line"] - 1], add_special_tokens=False).ids
        own = [*ids, tokenizer.token_to_id("<|endoftext|>")][part["begin"] : part["end"]]
        assert part["text"] == tokenizer.decode(own, skip_special_tokens=False)
    run("trace", first, "--find", lines, "-o", tmp_path / "drop.npy")
    assert np.load(tmp_path / "drop.npy").tolist() == [118, 119, 120, 121, 298]
    view = tmp_path / "clean"
    run("select", tmp_path / "a", "-o", view, "--drop", tmp_path / "drop.npy")
    config["blend"] = [str(view)]
    (tmp_path / "c.json").write_text(json.dumps(config))
    run("build", tmp_path / "c.json", "-o", tmp_path, "--name", "second")
    assert rows("trace", tmp_path / "second.h5", "--find", lines) == []
    kept = rows("trace", tmp_path / "second.h5", "--find", "a.jsonl:124")
    assert {part["line"] for part in kept} == {124}
    assert len(open_idx(str(view)).lengths) == len(open_idx(str(tmp_path / "a")).lengths) - 5


def test_who_got_the_samples_of_dealt_steps(cache: Path) -> None:
    """Micro batch, rank and slot are those of the deal; the ranks may be the deal's."""
    words = ["--global-batch-size", "16", "--micro-batch-size", "2", "--data-parallel-size", "4"]
    log = [*words, "--deal", "16x4x2"]
    steps = rows("trace", cache, "--steps", "2:4", *log)
    places = {
        row["position"]: (row["step"] - 1) * 16
        + 8 * row["micro_batch"]
        + 2 * row["rank"]
        + row["slot"]
        for row in steps
    }
    dealt = distcache.open(cache).numpy_dataset("train", deal="16x4x2", position=True)
    assert {int(dealt[place]["position"]): place for place in range(16, 48)} == places
    assert list(places.values()) != list(places)
    one = steps[0]
    found = rows("trace", cache, "--find", f"{one['corpus']}:{one['document']}", *log)
    assert one in [row for row in found if row["step"] == one["step"]]
    bare = rows("trace", cache, "--steps", "2:4", *words[:2], "--deal", "16x4x2")
    assert bare == steps


def test_steps_and_ranks_that_are_not_of_a_deal(cache: Path) -> None:
    """Are errors that name what is."""
    words = ["trace", cache, "--steps", "2", "--global-batch-size", "16"]
    assert "samples 0 to 15, which are no step" in run(*words, "--deal", "8x4x2", code=2)
    ranks = ["--micro-batch-size", "4", "--data-parallel-size", "4"]
    said = run(*words, *ranks, "--deal", "16x4x2", code=2)
    assert "the run has micro batches of 4 on 4 ranks" in said
    assert "give --log" in run("trace", cache, "--positions", "2", "--deal", "8x4x2", code=2)


def test_how_long_ranks_wait(cache: Path) -> None:
    """In order and with a deal; the page says it, too."""
    words = ["report", cache, "--deal", "16x4x2", "--model", "30"]
    waits = json.loads(run(*words, "--json"))["waits"]
    assert 0 <= waits["dealt"] < waits["in_order"] < waits["in_order_by_micro_batch"] < 1
    said = run(*words)
    assert f"ranks wait {waits['in_order']:.1%} of a step, {waits['dealt']:.1%} with a deal" in said
    assert "unequal ranks" in said
    assert "expected 1B" in run("report", cache, "--deal", "16x4x2", "--model", "9B", code=2)
    assert "--model needs --deal" in run("report", cache, "--model", "8B", code=2)
    assert "one batch size" in run(*words, "--global-batch-size", "24", code=2)
