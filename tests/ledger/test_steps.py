"""Steps of a run: from options, and from the logs of its jobs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from distcache.errors import ConfigError
from distcache.ledger.consumed import Consumed
from distcache.ledger.jobs_of_run import require_steps, runs_of
from distcache.ledger.logged_steps import logged_steps
from distcache.ledger.steps import (
    Sampling,
    evaluation_steps,
    evaluations_within,
    steps_within,
    training_steps,
)
from distcache.ledger.trace import trace
from distcache.ledger.traced_run import TracedRun
from distcache.megatron.run_options import RunOptions, run_of_command, run_of_log
from distcache.megatron.training_log import LoggedJob, parse_log
from distcache.megatron.training_options import Training
from tests.orders.orders import LENGTH, build_numbered

ARGUMENTS = """------------------------ arguments ------------------------
  data_parallel_size .............................. 2
  dataloader_type ................................. single
  global_batch_size ............................... 8
  iterations_to_skip .............................. {skip}
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


def log(*parts: str, ramp: str = "None", skip: str = "[]") -> list[str]:
    """Return the lines of a log: options, then these."""
    return (ARGUMENTS.format(ramp=ramp, skip=skip) + "".join(parts)).splitlines(keepends=True)


def pairs(steps: object) -> list[tuple[int, int, int]]:
    """Return numbers, begins and ends of steps."""
    columns = (getattr(steps, name).tolist() for name in ("numbers", "begins", "ends"))
    return list(zip(*columns, strict=True))


def test_every_line_is_a_step() -> None:
    """An iteration took the samples up to those that its line says, and as many as its batch."""
    jobs = parse_log("a", log(*(line(n, 8 * n, 8) for n in (1, 2, 4)), skip="[3]"))
    steps, _, notes = logged_steps(jobs)
    assert pairs(steps) == [(n, 8 * n - 8, 8 * n) for n in (1, 2, 3, 4)]
    assert steps.skipped.tolist() == [False, False, True, False]
    assert not steps.rolled_back.any()
    assert notes == []


def test_iterations_between_lines_are_filled_in() -> None:
    """With a line every ten iterations, those between have the same batch, if that fits."""
    jobs = parse_log("a", log(line(10, 80, 8), line(20, 160, 8), line(25, 200, 8)))
    steps, _, notes = logged_steps(jobs)
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
    steps, _, notes = logged_steps(parse_log("a", log(*lines, ramp="['4', '2', '60']")))
    assert pairs(steps) == pairs(truth)
    assert notes == []


def test_what_is_not_known_is_said() -> None:
    """Where neither fits, only the logged iterations are known."""
    found = Consumed.of_logs(parse_log("a", log(line(10, 80, 8), line(20, 170, 8))))
    assert pairs(found.steps)[-2:] == [(10, 72, 80), (20, 162, 170)]
    assert len(found.steps.numbers) == 11
    assert (found.samples, found.unknown.begins.tolist(), found.unknown.ends.tolist()) == (
        170,
        [80],
        [162],
    )
    assert (
        "samples 80 to 161 of the run were consumed by steps after iteration 10"
        in found.summary()[1]
    )


def test_a_job_after_another_rolls_back() -> None:
    """A job that continues a checkpoint does the iterations after it again."""
    first = log(*(line(n, 8 * n, 8) for n in range(1, 8)))
    loaded = "  successfully loaded checkpoint from /c [ t 1/1, p 1/1 ] at iteration 5\n"
    second = log(loaded, *(line(n, 40 + 4 * (n - 5), 4) for n in range(6, 9)))
    for jobs in (parse_log("a", first) + parse_log("b", second), parse_log("a", first + second)):
        assert [job.loaded for job in jobs] == [[], [5]]
        steps, _, notes = logged_steps(jobs)
        assert pairs(steps)[7:] == [(6, 40, 44), (7, 44, 48), (8, 48, 52)]
        assert steps.numbers[steps.rolled_back].tolist() == [6, 7]
        assert steps.jobs.tolist() == [0] * 7 + [1] * 3
        assert notes == []


def test_the_log_of_a_later_job_stands_alone() -> None:
    """A log that begins at a checkpoint has the samples of constant batches before it."""
    loaded = "successfully loaded checkpoint from /c at iteration 50\n"
    steps = logged_steps(parse_log("b", log(loaded, line(60, 480, 8)))).steps
    assert pairs(steps) == [(n, 8 * n - 8, 8 * n) for n in range(51, 61)]
    found = Consumed.of_logs(parse_log("b", log(loaded, line(60, 481, 8))))
    assert pairs(found.steps) == [(60, 473, 481)]
    assert (found.unknown.begins.tolist(), found.unknown.ends.tolist()) == ([0], [473])
    cut = [line(n, 8 * n + 1, 8) for n in (60, 61)]
    assert pairs(logged_steps(parse_log("c", cut))[0]) == [(60, 473, 481), (61, 481, 489)]


def test_options_are_read_from_a_log() -> None:
    """The log names the order, the batches and the ranks."""
    (job,) = parse_log("a", log(line(1, 8, 8), skip="[3]"))
    options = run_of_log(job)
    assert options.training.micro_batch_size == 2
    assert options.iterations_to_skip == [3]
    assert Sampling.of_run(options, "train") == Sampling("single", 2, 2)
    assert parse_log("a", ["nothing of training\n"]) == []
    prefixed = ["0: " + text for text in log(line(1, 8, 8), skip="[3]")]
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
    (unread,) = run_of_log(job).unread
    assert "global_batch_size: \"__import__('os')" in unread
    assert run_of_log(job).training.global_batch_size is None


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
    steps, _, notes = logged_steps(first + later)
    assert steps.numbers[steps.jobs == 1].tolist() == list(range(91, 121))
    assert steps.numbers[steps.rolled_back].tolist() == list(range(91, 101))
    tens = parse_log("b", log(*(line(n, 8 * n, 8) for n in (110, 120))))
    steps, _, _ = logged_steps(first + tens)
    assert steps.numbers[steps.jobs == 1].tolist() == list(range(101, 121))
    assert not steps.rolled_back.any()
    beyond = parse_log("b", log(*(line(n, 8 * n, 8) for n in (201, 202))))
    steps, _, _ = logged_steps(first + beyond)
    assert steps.numbers[steps.jobs == 1].tolist() == [201, 202]
    anew = parse_log("b", log(*(line(n, 8 * n, 8) for n in (1, 2))))
    steps, _, _ = logged_steps(first + anew)
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
    steps, _, _ = logged_steps(jobs)
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
    text = ARGUMENTS.format(ramp="None", skip="[]").replace(
        "  train_iters", "  seq_length ... 4096\n  train"
    )
    lines = (text + line(1, 8, 8) + line(2, 18, 10)).splitlines(keepends=True)
    _, notes = runs_of(found, Consumed.of_logs(parse_log("a", lines)))
    assert "samples of 4096 tokens" in notes[0]
    assert notes[1] == "1 step took no whole micro batches of 2 for 2 ranks"
    words = ["--global-batch-size", "10", "--micro-batch-size", "2", "--data-parallel-size", "2"]
    with pytest.raises(ConfigError, match="no whole micro batches of 2 for 2 ranks"):
        runs_of(found, Consumed.of_options(run_of_command(words, LENGTH), len(found)))


LOADED = "successfully loaded checkpoint from /c [ t 1/1, p 1/1 ] at iteration {}\n"


def test_steps_between_the_last_line_and_a_checkpoint_are_filled_in() -> None:
    """A line for ten iterations, a job that died after 37, and one that goes on from 35."""
    first = [line(n, n, 1) for n in (10, 20, 30)]
    later = [LOADED.format(35), *(line(n, n, 1) for n in (40, 50, 60))]
    found = Consumed.of_logs(parse_log("a", first + later))
    assert pairs(found.steps) == [(n, n - 1, n) for n in range(1, 61)]
    assert found.steps.jobs.tolist() == [0] * 35 + [1] * 25
    assert (found.samples, len(found.unknown.numbers)) == (60, 0)
    # batches that do not fit what was consumed in between
    other = [LOADED.format(35), *(line(n, 3 * n, 3) for n in (40, 50))]
    found = Consumed.of_logs(parse_log("a", first + other))
    assert found.unknown.begins.tolist() == [30]
    assert found.unknown.ends.tolist() == [105]


def test_a_ramp_is_filled_in_up_to_a_checkpoint() -> None:
    """The logged options say the batches between the last line and the checkpoint."""
    options = Training(
        seq_length=1, global_batch_size=8, rampup_batch_size=(4, 2, 60), megatron="0.17"
    )
    truth = training_steps(options, 30)
    lines = {
        n: line(n, int(truth.ends[n - 1]), int(truth.ends[n - 1] - truth.begins[n - 1]))
        for n in (3, 20, 30)
    }
    ramp = "['4', '2', '60']"
    text = log(lines[3], ramp=ramp) + log(LOADED.format(11), lines[20], lines[30], ramp=ramp)
    found = Consumed.of_logs(parse_log("a", text))
    assert pairs(found.steps) == pairs(truth)
    assert found.steps.jobs.tolist() == [0] * 11 + [1] * 19


def test_documents_of_unknown_steps_are_found_without_a_step(tmp_path: Path) -> None:
    """The log of a later job alone: what was trained before it is found, and no step is said."""
    found = trace(build_numbered(tmp_path))
    lines = [LOADED.format(12), *(line(n, 8 * n, 8) for n in range(13, 20))]
    consumed = Consumed.of_logs(
        parse_log("b", lines), {"micro_batch_size": 2, "data_parallel_size": 2}
    )
    runs, _ = runs_of(found, consumed)
    have: dict[int, list[tuple[int, int]]] = {}
    for some in (part for run in runs for part in run.find({1: np.arange(40)})):
        assert some.steps is not None
        assert some.ranks is not None
        for position, row, rank in zip(
            some.traced.positions, some.rows, some.ranks[1], strict=True
        ):
            have.setdefault(int(position), []).append((int(some.steps.numbers[row]), int(rank)))
    wanted = {int(position) for position in found.find({1: np.arange(40)}) if position < 19 * 8}
    assert set(have) == wanted
    for position, ((step, rank),) in have.items():
        assert (step < 0) == (rank < 0) == (position < 12 * 8)
        assert step < 0 or step == position // 8 + 1
    assert any(position < 12 * 8 for position in wanted)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([line(1, 4, 4), line(2, 100, 4)], "a: line 2: iteration 2 of 4 samples ended at 100"),
        ([line(1, 8, 8), line(2, 4, 4)], "line 2: .* iteration 1 ended at 8"),
        ([line(1, 3, 4)], "line 1: .* a run begins at 0"),
        ([line(5, 40, 0)], "of 0 samples"),
        ([line(10, 80, 8), line(20, 90, 8)], "line 2: iteration 20 of 8 samples ended at 90"),
        ([LOADED.format(50), line(3, 12, 4)], "line 2: is of iteration 3, but a checkpoint of"),
        ([LOADED.format(10**17), line(1, 4, 4)], "checkpoint of iteration 1000"),
        (
            [line(1, 8, 8), line(2, 16, 8), LOADED.format(2), line(3, 100, 8)],
            "line 4: iteration 3 began at 92 consumed samples, but iteration 2 of the job before",
        ),
    ],
)
def test_contradictions_name_their_line(lines: list[str], message: str) -> None:
    """What cannot be true is no answer."""
    with pytest.raises(ConfigError, match=message):
        logged_steps(parse_log("a", lines))


def test_a_checkpoint_of_a_teacher_is_none_of_the_run() -> None:
    """Of several that are loaded, the last one before the first line counts."""
    lines = [LOADED.format(5), LOADED.format(90000), line(6, 48, 8), line(7, 56, 8)]
    assert pairs(logged_steps(parse_log("a", lines)).steps) == [(6, 40, 48), (7, 48, 56)]


def test_jobs_in_a_wrong_order_are_said() -> None:
    """A job comes after the one whose checkpoint it began with; of one log, all are in order."""
    older = parse_log("older", [line(n, 8 * n, 8) for n in range(1, 11)])
    newer = parse_log("newer", [LOADED.format(10), *(line(n, 8 * n, 8) for n in (11, 12))])
    (note,) = logged_steps(newer + older).notes
    assert note.startswith("newer: line 2: began with the checkpoint of iteration 10, which is in")
    found = logged_steps(older + newer)
    assert (found.steps.numbers.tolist(), found.notes) == (list(range(1, 13)), [])
    one = [LOADED.format(10), *(line(n, 8 * n, 8) for n in (11, 12))]
    one += [LOADED.format(5), *(line(n, 8 * n, 8) for n in range(6, 14))]
    found = logged_steps(parse_log("one", one))
    assert found.notes == []
    assert found.steps.rolled_back.tolist() == [True, True] + [False] * 8
    anew = parse_log("anew", [line(n, 4 * n, 4) for n in range(1, 11)])
    assert logged_steps(newer + anew).steps.rolled_back.tolist() == [True] * 2 + [False] * 10


def test_what_may_be_the_output_of_two_ranks_is_said() -> None:
    """Lines that come again without a beginning of a job are taken for one that went back."""
    lines = [line(n, 8 * n, 8) for n in (1, 2, 3, 1, 2, 3, 4)]
    notes = logged_steps(parse_log("a", lines)).notes
    assert "a: line 4: iteration 1 again, and no line before it says that a job began" in notes[0]
    assert logged_steps(parse_log("a", lines[:3]) + parse_log("b", lines[3:])).notes == []


def test_a_given_skip_is_that_of_the_jobs_without_lines() -> None:
    """A job that began again to skip what the one before had trained."""
    first = [line(n, 8 * n, 8) for n in range(1, 16)]
    then = [LOADED.format(10), *(line(n, 8 * n, 8) for n in (11, 12, 15, 16))]
    given = {"iterations_to_skip": [13, 14]}
    steps = logged_steps(parse_log("a", first) + parse_log("b", then), given).steps
    assert steps.numbers[steps.skipped].tolist() == [13, 14]
    assert steps.jobs[steps.skipped].tolist() == [1, 1]


def test_values_of_a_log_that_cannot_be_are_the_logs() -> None:
    """They are left out by name; a batch size that is given does not change the lines."""
    text = ARGUMENTS.format(ramp="None", skip="[]").replace(" 2\n", " 0\n")
    jobs = parse_log("a", (text + line(1, 8, 8)).splitlines(keepends=True))
    steps, (options,), notes = logged_steps(jobs, {"global_batch_size": 4})
    assert options.training.micro_batch_size is None
    assert pairs(steps) == [(1, 0, 8)]
    assert notes == [
        "a: micro_batch_size: '0' is no value of this option, and is left out",
        "a: data_parallel_size: '0' is no value of this option, and is left out",
        "a: line 10: has a global batch size of 8, which counts, and not --global-batch-size 4",
    ]


def test_steps_that_no_line_says_are_named(tmp_path: Path) -> None:
    """They are asked for in vain, and why."""
    found = trace(build_numbered(tmp_path))
    lines = [line(1, 8, 8), line(2, 16, 8), LOADED.format(5), line(9, 56, 8), line(10, 64, 8)]
    runs, _ = runs_of(found, Consumed.of_logs(parse_log("a", lines)))
    with pytest.raises(ConfigError, match=r"no line says the samples of the steps 3 to 8$"):
        require_steps(runs, 4, 6)
    (note,) = require_steps(runs, 2, 11)
    assert note.endswith("without 6 of those; no line says the samples of the steps 3 to 8")


def test_a_guessed_beginning_is_said() -> None:
    """With a line for five iterations, a job without the line of its checkpoint is a guess."""
    first = [line(n, 8 * n, 8) for n in range(5, 26, 5)]
    later = [line(n, 8 * n, 8) for n in (25, 30, 35)]
    _, _, notes = logged_steps(parse_log("a", first) + parse_log("b", later))
    assert notes == [
        "b: line 1: no line before it says which checkpoint the job began with; it is taken to be "
        "that of iteration 24"
    ]


SKIP = "--- arguments ---\n iterations_to_skip .... {}\n--- end of arguments ---\n"


def skipping(listed: str, unlogged: list[int]) -> list[LoggedJob]:
    """Return a job of nine iterations, of which some have no line."""
    lines = [SKIP.format(listed)]
    lines += [line(n, 4 * n, 4) for n in range(1, 10) if n not in unlogged]
    return parse_log("a", "".join(lines).splitlines(keepends=True))


@pytest.mark.parametrize(
    ("listed", "unlogged", "skipped", "noted"),
    [
        ("[5]", [6], [6], False),  # 0.16 counts from 0
        ("[5]", [5], [5], False),  # later releases from 1
        ("[5, 6]", [6, 7], [6, 7], False),
        ("5", [5], [5], False),
        ("[5]", [5, 6], [5], True),
        ("[0]", [], [], False),
        ("[0]", [1], [1], False),  # the first is 0 in 0.16 alone
        ("[50]", [], [], False),
    ],
)
def test_lines_say_from_which_number_iterations_are_skipped(
    listed: str, unlogged: list[int], skipped: list[int], *, noted: bool
) -> None:
    """Megatron logs no iteration that it skips."""
    steps, _, notes = logged_steps(skipping(listed, unlogged))
    assert steps.numbers.tolist() == list(range(1, 10))
    assert steps.numbers[steps.skipped].tolist() == skipped
    assert bool(notes) == noted


@pytest.mark.parametrize(("release", "expected"), [("0.16", 6), ("0.19", 5)])
def test_a_release_says_from_which_number_iterations_are_skipped(
    release: str, expected: int
) -> None:
    """Also where lines do not, without a note."""
    steps, _, notes = logged_steps(skipping("[5]", [5, 6]), {"megatron": release})
    assert steps.numbers[steps.skipped].tolist() == [expected]
    assert notes == []


@pytest.mark.parametrize(
    ("listed", "unlogged", "given", "message"),
    [
        ("[5]", [], {}, "line 8: is of iteration 5, which --iterations-to-skip 5 leaves out, and"),
        ("[5, 6]", [6], {}, "line 8: is of iteration 5, which --iterations-to-skip 5, 6 leaves"),
        ("[5]", [5], {"megatron": "0.16"}, "of iteration 6, .* leaves out in this release"),
        ("[5]", [6], {"megatron": "0.19"}, "of iteration 5, .* leaves out in this release"),
    ],
)
def test_a_skipped_iteration_has_no_line(
    listed: str, unlogged: list[int], given: dict[str, str], message: str
) -> None:
    """A contradiction is an error that names the line, and says what helps."""
    with pytest.raises(ConfigError, match=message):
        logged_steps(skipping(listed, unlogged), given)
    logged_steps(skipping(listed, unlogged), {"iterations_to_skip": []})


def test_releases_say_from_which_number_iterations_are_skipped() -> None:
    """Without a log the release counts, and a note says that it was not given."""
    words = ["--global-batch-size", "4", "--iterations-to-skip", "5"]
    for release, expected in (("0.16", 6), ("0.17", 5), ("0.19", 5)):
        options = run_of_command([*words, "--megatron", release], LENGTH)
        found = Consumed.of_options(options, 100)
        assert found.steps.numbers[found.steps.skipped].tolist() == [expected]
        assert found.notes == []
    found = Consumed.of_options(run_of_command(words, LENGTH), 100)
    assert found.steps.numbers[found.steps.skipped].tolist() == [5]
    assert "give --megatron RELEASE" in found.notes[0]


def test_what_was_learned_is_what_was_consumed_and_not_skipped() -> None:
    """Ranges of samples, without those of skipped steps; rolled back ones are consumed again."""
    first = log(*(line(n, 8 * n, 8) for n in (1, 2, 4, 5)), skip="[3]")
    later = log(LOADED.format(2), *(line(n, 8 * n, 8) for n in (4, 5, 6)), skip="[3]")
    found = Consumed.of_logs(parse_log("a", first + later))
    assert found.samples == 48
    assert list(found.learned()) == [(0, 16), (24, 48)]
    assert found.summary()[0] == (
        "the run consumed 48 samples: 9 steps of 2 jobs, 3 steps rolled back, 1 step skipped"
    )
    assert list(Consumed.of_number(7).learned()) == [(0, 7)]
    assert list(Consumed.of_number(0).learned()) == []


def test_some_ranks_of_a_shuffled_order_are_ahead(tmp_path: Path) -> None:
    """Where an epoch has micro batches for some ranks after its last whole step, a note says it."""
    found = trace(build_numbered(tmp_path))
    assert len(found) % 4 == 3
    words = ["--dataloader-type", "cyclic", "--no-data-sharding", "--micro-batch-size", "1"]
    for ranks, late in ((4, True), (3, len(found) % 3 > 0)):
        more = ["--data-parallel-size", str(ranks), "--global-batch-size", str(ranks)]
        options = run_of_command([*words, *more], LENGTH)
        steps = len(found) // ranks
        _, notes = runs_of(found, Consumed.of_options(options, len(found), steps + 2))
        assert any(f"from step {steps + 1} on" in note for note in notes) == late
        assert runs_of(found, Consumed.of_options(options, len(found), steps + 1))[1] == []


def test_evaluations_beyond_the_split_are_noted(tmp_path: Path) -> None:
    """Those within it are known."""
    found = trace(build_numbered(tmp_path), "valid")
    words = [
        "--global-batch-size",
        "4",
        "--eval-interval",
        "10",
        "--eval-iters",
        "2",
        "--train-iters",
        "1000",
    ]
    options = run_of_command(words, LENGTH)
    (run,), notes = runs_of(found, Consumed.of_options(options, 10**6), last=1001)
    assert run.steps is not None
    assert len(run.steps.numbers) == len(found) // 8
    assert "evaluations took samples beyond the" in notes[0]


def test_a_beginning_within_a_step_is_refused(tmp_path: Path) -> None:
    """The first sample of a cache is the first of a step."""
    found = trace(build_numbered(tmp_path))
    consumed = Consumed.of_logs(parse_log("a", [line(n, 8 * n, 8) for n in (1, 2, 3, 4)]))
    with pytest.raises(ConfigError, match="--begin-at 20: is within step 3 of the run"):
        runs_of(found, consumed, begin_at=20)


def test_skips_behind_the_last_line_of_a_job() -> None:
    """They are skipped, too, if the next job began from a checkpoint behind them."""
    first = log(*(line(n, 8 * n, 8) for n in range(1, 9)), skip="[9, 10]")
    then = ["successfully loaded checkpoint from /x [ t 0 ] at iteration 10\n"]
    lines = [*first, *then, *(line(n, 8 * n, 8) for n in range(11, 14))]
    found = Consumed.of_logs(parse_log("a", lines))
    assert found.steps.numbers[found.steps.skipped].tolist() == [9, 10]
    assert list(found.learned()) == [(0, 64), (80, 104)]


def test_an_iteration_that_was_rolled_back_contradicts_none() -> None:
    """A job may begin behind what is left of the jobs before it."""
    loaded = "successfully loaded checkpoint from /x [ t 0 ] at iteration {}\n"
    lines = [
        *log(*(line(n, 10 * n, 10) for n in range(1, 21))),
        loaded.format(10),
        *(line(n, 100 + 20 * (n - 10), 20) for n in range(11, 16)),
        loaded.format(18),
        *(line(n, 290 + 30 * (n - 19), 30) for n in range(19, 22)),
    ]
    found = Consumed.of_logs(parse_log("a", lines))
    assert found.samples == 350
