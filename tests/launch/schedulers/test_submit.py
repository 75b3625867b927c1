"""What a submission writes, and what it refuses before anything is submitted."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from distcache.errors import ConfigError
from distcache.launch.prejob import JobOptions
from distcache.launch.schedulers.known_schedulers import SCHEDULERS, SchedulerName
from distcache.launch.submit import SubmitOptions, read_command, read_setup, scripts_of, submit
from distcache.ranks.progress import NullProgress


@pytest.fixture
def submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put commands of schedulers into PATH; return the file with a line for each job."""
    commands, file = tmp_path / "commands", tmp_path / "submitted"
    commands.mkdir()
    for name, said in (("qsub", "$count"), ("sbatch", "$count"), ("bsub", "Job <$count>")):
        command = commands / name
        command.write_text(
            f'#!/bin/sh\necho "$@" >>{file}\ncount=$(wc -l <{file})\necho "{said}"\n'
        )
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    return file


@pytest.fixture
def words(blend_config: dict[str, Any], tmp_path: Path, shared: Path) -> tuple[Any, ...]:
    """Return a configuration, a directory, a name and a training script."""
    config, train = tmp_path / "config.json", tmp_path / "train.sh"
    config.write_text(json.dumps(blend_config))
    train.write_text("#!/bin/sh\ntrue\n")
    return config, shared, "c", [str(train)]


@pytest.mark.parametrize("scheduler", ["slurm", "sge"])
def test_both_jobs(
    scheduler: SchedulerName, words: tuple[Any, ...], submitted: Path, tmp_path: Path
) -> None:
    """The pre-job comes first; what is submitted is what would be printed."""
    job = JobOptions(mpi="pmi2" if scheduler == "slurm" else None)
    options = SubmitOptions(scheduler=scheduler, logs=tmp_path / "logs", job=job)
    printed = scripts_of(*words, options, NullProgress())
    assert not (tmp_path / "logs").exists()
    found = submit(*words, options)
    assert found.prejob is not None
    assert (found.prejob.job, found.training) == ("1", "2")
    assert len(submitted.read_text().splitlines()) == 2
    scripts = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert scripts == {"c-build.sh": printed.prejob, "c-train.sh": printed.training}
    assert "export DISTCACHE_CACHE=" in scripts["c-train.sh"]


def test_options_of_another_scheduler(words: tuple[Any, ...], submitted: Path) -> None:
    """Each is one error, before anything is submitted."""
    job = JobOptions(mpi="pmi2", qos="high", memory="2G")
    with pytest.raises(ConfigError) as caught:
        submit(*words, SubmitOptions(scheduler="sge", job=job))
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "--mem",
        "--mpi",
        "--qos",
    ]
    assert not submitted.exists()


def test_slurm_options_of_the_configuration(words: tuple[Any, ...], submitted: Path) -> None:
    """They come before those of the command line."""
    fields = json.loads(words[0].read_text()) | {"slurm": {"sbatch": ["--gres=a"], "srun": ["-x"]}}
    words[0].write_text(json.dumps(fields))
    job = JobOptions(mpi="pmi2", sbatch=("--gres=b",), srun=("-y",))
    text = scripts_of(*words, SubmitOptions(scheduler="slurm", job=job), NullProgress()).prejob
    assert "#SBATCH --gres=a\n#SBATCH --gres=b\n" in text  # sbatch takes the last
    assert " -x -y " in text


def test_a_file_in_the_place_of_a_script(
    words: tuple[Any, ...], submitted: Path, tmp_path: Path
) -> None:
    """It is not replaced, and no pre-job runs for a training that cannot be submitted."""
    logs = tmp_path / "logs"
    logs.mkdir(mode=0o700)
    (logs / "c-train.sh").write_text("#!/bin/sh\necho my own\n")
    with pytest.raises(ConfigError, match="is not a script of distcache's"):
        submit(*words, SubmitOptions(scheduler="sge", logs=logs))
    assert not submitted.exists()
    (logs / "c-train.sh").unlink()
    (logs / "c-train.sh").symlink_to(words[0])
    with pytest.raises(ConfigError, match="is not a script of distcache's"):
        submit(*words, SubmitOptions(scheduler="sge", logs=logs))
    assert not submitted.exists()


@pytest.mark.parametrize("name", ["a b", "a:b", "a,b", "{{id}}", "a%j"])
def test_logs_that_a_scheduler_would_misread(
    name: str, words: tuple[Any, ...], submitted: Path, tmp_path: Path
) -> None:
    """Such a directory is refused, and another one asked for."""
    with pytest.raises(ConfigError, match="choose another directory with --logs"):
        submit(*words, SubmitOptions(scheduler="sge", logs=tmp_path / name))
    assert not submitted.exists()


def test_logs_in_a_directory_with_a_blank(words: tuple[Any, ...], tmp_path: Path) -> None:
    """Slurm takes them."""
    options = SubmitOptions(scheduler="slurm", logs=tmp_path / "a b", job=JobOptions(mpi="pmi2"))
    text = scripts_of(*words, options, NullProgress()).prejob
    assert f"#SBATCH --output='{tmp_path}/a b/%j.log'" in text


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_setup_and_command(
    scheduler: SchedulerName, words: tuple[Any, ...], submitted: Path, tmp_path: Path
) -> None:
    """A setup is lines, or a file of them; the command is not the Python that submits."""
    (tmp_path / "setup.sh").write_text("module load a\nmodule load b\n")
    job = JobOptions(mpi="pmi2" if scheduler == "slurm" else None)
    for given in ("module load a\nmodule load b", str(tmp_path / "setup.sh")):
        options = SubmitOptions(
            scheduler=scheduler,
            job=job,
            setup=read_setup(given),
            command=read_command("apptainer exec 'an image' python3 -m distcache"),
        )
        text = scripts_of(*words, options, NullProgress()).prejob
        assert "\nmodule load a\nmodule load b\n" in text
        assert "apptainer exec 'an image' python3 -m distcache build" in text
        assert sys.executable not in text
        assert str(Path(sys.executable).parent) not in text  # nor its mpiexec


def test_an_image_has_its_own_python(words: tuple[Any, ...], submitted: Path) -> None:
    """The path of a Python of the login node means nothing in it."""
    job = JobOptions(mpi="pmi2", srun=("--container-image=a.sqsh",))
    text = scripts_of(*words, SubmitOptions(scheduler="slurm", job=job), NullProgress()).prejob
    assert " --container-image=a.sqsh python3 -P -m distcache build " in text


@pytest.mark.parametrize(
    "given",
    ["/no/such/setup.sh", "setup.sh", "a\0b", ".", "module load 'x", "if true", "echo \x1b[1m"],
)
def test_what_is_no_setup(given: str) -> None:
    """A path that is not there is not run as a line; nor is what no shell reads."""
    with pytest.raises(ConfigError, match="--setup"):
        read_setup(given)


def test_a_setup_of_a_shell_that_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    """About a locale that is not here, as after `ssh`; a blank of any kind is no control."""
    monkeypatch.setenv("LC_ALL", "xx_YY.UTF-8")
    for text in ("echo 'a\xa0\u3000b'\n", "shopt -s extglob\nls !(a)\n"):
        assert read_setup(text) == text
    with pytest.raises(ConfigError, match="line 2 has the line end of Windows"):
        read_setup("true\nmodule load a\r\n")


def test_words_as_a_shell_reads_them(words: tuple[Any, ...], submitted: Path) -> None:
    """The home of a user in a command, and no name with a blank."""
    command = read_command("~/bin/run '~/x' python3")
    options = SubmitOptions(scheduler="pbs", command=command)
    text = scripts_of(*words, options, NullProgress()).prejob
    assert f"{Path.home()}/bin/run" in text
    job = JobOptions(partition="a b", account="")
    with pytest.raises(ConfigError) as caught:
        scripts_of(*words, SubmitOptions(scheduler="pbs", job=job), NullProgress())
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "--partition 'a b'",
        "--account ''",
    ]


@pytest.mark.parametrize("given", ["", "'a", "a\nb"])
def test_what_is_no_command(given: str) -> None:
    """It has words, and all quotes are closed."""
    with pytest.raises(ConfigError, match="--command"):
        read_command(given)


@pytest.mark.parametrize("scheduler", ["slurm", "pbs", "lsf", "sge"])
def test_the_own_dependency_of_training(
    scheduler: SchedulerName, words: tuple[Any, ...], submitted: Path, tmp_path: Path
) -> None:
    """It is joined with that on the pre-job, or refused before anything is submitted."""
    lines = {
        "slurm": "#SBATCH --dependency=singleton",
        "pbs": "#PBS -W depend=after:x1",
        "lsf": '#BSUB -w "ended(x1)"',
        "sge": "#$ -hold_jid x1",
    }
    Path(words[3][0]).write_text(f"#!/bin/sh\n{lines[scheduler]}\ntrue\n")
    job = JobOptions(mpi="pmi2" if scheduler == "slurm" else None)
    options = SubmitOptions(scheduler=scheduler, logs=tmp_path / "logs", job=job)
    submit(*words, options)
    given = submitted.read_text().splitlines()[1]
    assert ("singleton" if scheduler == "slurm" else "x1") in given
    assert "1" in given
    Path(words[3][0]).write_text(f"#!/bin/sh\n{lines[scheduler]}\n{lines[scheduler]}\ntrue\n")
    with pytest.raises(ConfigError, match="lines 2 and 3"):
        submit(*words, options)
    assert len(submitted.read_text().splitlines()) == 2
