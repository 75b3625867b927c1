"""Steps of a run: from options, and from the logs of its jobs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from distcache.errors import ConfigError
from distcache.ledger.jobs_of_run import runs_of
from distcache.ledger.steps import (
    Sampling,
    evaluation_steps,
    evaluations_within,
    logged_steps,
    steps_within,
    training_steps,
)
from distcache.ledger.trace import trace
from distcache.ledger.traced_run import TracedRun
from distcache.megatron.run_options import RunOptions, run_of_command, run_of_log
from distcache.megatron.training_log import parse_log
from distcache.megatron.training_options import Training
from tests.ledger.runs import build_numbered

ARGUMENTS = """------------------------ arguments ------------------------
  data_parallel_size .............................. 2
  dataloader_type ................................. single
  global_batch_size ............................... 8
  iterations_to_skip .............................. [3]
  micro_batch_size ................................ 2
  rampup_batch_size ............................... {ramp}
  train_iters ..................................... 100
-------------------- end of arguments ---------------------
"""


def line(iteration: int, consumed: int, batch: int) -> str:
    """Return the line of an iteration, as Megatron 0.19 writes it."""
    return (
        f" [2026-11-26 10:00:00.000000] iteration {iteration:8d}/     100 | consumed samples: "
        f"{consumed:12d} | elapsed time per iteration (ms): 9.1 | learning rate: 1.0E-04 | global "
        f"batch size: {batch:5d} | lm loss: 1.1E+01 | loss scale: 1.0 | grad norm: 0.9 |\n"
    )


def log(*parts: str, ramp: str = "None") -> list[str]:
    """Return the lines of a log: options, then these."""
    return (ARGUMENTS.format(ramp=ramp) + "".join(parts)).splitlines(keepends=True)


def pairs(steps: object) -> list[tuple[int, int, int]]:
    """Return numbers, begins and ends of steps."""
    columns = (getattr(steps, name).tolist() for name in ("numbers", "begins", "ends"))
    return list(zip(*columns, strict=True))


def test_every_line_is_a_step() -> None:
    """An iteration took the samples up to those that its line says, and as many as its batch."""
    jobs = parse_log("a", log(*(line(n, 8 * n, 8) for n in (1, 2, 3, 4))))
    steps, notes = logged_steps(jobs)
    assert pairs(steps) == [(n, 8 * n - 8, 8 * n) for n in (1, 2, 3, 4)]
    assert steps.skipped.tolist() == [False, False, True, False]
    assert not steps.rolled_back.any()
    assert notes == []


def test_iterations_between_lines_are_filled_in() -> None:
    """With a line every ten iterations, those between have the same batch, if that fits."""
    jobs = parse_log("a", log(line(10, 80, 8), line(20, 160, 8), line(25, 200, 8)))
    steps, notes = logged_steps(jobs)
    assert pairs(steps) == [(n, 8 * n - 8, 8 * n) for n in range(1, 26)]
    assert notes == []


def test_a_ramp_between_lines_follows_from_the_logged_options() -> None:
    """Where batches change between two lines, the options say how, if the samples agree."""
    options = Training(
        seq_length=1, global_batch_size=8, rampup_batch_size=(4, 2, 60), megatron="0.17"
    )
    truth = training_steps(options, 30)
    lines = [
        line(n, int(truth.ends[n - 1]), int(truth.ends[n - 1] - truth.begins[n - 1]))
        for n in (10, 20, 30)
    ]
    steps, notes = logged_steps(parse_log("a", log(*lines, ramp="['4', '2', '60']")))
    assert pairs(steps) == pairs(truth)
    assert notes == []


def test_what_is_not_known_is_said() -> None:
    """Where neither fits, only the logged iterations are known."""
    steps, notes = logged_steps(parse_log("a", log(line(10, 80, 8), line(20, 170, 8))))
    assert pairs(steps)[-2:] == [(10, 72, 80), (20, 162, 170)]
    assert len(steps.numbers) == 11
    assert "iterations 11 to 19" in notes[0]


def test_a_job_after_another_rolls_back() -> None:
    """A job that continues a checkpoint does the iterations after it again."""
    first = log(*(line(n, 8 * n, 8) for n in range(1, 8)))
    loaded = "  successfully loaded checkpoint from /c [ t 1/1, p 1/1 ] at iteration 5\n"
    second = log(loaded, *(line(n, 40 + 4 * (n - 5), 4) for n in range(6, 9)))
    for jobs in (parse_log("a", first) + parse_log("b", second), parse_log("a", first + second)):
        assert [job.begin for job in jobs] == [None, 5]
        steps, notes = logged_steps(jobs)
        assert pairs(steps)[7:] == [(6, 40, 44), (7, 44, 48), (8, 48, 52)]
        assert steps.numbers[steps.rolled_back].tolist() == [6, 7]
        assert steps.jobs.tolist() == [0] * 7 + [1] * 3
        assert notes == []


def test_the_log_of_a_later_job_stands_alone() -> None:
    """A log that begins at a checkpoint has the samples of constant batches before it."""
    loaded = "successfully loaded checkpoint from /c at iteration 50\n"
    steps, notes = logged_steps(parse_log("b", log(loaded, line(60, 480, 8))))
    assert pairs(steps) == [(n, 8 * n - 8, 8 * n) for n in range(51, 61)]
    steps, notes = logged_steps(parse_log("b", log(loaded, line(60, 481, 8))))
    assert pairs(steps) == [(60, 473, 481)]
    assert "iterations 51 to 59" in notes[0]
    cut = [line(n, 8 * n + 1, 8) for n in (60, 61)]
    assert pairs(logged_steps(parse_log("c", cut))[0]) == [(60, 473, 481), (61, 481, 489)]


def test_options_are_read_from_a_log() -> None:
    """The log names the order, the batches and the ranks."""
    (job,) = parse_log("a", log(line(1, 8, 8)))
    options = run_of_log(job)
    assert options.training.micro_batch_size == 2
    assert options.iterations_to_skip == [3]
    assert Sampling.of_run(options, "train") == Sampling("single", 2, 2)
    assert parse_log("a", ["nothing of training\n"]) == []
    prefixed = ["0: " + text for text in log(line(1, 8, 8))]
    assert run_of_log(parse_log("a", prefixed)[0]) == options


def test_lines_that_are_hostile_change_nothing() -> None:
    """Numbers without end, lines without end, and values that are no options."""
    lines = [
        line(1, 8, 8).replace("1/", "9" * 40 + "/"),
        " iteration 1/ 2 | consumed samples: " + "x" * (1 << 20),
        " iteration 1/ 2 |" * 10000 + "consumed samples",
        "iteration" + " " * 60000 + "| consumed samples: 1 |",
        "--- arguments ---\n",
        "loaded checkpoint from " * 3000,
        "  global_batch_size .............. __import__('os').system('false')\n",
        "  x " + "." * 60000 + " " * 5000,
        "--- end of arguments ---\n",
        line(1, 8, 8),
    ]
    (job,) = parse_log("a", lines)
    assert [one.iteration for one in job.iterations] == [1]
    with pytest.raises(ConfigError, match="options of training are not read"):
        run_of_log(job)


def test_what_looks_like_an_option_elsewhere_is_none() -> None:
    """Options are read between the lines that begin and end them: else a job would be cut."""
    progress = " > building shuffle index .... done\n  global_batch_size ...... 99\n"
    jobs = parse_log("a", log(line(1, 8, 8), progress, line(2, 16, 8)))
    assert [len(job.iterations) for job in jobs] == [2]
    assert run_of_log(jobs[0]).training.global_batch_size == 8


def test_lines_that_are_written_twice_count_once() -> None:
    """As where two ranks write into one log."""
    jobs = parse_log("a", log(*(line(n, 8 * n, 8) * 2 for n in (1, 2, 3))))
    assert [one.iteration for job in jobs for one in job.iterations] == [1, 2, 3]


def test_jobs_whose_checkpoint_is_not_logged() -> None:
    """They continue the iteration before their first line that fits, or begin anew."""
    first = parse_log("a", log(*(line(n, 8 * n, 8) for n in range(1, 101))))
    later = parse_log("b", log(*(line(n, 8 * n, 8) for n in range(91, 121))))
    steps, notes = logged_steps(first + later)
    assert steps.numbers[steps.jobs == 1].tolist() == list(range(91, 121))
    assert steps.numbers[steps.rolled_back].tolist() == list(range(91, 101))
    tens = parse_log("b", log(*(line(n, 8 * n, 8) for n in (110, 120))))
    steps, _ = logged_steps(first + tens)
    assert steps.numbers[steps.jobs == 1].tolist() == list(range(101, 121))
    assert not steps.rolled_back.any()
    beyond = parse_log("b", log(*(line(n, 8 * n, 8) for n in (201, 202))))
    steps, _ = logged_steps(first + beyond)
    assert steps.numbers[steps.jobs == 1].tolist() == [201, 202]
    anew = parse_log("b", log(*(line(n, 8 * n, 8) for n in (1, 2))))
    steps, _ = logged_steps(first + anew)
    assert steps.rolled_back.sum() == 100
    assert notes == []


def test_numbers_without_end_are_refused() -> None:
    """A log, or options, of more steps than can be counted."""
    jobs = parse_log("a", [line(10**17, 10**17, 1).replace("     100", "9" * 18)])
    with pytest.raises(ConfigError, match="more than the"):
        logged_steps(jobs)
    with pytest.raises(ConfigError, match="are counted"):
        training_steps(Training(seq_length=1, global_batch_size=8), 1 << 40)


def test_steps_end_with_the_run_or_the_samples() -> None:
    """The number of iterations counts, or the samples, or those that a split has."""
    eight = RunOptions(Training(seq_length=1, global_batch_size=8))
    assert len(steps_within(eight, 100).numbers) == 12
    samples = RunOptions(Training(seq_length=1, global_batch_size=8, train_samples=40))
    assert len(steps_within(samples, 100).numbers) == 5
    iterations = RunOptions(Training(seq_length=1, global_batch_size=8, train_iters=7))
    assert len(steps_within(iterations, 100).numbers) == 7
    assert pairs(steps_within(eight, 100).within(16, 24)) == [
        (3, 0, 8),
        (4, 8, 16),
        (5, 16, 24),
    ]


def test_evaluations_follow_one_another() -> None:
    """Each takes its micro batches of the validation split, after those of the one before."""
    training = Training(seq_length=1, global_batch_size=4, eval_interval=10, eval_iters=3)
    steps = evaluation_steps(training, 2, 100, Sampling())
    assert pairs(steps) == [(10, 0, 12), (20, 12, 24)]
    late = Training(
        seq_length=1, global_batch_size=4, eval_interval=10, eval_iters=3, start_eval_at_iter=25
    )
    assert pairs(evaluation_steps(late, 1, 100, Sampling())) == [(30, 0, 12)]
    full = Sampling("full", 1, 3)
    assert pairs(evaluation_steps(training, 2, 10, full)) == [(10, 0, 12), (20, 12, 24)]
    assert len(evaluations_within(training, 100, Sampling(), None).numbers) == 8
    assert len(evaluations_within(training, 100, Sampling(), 41).numbers) == 5
    with pytest.raises(ConfigError, match="--eval-interval"):
        evaluation_steps(Training(seq_length=1), 1, 10, Sampling())


def test_documents_are_found_at_their_steps(tmp_path: Path) -> None:
    """Each finding is a part of a step that has it, also of one that was rolled back."""
    found = trace(build_numbered(tmp_path))
    jobs = parse_log("a", [line(n, 8 * n, 8) for n in range(1, 21)])
    jobs += parse_log(
        "b",
        ["loaded checkpoint from x at iteration 12\n", *(line(n, 8 * n, 8) for n in range(13, 30))],
    )
    steps, _ = logged_steps(jobs)
    for sampling in (Sampling("single", 2, 2), Sampling("cyclic", 2, 2), Sampling("sharded", 2, 2)):
        run = TracedRun(found, sampling, steps)
        truth = set()
        for some in run.of_steps(steps):
            corpora = np.repeat(some.traced.corpora, np.diff(some.traced.bounds))
            rows = np.repeat(some.rows, np.diff(some.traced.bounds))
            assert some.ranks is not None
            dealt = [np.repeat(values, np.diff(some.traced.bounds)) for values in some.ranks]
            for corpus, sequence, row, *place in zip(
                corpora.tolist(), some.traced.sequences.tolist(), rows.tolist(), *dealt, strict=True
            ):
                if corpus == 1 and sequence in (5, 40, 41):
                    truth.add((row, *map(int, place), sequence))
        have = set()
        for some in run.find({1: np.array([5, 40, 41])}):
            counts = np.diff(some.traced.bounds)
            assert (counts > 0).all()
            assert some.ranks is not None
            dealt = [np.repeat(values, counts) for values in (some.rows, *some.ranks)]
            have |= {
                (*map(int, place), sequence)
                for *place, sequence in zip(*dealt, some.traced.sequences.tolist(), strict=True)
            }
        assert have == truth
        assert any(steps.rolled_back[row] for row, *_ in truth)


def test_orders_that_depend_on_ranks_need_them() -> None:
    """A shuffled order without ranks, and an order of another loader, are refused."""
    with pytest.raises(ConfigError, match="--data-parallel-size"):
        Sampling("sharded").order(100)
    with pytest.raises(ConfigError, match="do not fill a step"):
        Sampling("cyclic", 8, 8).order(10)
    words = ["--global-batch-size", "8", "--dataloader-type", "cyclic", "--no-data-sharding"]
    assert Sampling.of_run(run_of_command(words, 16), "train").kind == "cyclic"
    assert Sampling.of_run(run_of_command(words[:4], 16), "train").kind == "sharded"
    with pytest.raises(ConfigError, match="its samples are not those of a cache"):
        Sampling.of_run(RunOptions(Training(seq_length=1), "batch"), "train")
    with pytest.raises(ConfigError, match="--micro-batch-size: 0: must be positive"):
        Sampling.of_run(RunOptions(Training(seq_length=1, micro_batch_size=0)), "train")


def test_runs_of_other_caches_are_doubted(tmp_path: Path) -> None:
    """Samples of another length, and batches that ranks cannot share."""
    found = trace(build_numbered(tmp_path))
    jobs = parse_log("a", log("  seq_length ..... 4096\n", line(1, 8, 8)))
    assert jobs[0].arguments.get("seq_length") is None  # it stood after the options
    text = ARGUMENTS.format(ramp="None").replace("  train_iters", "  seq_length ... 4096\n  train")
    lines = (text + line(1, 8, 8) + line(2, 18, 10)).splitlines(keepends=True)
    _, notes = runs_of(found, parse_log("a", lines))
    assert "samples of 4096 tokens" in notes[0]
    assert notes[1] == "1 step took no whole micro batches of 2 for 2 ranks"
    words = ["--global-batch-size", "10", "--micro-batch-size", "2", "--data-parallel-size", "2"]
    with pytest.raises(ConfigError, match="no whole micro batches of 2 for 2 ranks"):
        runs_of(found, options=run_of_command(words, found.cache.sequence_length))
