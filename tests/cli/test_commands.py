"""The commands: what they print, for people and for scripts, and how they end."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distcache.cache import open_cache
from distcache.cli.commands import COMMANDS, PANELS, load
from tests.support import here
from tests.support.corpora import write_lengths
from tests.support.processes import DISTCACHE, start
from tests.support.texts import write_shard

pytestmark = pytest.mark.slow


@pytest.fixture
def config(blend_config: dict[str, Any], tmp_path: Path) -> Path:
    """The configuration in a file."""
    path = tmp_path / "blend.json"
    path.write_text(json.dumps(blend_config))
    return path


@pytest.fixture
def cache(config: Path, shared: Path) -> Path:
    """A cache that the command line has built."""
    done = start(["build", config, "-o", shared, "--name", "x"])
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def test_build_prints_the_path(config: Path, cache: Path, shared: Path) -> None:
    """Build prints the path on standard output, alone; progress goes to standard error."""
    assert cache == shared / "x.h5"
    again = start(["build", config, "-o", shared, "--name", "x"])
    assert (again.returncode, again.stdout.strip()) == (0, str(cache))
    assert f"found {cache}" in again.stderr


def test_build_as_json(config: Path, shared: Path) -> None:
    """The outcome on standard output, a line of JSON per event on standard error."""
    done = start(["build", config, "-o", shared, "--json", "--log-format", "json"])
    outcome = json.loads(done.stdout)
    assert outcome["path"].endswith(".h5")
    assert not outcome["reused"]
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert all(event.keys() == {"elapsed", "message", "fraction"} for event in events)
    assert "publishing" in [event["message"] for event in events]


def test_megatrons_options_on_the_command_line(corpora: dict[str, str], shared: Path) -> None:
    """Megatron's options on the command line build the same cache as a file."""
    words = ["--data-path", "0.5", corpora["plain"], "0.5", corpora["second"], "--split", "1"]
    words += ["--seq-length", "32", "--train-samples", "100", "--global-batch-size", "1"]
    words += ["--eval-iters", "0"]
    done = start(["build", "-o", str(shared), *words])
    assert done.returncode == 0, done.stderr
    assert open_cache(done.stdout.strip()).identity["samples"]["train"] == 100


def test_own_options_beside_options_without_a_script(corpora: dict[str, str]) -> None:
    """They may stand before and behind those of Megatron."""
    data = ["--data-path", corpora["plain"], "--split", "1", "--seq-length", "20"]
    data += ["--train-samples", "50", "--global-batch-size", "2", "--eval-interval", "9"]
    for words in (["--megatron", "0.18", *data], [*data, "--megatron", "0.18"]):
        done = start(["plan", *words])
        assert done.returncode == 0, done.stderr


def test_a_whole_training_command(corpora: dict[str, str], shared: Path, tmp_path: Path) -> None:
    """It builds the cache of its options; an export of it is checked against the command."""
    command = (
        f"torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 2 --bf16 --data-path 0.5 "
        f"{corpora['plain']} 0.5 {corpora['second']} --split 1 --seq-length 32 --eval-iters 0 "
        "--eval-interval 10 --train-samples 100 --global-batch-size 1 "
        "--tokenizer-type NullTokenizer --vocab-size 9"
    )
    words = command.split()
    done = start(["build", "-o", shared, "--name", "x", "--", *words])
    assert done.returncode == 0, done.stderr
    file = tmp_path / "command.txt"
    file.write_text(command)
    again = start(["build", f"@{file}", "-o", shared, "--name", "x"])
    assert (again.returncode, again.stdout) == (0, done.stdout)
    planned = start(["plan", "--json", "--megatron", "0.19", "--", *words])
    assert planned.returncode == 0, planned.stderr
    cache = open_cache(done.stdout.strip())
    assert json.loads(planned.stdout)["key"] == cache.key
    to = ["export", cache.path, "--out", tmp_path / "out", "--megatron", "0.19", "--json"]
    exported = start([*to, "--", *words, "--fim-data"])
    assert exported.returncode == 0, exported.stderr
    names = json.loads(exported.stdout)["files"]
    assert {name.split("-")[1] for name in names} == {"GPTFIMDataset", "BlendedDataset"}
    other = start([*to, "--", *words, "--seed", "5"])
    assert other.returncode == 7
    assert "seed: training asks for 5, the cache has 1234" in other.stderr
    shares = list(words)
    shares[shares.index("0.5")] = "0.7"
    weighted = start([*to, "--", *shares, "--mid-level-dataset-surplus", "0.3"])
    assert weighted.returncode == 7
    assert "blends: training asks for" in weighted.stderr
    assert "mid_level_dataset_surplus: training asks for 0.3" in weighted.stderr
    ramped = start([*to, "--", *words, "--rampup-batch-size", "4", "4", "10"])
    assert ramped.returncode == 0, ramped.stderr  # --megatron says that it changes nothing
    launched = ["torchrun", "--nnodes", "2", "--nproc-per-node=2", "pretrain_gpt.py"]
    options = words[words.index("pretrain_gpt.py") + 1 :]
    assert start(["plan", *launched, *options]).returncode == 0  # those of a launcher are its own
    typo = start([*to, "--tokeniser", "f"])
    assert (typo.returncode, "did you mean --tokenizer?" in typo.stderr) == (2, True)
    unknown = start(["plan", "--", *words, "--no-such"])
    assert unknown.returncode == 0
    misspelt = start(["plan", "--rnaks", "4", "--", *words])
    assert misspelt.returncode == 2
    assert "did you mean --ranks" in misspelt.stderr


def test_plan(config: Path, cache: Path) -> None:
    """Key and sizes are those of the cache that is built."""
    done = start(["plan", config, "--ranks", "4", "--json"])
    plan = json.loads(done.stdout)
    opened = open_cache(cache)
    assert plan["key"] == opened.key
    assert plan["file_bytes"] == cache.stat().st_size
    assert len(plan["memory_per_rank"]) == plan["ranks"] == 4
    assert [s["samples"] for s in plan["sections"]] == opened.table("sections")["samples"].tolist()
    table = start(["plan", config]).stdout
    assert plan["key"] in table
    assert "Sections (9)" in table


def test_plan_of_packed_phases(blend_config: dict[str, Any], tmp_path: Path) -> None:
    """It says how full rows are, and what each phase takes."""
    blend = [entry["path"] for entry in blend_config["blend"]]
    phases = [{"samples": n, "weights": [n % 7 + k for k in range(len(blend))]} for n in (100, 50)]
    fields = blend_config | {"pack": True, "blend": blend, "phases": phases}
    fields["samples"] = {"valid": 5, "test": 2}
    (tmp_path / "p.json").write_text(json.dumps(fields))
    plan = json.loads(start(["plan", tmp_path / "p.json", "--json"]).stdout)
    assert all(0 < section["packing"]["fill"] <= 1 for section in plan["sections"])
    assert [phase["begin"] for phase in plan["phases"]] == [0, 100]
    for phase in plan["phases"]:
        assert sum(own["share"] for own in phase["corpora"]) == pytest.approx(1)
    table = start(["plan", tmp_path / "p.json"]).stdout
    assert "Samples of a pass" in table
    assert "passes so far" in table


def test_inspect(cache: Path, blend_config: dict[str, Any]) -> None:
    """Everything about a cache but its arrays."""
    found = json.loads(start(["inspect", cache, "--json"]).stdout)
    assert found["naming"]["tokenizer"] == blend_config["tokenizer"]
    assert [s["prefix"] for s in found["sources"]] == [s["path"] for s in blend_config["blend"]]
    member = found["members"][0]
    assert member["split"] == "train"
    section = found["sections"][member["section"]]
    assert section["arrays"]["document_index"]["dtype"] == "int32"
    assert (found["blends"][0]["exhaustive"], member["blend"]) == (False, 0)
    assert "valid" in start(["inspect", cache]).stdout


def test_verify(cache: Path, corpora: dict[str, str], tmp_path: Path) -> None:
    """Of the cache, and of the corpora it was built from."""
    done = start(["verify", cache, "--corpora", "--json"])
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert (found["corpora"], found["tokens"]) == (3, False)
    assert found["nbytes"] == cache.stat().st_size
    cache.chmod(0o644)
    with open(cache, "r+b") as stream:
        stream.seek(open_cache(cache).header.tables_begin - 1)
        stream.write(b"\x01")
    done = start(["verify", cache])
    assert done.returncode == 4
    assert "block 0" in done.stderr


def test_verify_notices_a_corpus_that_was_tokenized_anew(
    config: Path, blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """Its path is the same, its content is not."""
    moved = str(tmp_path / "moved")
    for suffix in (".idx", ".bin"):
        content = Path(blend_config["blend"][0]["path"] + suffix).read_bytes()
        Path(moved + suffix).write_bytes(content)
    blend_config["blend"][0]["path"] = moved
    config.write_text(json.dumps(blend_config))
    cache = start(["build", config, "-o", shared]).stdout.strip()
    for suffix in (".idx", ".bin"):
        content = Path(blend_config["blend"][1]["path"] + suffix).read_bytes()
        Path(moved + suffix).write_bytes(content)
    done = start(["verify", cache, "--corpora"])
    assert done.returncode == 3
    assert f"{moved}: idx_digest is" in done.stderr
    explained = start(["explain", config, cache])
    assert explained.returncode == 7
    assert "configuration in: blend" in explained.stderr


def test_explain(config: Path, cache: Path, blend_config: dict[str, Any]) -> None:
    """The fields that differ, with what each has."""
    same = start(["explain", config, cache])
    assert (same.returncode, same.stdout.count("\n")) == (0, 1)
    assert "sequence_length" in start(["explain", config, cache, "--all"]).stdout
    swapped = start(["explain", cache, config])
    assert (swapped.returncode, "give the configuration first" in swapped.stderr) == (2, True)
    config.write_text(json.dumps({**blend_config, "seed": 7, "tokenizer": None}))
    done = start(["explain", config, cache, "--json"])
    assert done.returncode == 7
    found = json.loads(done.stdout)
    differing = {field["field"]: field for field in found["fields"] if not field["equal"]}
    assert differing.keys() == {"seed"}
    assert (differing["seed"]["configuration"], differing["seed"]["cache"]) == (7, 99)
    assert found["names_only"] == ["tokenizers differ; export with --tokenizer FILE"]


def test_explain_a_training_command(corpora: dict[str, str], shared: Path) -> None:
    """Whatever follows --, as for build."""
    words = f"pretrain_gpt.py --data-path {corpora['plain']} --split 1 --seq-length 32"
    words += " --eval-iters 0 --train-samples 100 --global-batch-size 1 --eval-interval 10"
    built = start(["build", "-o", shared, "--", *words.split()])
    assert built.returncode == 0, built.stderr
    assert "$.samples" not in built.stderr
    cache = built.stdout.strip()
    assert start(["explain", cache, "--", *words.split()]).returncode == 0
    other = start(["explain", cache, "--", *words.split(), "--seed", "5"])
    assert (other.returncode, other.stderr.count("seed")) == (7, 1)


def test_a_name_that_is_nearly_right(corpora: dict[str, str], tmp_path: Path) -> None:
    """One fault for each corpus, with the nearest name, or those of a directory."""
    plain = corpora["plain"]
    near = start(["check", f"{plain}n", "--json"])
    assert [fault["message"] for fault in json.loads(near.stdout)["faults"]] == [
        f"no such file, nor {plain}n.bin; did you mean {plain}?"
    ]
    folder = json.loads(start(["check", Path(plain).parent, "--json"]).stdout)["faults"]
    assert len(folder) == 1
    assert "it is a directory: give the corpora in it, " in folder[0]["message"]


def test_a_name_of_another_kind(config: Path, corpora: dict[str, str], tmp_path: Path) -> None:
    """A corpus where a cache is expected is named, and a configuration with another suffix."""
    done = start(["report", corpora["plain"]])
    assert done.returncode == 2
    assert "is a corpus; give a cache, which `distcache build` writes" in done.stderr
    other = config.with_suffix(".toml")
    done = start(["build", other, "-o", tmp_path])
    assert done.returncode == 5
    assert f"{other}: no such configuration file; there is {config}" in done.stderr


def test_export(cache: Path, tmp_path: Path) -> None:
    """The options that Megatron needs come with it."""
    done = start(["export", cache, "--out", tmp_path / "out", "--prefix", "/=/elsewhere"])
    assert done.returncode == 0, done.stderr
    assert f"--data-cache-path {tmp_path / 'out'}" in done.stdout
    assert "instead of --data-path" in done.stdout
    assert "/elsewhere/" in next((tmp_path / "out").glob("*-data-args.txt")).read_text()
    as_json = start(["export", cache, "--out", tmp_path / "out", "--json"])
    assert len(json.loads(as_json.stdout)["files"]) == 45


def test_localize_prints_flags_for_a_shell(cache: Path, tmp_path: Path) -> None:
    """Localize prints flags for a shell, as one command line, also where a path has a space."""
    done = start(["localize", cache, "--store", tmp_path / "with space", "--megatron"])
    lines = done.stdout.partition("# for Megatron-Core:\n")[2].replace("\\\n", " ").splitlines()
    flags = shlex.split(lines[0])
    assert flags[0] == "--data-cache-path"
    assert Path(flags[1]).is_dir()
    assert Path(flags[flags.index("--per-dataset-sequences-path") + 1]).is_file()
    assert str(tmp_path / "with space" / "corpora") in " ".join(flags)


def test_check(corpora: dict[str, str], tmp_path: Path) -> None:
    """Every fault of every corpus, in one run; suffixes may be given."""
    assert start(["check", *corpora.values()]).returncode == 0
    Path(tmp_path / "bad.idx").write_bytes(b"MMIDIDX\0\0")
    done = start(
        ["check", corpora["plain"] + ".idx", tmp_path / "bad", tmp_path / "none", "--json"]
    )
    assert done.returncode == 3
    found = json.loads(done.stdout)
    assert [corpus["prefix"] for corpus in found["corpora"]] == [corpora["plain"]]
    assert {fault["prefix"] for fault in found["faults"]} == {
        str(tmp_path / "bad"),
        str(tmp_path / "none"),
    }
    assert "2 of 3 corpora are unsound" in done.stderr


@pytest.mark.few(10)
@pytest.mark.parametrize(
    ("words", "exit_code", "message"),
    [
        (["build", "/none/c.yaml", "-o", "/tmp"], 5, "no such configuration file"),
        (["build", "-o", "/tmp"], 2, "give a configuration file, or a training command"),
        (["build", "x.yaml"], 2, "--out"),
        (["plan", "x.yaml", "--unknown", "1"], 2, "--unknown"),
        (["plan", "x.yaml", "--", "pretrain_gpt.py"], 2, "with a configuration file"),
        (["inspect", "/none/x.h5"], 5, "no such cache"),
        (["export", "/none/x.h5", "--out", "/tmp", "--prefix", "ab"], 2, "expected FROM=TO"),
        (["build", "x.yaml", "-o", "/tmp", "--memory-limit", "lots"], 2, "is not a size"),
        (["build", "x.yaml", "-o", "/tmp", "--name", "a/b"], 2, "file name"),
        (["nothing"], 2, "nothing"),
        (["inspect"], 2, "missing argument"),
        (["plan", "x.yaml", "--ranks", "1000000000"], 2, "65536"),
        (["build", "x.yaml", "-o", "/tmp", "--threads", "10000000"], 2, "1024"),
        (["ready", "/none/x.h5", "--wait", "nan"], 2, "expected a path, and seconds"),
        (["merge", "/none/a", "/none/b", "-o", "/tmp/a\nb/c"], 5, "no such file"),
        (["merge", "/none/\udcff", "-o", "/tmp/c"], 2, "is not UTF-8"),
        (["convert", "/none/\udcff", "-o", "/tmp/c"], 2, "is not UTF-8"),
        (["check", "/none/\udcff"], 2, "is not UTF-8"),
        (["plan", "s3://lake/c.yaml"], 2, "give a path"),
        (["build", "x.yaml", "-o", "s3://lake/x"], 2, "distcache upload"),
        (["build", "x.yaml", "-o", "/tmp", "--reuse", "s3://lake/c.h5"], 2, "give a path"),
        (["explain", "s3://lake/c.yaml", "/none/c.h5"], 2, "give a path"),
        (["check", "s3://lake/a", "--readback", "3"], 2, "give a path"),
        (["doctor", "s3://lake/d"], 2, "give a path"),
        (["submit", "s3://lake/c.yaml", "-o", "/tmp"], 2, "give a path"),
        (["convert", "/none/a", "-o", "s3://lake/c"], 2, "give a path"),
        (["materialize", "s3://lake/v", "-o", "/tmp/c"], 2, "give a path"),
        (["select", "s3://lake/v", "-o", "/tmp/c"], 2, "give a path"),
    ],
)
def test_wrong_use_is_one_clear_error(words: list[str], exit_code: int, message: str) -> None:
    """Wrong use is one clear error with its exit code, and without a traceback."""
    done = start(words)
    assert done.returncode == exit_code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.few(1)
@pytest.mark.parametrize("log_format", ["plain", "json", "bar"])
def test_a_full_log_ends_no_build(config: Path, shared: Path, log_format: str) -> None:
    """Nor does one that does not exist at all."""
    words = [DISTCACHE, "build", str(config), "-o", str(shared), "--log-format", log_format]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stderr=full, stdout=subprocess.PIPE, text=True, check=False)
    assert Path(done.stdout.strip()).is_file()
    for path in shared.iterdir():
        path.unlink()
    closed = subprocess.run(["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", *words], check=False)
    assert closed.returncode == 0


def test_names_with_markup_are_shown_as_they_are(tmp_path: Path) -> None:
    """Brackets in a path are no colours."""
    done = start(["check", tmp_path / "[red]x", tmp_path / "[/y]"])
    assert done.returncode == 5
    assert "[red]x.idx" in done.stdout
    assert "[/y].idx" in done.stdout


def test_help_has_examples() -> None:
    """Help of distcache fits a terminal; that of each command has examples."""
    lines = start(["--help"]).stdout.splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 80
    assert "6 no space" in " ".join(lines)
    first, *others = PANELS
    place = lines.index(f"{first}:") + 1
    assert [line.split()[0] for line in lines[place : place + 6]] == list(PANELS[first])
    for panel in others:
        (listed,) = (line for line in lines if line.startswith(f"  {panel} "))
        assert listed.removeprefix(f"  {panel} ").split() == list(PANELS[panel])
    assert sum(map(len, PANELS.values())) == len(COMMANDS)
    for command in COMMANDS:
        loaded = load(command)
        for name, each in getattr(loaded, "commands", {"": loaded}).items():
            assert "Example" in (each.help or ""), (command, name)
            assert f"distcache {command} {name}".strip() in each.help, (command, name)
            options = [one for one in each.params if one.param_type_name == "option"]
            texts = [one.name for one in options if one.type.name == "str" and not one.metavar]
            assert texts == [], (command, name)


def test_importing_has_no_side_effects() -> None:
    """Neither MPI nor torch nor logging is started, but by the few modules that need them."""
    program = (
        "import sys, logging, pkgutil, importlib, distcache\n"
        "needing = {'distcache.ranks.mpi'} | {'distcache.train.' + name for name in\n"
        "           ('batch', 'batches', 'bridge', 'dataset',\n"
        "            'provider', 'read_ahead', 'sampler')}\n"
        "for m in pkgutil.walk_packages(distcache.__path__, 'distcache.'):\n"
        "    if m.name not in needing: importlib.import_module(m.name)\n"
        "assert 'mpi4py' not in sys.modules and 'torch' not in sys.modules\n"
        "assert not logging.getLogger().handlers\n"
    )
    import sys  # noqa: PLC0415

    done = start(["-c", program], program=(sys.executable,))
    assert done.returncode == 0, done.stderr


def test_a_world_that_is_not_joined_is_an_error(config: Path, shared: Path) -> None:
    """Not one build per process."""
    for name in ("SLURM_STEP_NUM_TASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"):
        done = start(["build", config, "-o", shared], environment={name: "4"})
        assert done.returncode == 2
        assert f"{name} says that 4 processes were started" in done.stderr
    assert not os.listdir(shared)


# What salloc's shell and a batch script have: a job of eight tasks, in which no step was started.
ALLOCATION = {
    "SLURM_JOB_ID": "17",
    "SLURM_NTASKS": "8",
    "SLURM_NPROCS": "8",
    "SLURM_TASKS_PER_NODE": "4(x2)",
    "SLURM_NNODES": "2",
}
BATCH = {**ALLOCATION, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}


@pytest.mark.few(3)
@pytest.mark.parametrize("variables", [ALLOCATION, BATCH])
@pytest.mark.parametrize("command", ["build", "check", "merge", "ingest", "inspect"])
def test_one_process_within_an_allocation(
    command: str,
    variables: dict[str, str],
    config: Path,
    corpora: dict[str, str],
    shared: Path,
    tmp_path: Path,
) -> None:
    """Without srun: the step's own variables decide, and there are none."""
    shard = write_shard(tmp_path / "shard.parquet", [[1, 2], [3]])
    if command == "inspect":
        start(["build", config, "-o", shared, "--name", "c"])
    words: list[Any] = {
        "build": ["build", config, "-o", shared],
        "check": ["check", corpora["plain"]],
        "merge": ["merge", corpora["plain"], corpora["second"], "-o", shared / "m"],
        "ingest": ["ingest", "tokens", shard, "--eod", "0", "-o", shared / "t"],
        "inspect": ["inspect", shared / "c.h5"],
    }[command]
    done = start(words, environment=variables)
    assert done.returncode == 0, done.stderr


def test_an_output_that_is_full_or_closed(cache: Path) -> None:
    """The first is an error of a full disk; the second does not harm."""
    words = [DISTCACHE, "inspect", str(cache)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 6
    assert "Traceback" not in done.stderr
    closed = ("sh", "-c", 'exec "$@" >&-', "sh", DISTCACHE)
    done = start(words[1:], program=closed)
    assert (done.returncode, done.stderr) == (0, "")


def test_mpi_without_its_library() -> None:
    """It is one clear error, as is mpi4py that is not there."""
    gone = {"PMI_SIZE": "2", "MPI4PY_LIBMPI": "/none/libmpi.so"}
    done = start(["check", "/none/x"], environment=gone)
    assert done.returncode == 2
    assert "mpi4py cannot be loaded" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bash", "-c", "torchrun pretrain_gpt.py --seq-length 8"], "unpack the quoted command"),
        (["srun", "-n", "4", "bash", "-c", "x"], "unpack the quoted command"),
        (["python", "-m", "megatron.pretrain_gpt", "--seq-length", "8"], "names a module"),
        (["torchrun", "./pretrain_gpt", "--seq-length", "8"], "a training command has a script"),
    ],
)
def test_commands_without_a_script(words: list[str], said: str) -> None:
    """They say what to write instead, given as they are."""
    done = start(["plan", "--", *words])
    assert done.returncode == 2
    assert said in done.stderr


def test_job_scripts(tmp_path: Path) -> None:
    """They are copied as they are, and never replace a file."""
    jobs = tmp_path / "jobs"
    done = start(["slurm-scripts", jobs])
    assert done.returncode == 0, done.stderr
    source = Path(__file__).parents[2] / "slurm"
    assert done.stdout.split() == [str(jobs / name) for name in sorted(os.listdir(source))]
    for name in os.listdir(source):
        assert (jobs / name).read_bytes() == (source / name).read_bytes()
        assert os.access(jobs / name, os.X_OK) == name.endswith(".sh")
    (jobs / "build.sbatch").write_text("mine")
    again = start(["slurm-scripts", jobs])
    assert again.returncode == 2
    assert f"{jobs / 'build.sbatch'}: exists already" in again.stderr
    assert (jobs / "build.sbatch").read_text() == "mine"
    for place in (jobs / "build.sbatch", Path("/proc/x")):
        wrong = start(["slurm-scripts", place])
        assert wrong.returncode == 2
        assert f"{place}: " in wrong.stderr


def test_errors_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --json an error is a document, unless one says already what is wrong."""
    monkeypatch.chdir(tmp_path)
    for words, code, said in (
        (["plan", "none.yaml", "--json"], 5, "no such configuration"),
        (["verify", "--json"], 2, "missing argument"),
        (["verify", tmp_path, "--json"], 2, "is a directory"),
    ):
        done = start(words)
        error = json.loads(done.stdout)["error"]
        assert (done.returncode, error["exit_code"]) == (code, code)
        assert said in error["problems"][0]
        assert error["problems"][0] in done.stderr
    done = start(["check", tmp_path / "none", "--json"])
    assert done.returncode == 5
    assert json.loads(done.stdout)["faults"][0]["missing"]
    assert start(["plan", "none.yaml"]).stdout == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["build", "c.yaml", "--outt", "x"], "unknown option or word: --outt; did you mean --out?"),
        (["build", "c.yaml", "--output", "x"], "unknown option or word: --output; did you mean --"),
        (["report", "--jsn", "c.h5"], "unknown option or word: --jsn; did you mean --json?"),
        (["trace", "--stesp", "1", "c.h5"], "unknown option or word: --stesp; did you mean --ste"),
        (["doctor", "--jsno"], "unknown option or word: --jsno; did you mean --json?"),
        (["export", "c.h5", "--megtron", "0.16"], "unknown option or word: --megtron; did you m"),
        (["build", "c.yaml"], "missing option '--out' / '-o'"),
        (["verify"], "missing argument 'cache'"),
        (["verify", "a", "b"], "got unexpected extra argument"),
        (["verify", "a", "--thraeds", "2"], "no such option: --thraeds"),
        (["show", "a", "--length", "x"], "invalid value for '--length'"),
        (["nonsense"], "no such command 'nonsense'"),
        (["local", "nonsense"], "no such command 'nonsense'"),
    ],
)
def test_words_that_are_no_use_of_a_command(words: list[str], said: str) -> None:
    """Each is one sentence of the same form; a misspelt option is named before a missing one."""
    done = start(words)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"distcache: {said}")
    assert line.endswith("--help")


def test_the_name_of_a_cache_may_have_its_suffix(config: Path, shared: Path) -> None:
    """Both are the same file."""
    for name, reused in (("a.h5", False), ("a", True)):
        done = start(["build", config, "-o", shared, "--name", name, "--json"])
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["path"], found["reused"]) == (str(shared / "a.h5"), reused)


def test_a_corpus_is_named_by_any_of_its_files(tmp_path: Path) -> None:
    """Also where one is made."""
    write_lengths(tmp_path / "a", np.full(9, 9))
    done = start(["merge", tmp_path / "a.idx", tmp_path / "a.bin", "-o", tmp_path / "out.bin"])
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.idx").exists()


def completed(words: str) -> list[str]:
    """Return what bash would offer for the last of some words."""
    given = {
        "_DISTCACHE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    return start([], environment=given).stdout.split()


def test_completion_of_corpora_and_options(tmp_path: Path) -> None:
    """A corpus has no suffix; a single directory is gone into; Megatron's options are known."""
    data = tmp_path / "data"
    (data / "more").mkdir(parents=True)
    for name in ("web", "code", ".hidden", "more/deep"):
        for suffix in (".idx", ".bin"):
            (data / f"{name}{suffix}").touch()
    every = [f"{data}/code", f"{data}/more/", f"{data}/web"]
    assert completed(f"distcache check {tmp_path}/d") == every
    assert completed(f"distcache merge {data}/web {data}/w") == [f"{data}/web"]
    assert completed(f"distcache show {data}/m") == [f"{data}/more/deep"]
    assert completed(f"distcache check {tmp_path}/none/") == []
    odd = tmp_path / "odd"
    odd.mkdir()
    for name in ("a b", "c;d", "$e"):  # which a shell would have to quote
        (odd / f"{name}.idx").touch()
    (odd / "loop").symlink_to("loop")
    (odd / "self").symlink_to(".")
    assert completed(f"distcache check {odd}/") == []
    assert completed("distcache bu") == ["build"]
    assert {"--megatron", "--arithmetic", "--ranks"} <= set(completed("distcache plan --"))


@pytest.mark.parametrize(
    "words", [["check", "none"], ["show", "none"], ["merge", "none", "-o", "x"]]
)
def test_a_corpus_that_is_missing(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not found; one with a file that is missing is unsound."""
    monkeypatch.chdir(tmp_path)
    assert start(words).returncode == 5
    write_lengths(tmp_path / "none", np.full(9, 9))
    (tmp_path / "none.bin").unlink()
    assert start(words).returncode == 3


def test_progress_of_what_reads_everything(
    blend_config: dict[str, Any], shared: Path, tmp_path: Path
) -> None:
    """Each of these says what it reads, on standard error."""
    cache = here.build(blend_config, shared, "c").path
    here.localize(cache, tmp_path / "store")
    for words, phase in (
        (["verify", cache, "--corpora"], "reading the cache"),
        (["check", blend_config["blend"][0]["path"]], "checking corpora"),
        (["check", blend_config["blend"][0]["path"], "--vocab-size", 70_000], "reading tokens of"),
        (["local", "verify", "--store", tmp_path / "store"], "reading the copy of"),
    ):
        done = start([*words, "--log-format", "json"])
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
        assert any(phase in line["message"] for line in lines), done.stderr
        assert start([*words, "--log-format", "none"]).stderr.count(phase) == 0
