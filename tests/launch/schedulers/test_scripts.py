"""The batch scripts of every scheduler are these, to the letter; and how they are submitted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from distcache.errors import ConfigError, DistcacheError, NotReady
from distcache.launch.schedulers.known_schedulers import SCHEDULERS, SchedulerName, find_scheduler
from distcache.launch.schedulers.scheduler import Shape, with_directives
from distcache.launch.scripts import (
    MARK,
    build_script,
    own_dependency,
    read_script,
    submit_script,
    training_script,
)
from distcache.launch.submit import SubmitOptions
from tests.support.waiting import wait_until

GOLDEN = Path(__file__).parent / "golden"
PYTHON = "/opt/env/bin/python"
DOCS = Path(__file__).parents[3] / "docs"
NUMBERS = ("PBS_JOBID", "SLURM_JOB_ID", "JOB_ID", "LSB_JOBID")
WORDS = ["build", "/shared/my blend.yaml", "-o", "/shared/caches", "--name", "c"]
CACHE = Path("/shared/caches/c.h5")
SHAPE = Shape(
    name="distcache",
    nodes=2,
    tasks=4,
    cpus=2,
    minutes=90,
    memory="12G",
    queue="debug",
    account="lab",
    logs=Path("/shared/caches/c.jobs"),
    mpiexec="/opt/env/bin/mpiexec",
    mpi="pmi2",
    variables=("LD_LIBRARY_PATH", "PATH"),
)


@pytest.fixture
def _python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", PYTHON)


@pytest.mark.usefixtures("_python")
@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_build_script(name: SchedulerName) -> None:
    """A golden file says it; its first line, which the script has not, says where it was run."""
    first, text = (GOLDEN / f"{name}.sh").read_text().split("\n", 1)
    assert build_script(SCHEDULERS[name], SHAPE, WORDS, CACHE) == text
    assert first.startswith("# Run here: " if name in ("slurm", "sge", "pbs") else "# Not run here")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=30)


@pytest.mark.usefixtures("_python")
def test_one_rank_needs_no_launcher() -> None:
    """A job of one rank starts no mpiexec, and asks for no parallel environment."""
    one = SHAPE._replace(nodes=1, tasks=1, cpus=1, memory=None, queue=None, account=None, minutes=2)
    for name in ("pbs", "lsf", "sge"):
        text = build_script(SCHEDULERS[name], one, WORDS, CACHE)  # type: ignore[index]
        assert "mpiexec" not in text
        assert "-pe" not in text
        assert "mem" not in text
    # The signal comes a quarter of the limit before it.
    assert "--signal=USR1 90 " in build_script(SCHEDULERS["pbs"], one, WORDS, CACHE)


@pytest.mark.parametrize(
    ("own", "given", "expected"),
    [
        (["-pe mpi 8", "-cwd"], ["-pe orte 8"], ["-cwd", "-pe orte 8"]),
        (
            ["-l select=2:ncpus=4", "-l walltime=1:00:00"],
            ["-l walltime=2:00:00"],
            ["-l select=2:ncpus=4", "-l walltime=2:00:00"],
        ),
        (["--nodes=2", "--time=5"], ["--nodes=3"], ["--time=5", "--nodes=3"]),
        (["-r y", "-j oe"], ["-r="], ["-j oe"]),
        (["--mem=2G", "--time=5"], ["--mem="], ["--time=5"]),
        (["-j oe"], ["-l filesystems=home:eagle"], ["-j oe", "-l filesystems=home:eagle"]),
        (
            ["-l select=2", "-l place=scatter"],
            ["-lselect=1:ncpus=4"],
            ["-l place=scatter", "-lselect=1:ncpus=4"],
        ),
        (
            ["-l select=2", "-l place=scatter", "-q a"],
            ["-l place=free,select=3"],
            ["-q a", "-l place=free,select=3"],
        ),
    ],
)
def test_given_directives(own: list[str], given: list[str], expected: list[str]) -> None:
    """A given directive takes the place of the one of its name; an empty one leaves it out."""
    assert with_directives(own, given) == expected


def slurm_script(*given: str, **shape: Any) -> list[str]:
    """Return the lines of a script for Slurm with given directives."""
    text = build_script(SCHEDULERS["slurm"], SHAPE._replace(**shape), WORDS, CACHE, given)
    return text.splitlines()


@pytest.mark.parametrize(
    ("given", "gone", "there"),
    [
        ("--mem-per-cpu=4G", "--mem=12G", "--mem-per-cpu=4G"),
        ("--mem-per-gpu=4G", "--mem=12G", "--mem-per-gpu=4G"),
        ("--ntasks=4", "--ntasks-per-node=4", "--ntasks=4"),
        ("--no-requeue", "--requeue", "--no-requeue"),
        ("--signal=USR1@30", "--signal=USR1@90", "--signal=USR1@30"),
        ("--nodes=1-2", "--nodes=2", "--nodes=1-2"),
        ("--job-name=my job", "--job-name=distcache", "--job-name='my job'"),
        ("--exclusive", "", "--exclusive"),
    ],
)
def test_a_directive_of_slurm(given: str, gone: str, there: str) -> None:
    """It takes the place of what sbatch would refuse beside it; a value with a blank is quoted."""
    lines = slurm_script(given)
    assert f"#SBATCH {there}" in lines
    assert f"#SBATCH {gone}" not in lines


@pytest.mark.parametrize("odd", ["gres=1", "--", "--output=x", "--wrap=y", "--x=\n#SBATCH -w a"])
def test_what_is_no_directive_of_slurm(odd: str) -> None:
    """What distcache relies on cannot be overruled."""
    with pytest.raises(ConfigError, match=r"expected|finds the job's files"):
        slurm_script(odd)


@pytest.mark.parametrize(
    ("memory", "slurm", "pbs"),
    [("64000", "64000", 63), ("8G", "8G", 8), ("1T", "1T", 1024), ("1K", "1K", 1)],
)
def test_memory(memory: str, slurm: str, pbs: int) -> None:
    """Is in the words of sbatch, whatever the scheduler; a number alone is of MiB."""
    assert f"#SBATCH --mem={slurm}" in slurm_script(memory=memory)
    shape = SHAPE._replace(memory=memory)
    assert f":mem={pbs}gb\n" in build_script(SCHEDULERS["pbs"], shape, WORDS, CACHE)
    assert f"[mem={pbs}G]" in build_script(SCHEDULERS["lsf"], shape, WORDS, CACHE)


def test_all_memory_of_a_node() -> None:
    """Is 0 for Slurm; other schedulers have no such word."""
    assert "#SBATCH --mem=0" in slurm_script(memory="0")
    with pytest.raises(ConfigError, match="--mem 0: only Slurm"):
        build_script(SCHEDULERS["lsf"], SHAPE._replace(memory="0"), WORDS, CACHE)


def test_variables_that_would_overrule_a_script() -> None:
    """Those of what the script says, and only those, are kept from sbatch."""
    script = "\n".join(slurm_script(queue=None))
    found = set(SCHEDULERS["slurm"].overruling(script))
    assert found > {"SBATCH_TIMELIMIT", "SBATCH_MEM_PER_NODE", "SBATCH_OUTPUT", "SBATCH_ACCOUNT"}
    assert "SBATCH_PARTITION" not in found
    assert not set(SCHEDULERS["pbs"].overruling(script))


@pytest.mark.parametrize(
    ("commands", "environment", "expected"),
    [
        ({"sbatch", "qsub"}, {}, "slurm"),
        ({"qsub"}, {}, "pbs"),
        ({"qsub", "qconf"}, {}, "sge"),
        ({"qsub"}, {"SGE_ROOT": "/opt/sge"}, "sge"),
        ({"bsub"}, {}, "lsf"),
        ({"flux"}, {}, "flux"),
        ({"flux", "sbatch"}, {}, "slurm"),
        ({"flux", "sbatch"}, {"FLUX_URI": "local:///run"}, "flux"),
    ],
)
def test_which_scheduler_is_here(
    commands: set[str], environment: dict[str, str], expected: str
) -> None:
    """Its commands say it; Flux comes first inside of an instance of it."""
    found = find_scheduler(environment, lambda name: name if name in commands else None)
    assert found == expected


def test_where_no_scheduler_is() -> None:
    """The error says what was looked for, and what works without one."""
    with pytest.raises(ConfigError, match=r"none of sbatch, bsub, flux and qsub .* --print"):
        find_scheduler({}, lambda _: None)


@pytest.mark.usefixtures("_python")
def test_the_training_script(tmp_path: Path) -> None:
    """After its directives it waits for the cache, and gets its path and its arguments."""
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/bash\n#PBS -l select=2\n\n# localize\necho $DISTCACHE_CACHE $1\n")
    text = training_script(read_script(str(script)), ["a b"], Path("/shared/my c.h5"))
    assert text == (
        "#!/bin/bash\n#PBS -l select=2\n\n# localize\n"
        "# written by distcache submit\n"
        "export DISTCACHE_CACHE='/shared/my c.h5'\n"
        "for _ in $(seq 60); do [ -e '/shared/my c.h5' ] && break; sleep 1; done\n"
        "[ -e '/shared/my c.h5' ] || { echo '/shared/my c.h5: is not there; see the log of the job "
        "that builds it' >&2; exit 5; }\n"
        "set -- 'a b'\n"
        "echo $DISTCACHE_CACHE $1\n"
    )


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_training_waits_for_the_cache(shell: str, tmp_path: Path) -> None:
    """It starts when the cache is there, and does not where it never comes."""
    script, cache = tmp_path / "train.sh", tmp_path / "a c.h5"
    script.write_text(f"#!/bin/{shell} -e\necho $1 $DISTCACHE_CACHE\n")
    text = training_script(read_script(str(script)), ["x"], cache).replace("seq 60", "seq 2")
    for there in (False, True):
        if there:
            cache.touch()
        done = subprocess.run(
            [shell, "-e", "-c", text], capture_output=True, text=True, timeout=30, check=False
        )
        assert done.returncode == (0 if there else 5)
        assert done.stdout == (f"x {cache}\n" if there else "")
        assert ("is not there" in done.stderr) != there


@pytest.mark.parametrize(
    "text", ["print(1)\n", "#!/usr/bin/python3\n", "#!/home/sh/bin/python3\n", "#!/bin/shell\n", ""]
)
def test_what_is_no_training_script(text: str, tmp_path: Path) -> None:
    """Lines of a shell can be added to a script of a shell only."""
    script = tmp_path / "train"
    script.write_text(text)
    with pytest.raises(ConfigError, match="is no shell script"):
        read_script(str(script))
    with pytest.raises(NotReady, match="no such script"):
        read_script(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("name", "line", "joined"),
    [
        ("slurm", "#SBATCH --dependency=singleton", "--dependency=afterok:9,singleton"),
        ("slurm", "#SBATCH -N 2 -d afterany:5:6 # a chain", "--dependency=afterok:9,afterany:5:6"),
        ("slurm", "#SBATCH --depend 'after:5+10'", "--dependency=afterok:9,after:5+10"),
        ("pbs", "#PBS -W depend=afterany:7.server", "depend=afterok:9,afterany:7.server"),
        (
            "pbs",
            "#PBS -Wumask=022,depend=after:7,before:8,sandbox=PRIVATE",
            "depend=afterok:9,after:7,before:8",
        ),
        ("lsf", '#BSUB -w "ended(77) || done(78)" -wt 5', "done(9) && (ended(77) || done(78))"),
        ("lsf", '#BSUB -wa USR1 -wt10 -w"done(5)"', "done(9) && (done(5))"),
        ("sge", "#$ -hold_jid chain,77 -q a.q", "9,chain,77"),
        ("sge", "true\n#$ -hold_jid 77", "9,77"),
        ("slurm", "#SBATCH -J run#1 -d singleton", "--dependency=afterok:9,singleton"),
        ("flux", "#flux: --dependency=afterany:f3", "--dependency=afterok:9"),
    ],
)
def test_a_script_waits_for_its_own_jobs_too(name: SchedulerName, line: str, joined: str) -> None:
    """An option would take the place of the directive; Flux takes both."""
    scheduler = SCHEDULERS[name]
    again = "" if scheduler.reads_all else line  # behind a command most read no more
    own = own_dependency(scheduler, "train.sh", f"#!/bin/bash\n\n{line}\ntrue\n{again}\n")
    assert joined in scheduler.after("9", own)


@pytest.mark.parametrize(
    ("name", "lines", "said"),
    [
        ("slurm", "#SBATCH --dependency=afterok:5?afterok:6", "t.sh:2: .*cannot wait for one of"),
        ("slurm", "#SBATCH -d singleton\n#SBATCH -d after:5", "lines 2 and 3 name jobs"),
        ("sge", "#$ -hold_jid 'a", "t.sh:2: .*No closing quotation"),
        ("sge", "true\ntrue\n#$ -hold_jid 'a", "t.sh:4: .*No closing quotation"),
        (
            "pbs",
            "#SBATCH --nodes=64",
            "t.sh:2: '#SBATCH --nodes=64': is not read by PBS",
        ),
        ("slurm", "# flux: -N 64", "t.sh:2: .*is not read by Slurm.* in lines of #SBATCH"),
        ("pbs", "#FLUX: -N 64", "t.sh:2: .*is not read by PBS"),
        ("flux", "#PBS -l select=64", "t.sh:2: .*is not read by Flux"),
        ("slurm", "#PBS -N a\n#PBS -W depend=after:7", "t.sh:3: .*in a line of #SBATCH, where"),
    ],
)
def test_directives_that_would_be_lost(name: SchedulerName, lines: str, said: str) -> None:
    """They are refused by their line."""
    with pytest.raises(ConfigError, match=said):
        own_dependency(SCHEDULERS[name], "t.sh", f"#!/bin/bash\n{lines}\ntrue\n")


@pytest.mark.parametrize(
    "lines",
    [
        "",
        "# SBATCH is not here",
        "#SBATCH -N 2\n#PBS -N a",
        "# PBS -W depend=after:3",
        "#PBSX -W depend=after:3",
        "# PBS doesn't like blanks",
    ],
)
def test_directives_that_are_right(lines: str) -> None:
    """A script may have none, and those of several schedulers."""
    assert own_dependency(SCHEDULERS["pbs"], "t.sh", f"#!/bin/bash\n{lines}\ntrue\n") == ""


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("slurm", "#SBATCH -N 2  # don't share nodes"),
        ("slurm", "#SBATCH --comment='a # b' # don't"),
        ("slurm", "#PBS -l select=2"),  # Slurm reads it, too
        ("flux", "# flux: -N 2 # don't"),
        ("flux", "#FLUX: -N 2"),
        ("flux", '#flux: --setattr=user.a="""\n#flux: it is\n#flux: """'),
        ("slurm", "# FLUX: trains the image model"),
    ],
)
def test_directives_as_their_schedulers_read_them(name: SchedulerName, line: str) -> None:
    """Comments behind them, whatever is in these, and all forms of their beginning."""
    assert own_dependency(SCHEDULERS[name], "t.sh", f"#!/bin/bash\n{line}\ntrue\n") == ""


@pytest.mark.parametrize("name", SCHEDULERS)
def test_what_runs_before_the_ranks_and_around_them(name: SchedulerName) -> None:
    """Lines of a setup come before the ranks, which start by the given command."""
    program = ("apptainer", "exec", "my image.sif", "python3", "-m", "distcache")
    shape = SHAPE._replace(setup="module load openmpi\nexport A=1\n", program=program)
    lines = build_script(SCHEDULERS[name], shape, WORDS, CACHE).splitlines()
    place = lines.index("module load openmpi")
    assert lines[place + 1] == "export A=1"
    assert "apptainer exec 'my image.sif' python3 -m distcache build" in lines[place + 3]
    shape = SHAPE._replace(setup=f"true\n{SCHEDULERS[name].prefix} -x")
    with pytest.raises(ConfigError, match="give a directive with --directive"):
        build_script(SCHEDULERS[name], shape, WORDS, CACHE)


@pytest.mark.parametrize(
    "first", ["#!/bin/sh", "#!/usr/bin/env bash", "#! /usr/bin/env -S bash -l"]
)
def test_what_is_a_training_script(first: str, tmp_path: Path) -> None:
    """Any shell's; but not what was made of one before, which would wait twice."""
    script = tmp_path / "train"
    script.write_text(f"{first}\ntrue\n")
    made = training_script(read_script(str(script)), [], CACHE)
    assert made.startswith(f"{first}\n{MARK}\n")
    script.write_text(made)
    with pytest.raises(ConfigError, match="was written by distcache"):
        read_script(str(script))


def commands(directory: Path, name: str, script: str) -> None:
    """Write a command of a scheduler, which says what it was given."""
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("name", "command", "said", "given"),
    [
        ("pbs", "qsub", "123.server", "-W depend=afterok:7 {path}"),
        ("sge", "qsub", "123", "-terse -hold_jid 7 {path}"),
        ("flux", "flux", "f2Kk9", "batch --dependency=afterok:7 {path}"),
        ("lsf", "bsub", "Job <123> is submitted to queue <a>.", "-w done(7)"),
        (
            "slurm",
            "sbatch",
            "123;lab",
            "--parsable --dependency=afterok:7 --kill-on-invalid-dep=yes {path}",
        ),
    ],
)
def test_submission(
    name: SchedulerName,
    command: str,
    said: str,
    given: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The script is written, and given with its dependency; the number comes back."""
    commands(tmp_path, command, f'echo "$@" >{tmp_path}/words; cat >{tmp_path}/in; echo "{said}"')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    path, text = tmp_path / "build.sh", f"#!/bin/bash\n{MARK}\n"
    job = submit_script(SCHEDULERS[name], path, text, SCHEDULERS[name].after("7", ""))
    assert job in said
    assert (tmp_path / "words").read_text().strip() == given.format(path=path)
    assert path.read_text() == text
    assert (tmp_path / "in").read_text() == (text if name == "lsf" else "")
    submit_script(SCHEDULERS[name], path, text)  # its own script is replaced
    path.write_text("#!/bin/bash\necho mine\n")
    with pytest.raises(ConfigError, match="is no"):
        submit_script(SCHEDULERS[name], path, text)
    assert "mine" in path.read_text()


def test_what_the_scheduler_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own words are the error; a missing command, or one that says nothing, is one, too."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    pbs, path = SCHEDULERS["pbs"], tmp_path / "build.sh"
    with pytest.raises(ConfigError, match="is it in PATH"):
        submit_script(pbs, path, MARK)
    commands(tmp_path, "qsub", "echo 'qsub: Unknown queue' >&2; exit 1")
    with pytest.raises(DistcacheError, match="Unknown queue"):
        submit_script(pbs, path, MARK)
    for said in ("", "Your last job 17 was slow", "-1", "7 8"):
        commands(tmp_path, "sbatch", f"echo '{said}'")
        with pytest.raises(DistcacheError, match="instead of the number of a job"):
            submit_script(SCHEDULERS["slurm"], path, MARK)


def run_script(text: str, directory: Path, **variables: str) -> subprocess.Popen[str]:
    """Start a batch script in which the command of a rank is a stand-in."""
    environment = {"PATH": f"{directory}:/usr/bin:/bin", **variables}
    return subprocess.Popen(
        ["bash", "-c", text], env=environment, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("code", [8, 9, 137], ids=["8", "9 of mpiexec", "137 of mpiexec"])
@pytest.mark.parametrize(
    ("name", "expected", "again"),
    [
        ("slurm", -9, "scontrol requeue 7"),
        ("pbs", -9, "qrerun 7"),
        ("sge", 99, ""),
        ("lsf", 99, ""),
        ("flux", 8, ""),
    ],
)
def test_an_interrupted_build(
    name: SchedulerName, expected: int, again: str, code: int, tmp_path: Path
) -> None:
    """A signal to all processes leaves the script alive, which acts on code 8 of the ranks.

    A launcher that kills a rank which ends later than another returns another code.
    """
    rank = tmp_path / "rank"
    rank.write_text(
        f"#!/bin/bash\ntrap 'kill $!; exit {code}' USR1\n"
        f"echo $$ >{tmp_path}/part; mv {tmp_path}/part {tmp_path}/pid\nsleep 60 & wait\n"
    )
    rank.chmod(0o755)
    for command in ("qrerun", "scontrol"):
        commands(tmp_path, command, f"echo {command} $@ >>{tmp_path}/again; kill -KILL $PPID")
    commands(tmp_path, "srun", 'while [ "$1" != "${1#-}" ]; do shift; done; exec "$@"')
    commands(tmp_path, "flux", 'while [ "$1" != "${1#[-r]}" ]; do shift; done; exec "$@"')
    one = SHAPE._replace(nodes=1, tasks=1, cpus=1, logs=tmp_path)
    text = build_script(SCHEDULERS[name], one, [], tmp_path / "c.h5")
    text = text.replace(f"{sys.executable} -P -m distcache", str(rank))
    for _ in range(4):  # it starts again three times
        (tmp_path / "pid").unlink(missing_ok=True)
        job = run_script(text, tmp_path, **dict.fromkeys(NUMBERS, "7"))
        wait_until((tmp_path / "pid").exists, "the rank")
        job.send_signal(signal.SIGUSR1)
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGUSR1)
        _, errors = job.communicate(timeout=30)
        if "starts again" not in errors:
            break
        assert job.returncode == expected, errors
    assert job.returncode == 8
    assert ("submit again to resume" in errors) == (name == "flux")
    assert not (tmp_path / "c-restarts-7").exists()  # the next job of this script begins again
    if again:
        assert (tmp_path / "again").read_text().split("\n") == [again] * 3 + [""]


@pytest.mark.parametrize(("code", "signalled"), [(3, True), (9, False)])
def test_an_error_is_no_interruption(code: int, signalled: bool, tmp_path: Path) -> None:
    """Neither an error of distcache beside a signal, nor a rank that somebody killed."""
    rank = tmp_path / "rank"
    signal_it = "kill -USR1 $PPID; " if signalled else ""
    rank.write_text(f"#!/bin/bash\n{signal_it}exit {code}\n")
    rank.chmod(0o755)
    one = SHAPE._replace(nodes=1, tasks=1, cpus=1, logs=tmp_path)
    text = build_script(SCHEDULERS["sge"], one, [], tmp_path / "c.h5")
    text = text.replace(f"{sys.executable} -P -m distcache", str(rank))
    job = run_script(text, tmp_path, **dict.fromkeys(NUMBERS, "7"))
    _, errors = job.communicate(timeout=30)
    assert job.returncode == code
    assert "interrupted" not in errors


def test_success_without_a_cache(tmp_path: Path) -> None:
    """A launcher that returns 0 without having run is not a success."""
    one = SHAPE._replace(nodes=1, tasks=1, cpus=1)
    text = build_script(SCHEDULERS["lsf"], one, [], tmp_path / "c.h5")
    text = text.replace(f"{sys.executable} -P -m distcache", "true")
    job = run_script(text, tmp_path)
    job.communicate(timeout=30)
    assert job.returncode == 5
    (tmp_path / "c.h5").touch()
    job = run_script(text, tmp_path)
    job.communicate(timeout=30)
    assert job.returncode == 0


@pytest.mark.parametrize(
    ("name", "directive", "said"),
    [
        ("pbs", "-l walltime=2:00:00", "give the limit with --time"),
        ("pbs", "-l select=2,walltime=2:00:00", "give the limit with --time"),
        ("pbs", "-l select=2 -lwalltime=2:00:00", "give the limit with --time"),
        ("sge", "-l h_rt=600", "give the limit with --time"),
        ("sge", " ", "is empty"),
    ],
)
def test_a_limit_without_its_signal(name: str, directive: str, said: str) -> None:
    """Where the script sets the time of the signal, a limit beside it would come first."""
    with pytest.raises(ConfigError, match=said):
        build_script(SCHEDULERS[name], SHAPE, WORDS, CACHE, [directive])


def test_only_newlines_end_lines(tmp_path: Path) -> None:
    """Other signs that Python takes for ends of lines stay where they are, in a comment."""
    script = tmp_path / "train.sh"
    script.write_text(
        "#!/bin/bash\n# page 1\x0ctouch x\u2028rm y\n   \n\t# more\n#PBS -q a\ntrue\n"
    )
    lines = training_script(read_script(str(script)), [], CACHE).split("\n")
    assert lines[1] == "# page 1\x0ctouch x\u2028rm y"
    assert lines.index("#PBS -q a") < lines.index(MARK)  # blanks end no directives


@pytest.mark.parametrize("odd", ["x\n#$ -q evil.q", "a\udcff"])
def test_what_a_script_cannot_say(odd: str) -> None:
    """A newline could be a directive, a name that is not UTF-8 another file: both are refused."""
    with pytest.raises(ConfigError, match="expected printable text"):
        build_script(SCHEDULERS["sge"], SHAPE, ["build", odd], CACHE)
    with pytest.raises(ConfigError, match="expected printable text"):
        training_script("#!/bin/sh\n", [odd], CACHE)


def test_every_scheduler_is_offered_and_described() -> None:
    """By the option, and on the pages that list them."""
    assert get_args(SchedulerName) == tuple(SCHEDULERS)
    assert set(get_args(get_type_hints(SubmitOptions)["scheduler"])) == {"auto", *SCHEDULERS}
    for page in ("schedulers/index.md", "commands.md"):
        text = (DOCS / page).read_text()
        assert [name for name in SCHEDULERS if f"{name}`" not in text] == []


TRAIN = Path(__file__).parents[3] / "slurm" / "train.sbatch"


@pytest.mark.parametrize(("failures", "trains"), [(0, True), (1, True), (2, False)])
def test_localizing_is_tried_once_more(failures: int, trains: bool, tmp_path: Path) -> None:
    """A step whose MPI did not start is repeated; one that fails again ends the job."""
    tried = tmp_path / "tried"
    commands = {
        "srun": f"case $* in *localize*) echo >>{tried}; [ $(wc -l <{tried}) -gt {failures} ];; "
        f"*torchrun*) touch {tmp_path}/trained;; esac",
        "distcache": "true",
        "sleep": "true",
        "scontrol": "echo node1",
    }
    for name, line in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node1", "SLURM_JOB_NUM_NODES": "1"}
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "DISTCACHE_CACHE": "/c.h5", **variables}
    done = subprocess.run(
        ["bash", TRAIN, "train.py"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (tmp_path / "trained").exists() == trains, done.stderr
    assert (done.returncode == 0) == trains
    assert len(tried.read_text().splitlines()) == min(failures + 1, 2)
