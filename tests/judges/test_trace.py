"""Traces and logs are judged by Megatron's datasets, samplers, batch sizes and log lines."""

from __future__ import annotations

import inspect
import itertools
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from distcache.builder.configuration import config_from_mapping
from distcache.errors import CacheCorrupt, ConfigError, NotReady
from distcache.ledger.consumed import Consumed
from distcache.ledger.logged_steps import logged_steps
from distcache.ledger.report import make_report
from distcache.ledger.rest import RestOptions, Trained, write_rest
from distcache.ledger.steps import Sampling, Steps
from distcache.ledger.trace import trace
from distcache.ledger.traced_run import TracedRun
from distcache.megatron.batch_sizes import batch_sizes
from distcache.megatron.run_options import run_of_log
from distcache.megatron.training_log import LoggedJob, parse_log
from distcache.megatron.training_options import Training
from tests.judges.megatron import RELEASE, IndexedDataset, alone, build_with_megatron
from tests.orders.orders import build_numbered, fields_of
from tests.support.processes import start

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core import num_microbatches_calculator as calculator

    samplers: Any = None
    if RELEASE >= "0.17":
        from megatron.training.datasets import data_samplers as samplers

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True, scope="module")
def _process_group() -> Iterator[None]:
    with alone():
        yield


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("case", ["megatron", "no extra token"])
def test_parts_are_what_megatron_queries(case: str, split: str, tmp_path: Path) -> None:
    """Documents and tokens of each sample are those of the dataset's own query."""
    path = build_numbered(tmp_path, case)
    config = config_from_mapping(fields_of(tmp_path / "corpora", case))
    theirs = build_with_megatron(config, tmp_path / "megatron", 1 << 30, 1 << 30)
    dataset = theirs[("train", "valid").index(split)]
    found = trace(path, split)
    assert len(dataset) == len(found)
    traced = found.samples(np.arange(len(found)))
    for position in range(len(found)):
        number = int(dataset.dataset_index[position])
        sub = dataset.datasets[number]
        sample = int(dataset.dataset_sample_index[position])
        text, documents = sub._query_document_sample_shuffle_indices(sample)[:2]
        own = slice(*traced.bounds[position : position + 2].tolist())
        starts = np.concatenate([[0], np.cumsum(sub.dataset.sequence_lengths)])
        begins = starts[traced.sequences[own]]
        tokens = [
            np.arange(begin + low, begin + high)
            for begin, low, high in zip(begins, traced.begins[own], traced.ends[own], strict=True)
        ]
        assert traced.corpora[position] == number
        assert np.concatenate(tokens).tolist() == text[text != 1 << 30].tolist()
        # Megatron also names documents of which a sample has no token.
        assert set(traced.sequences[own].tolist()) <= set(documents.tolist())


@pytest.mark.since("0.17")  # has samplers in its wheel
@pytest.mark.parametrize("kind", ["single", "cyclic", "sharded"])
def test_steps_deal_samples_as_samplers_do(kind: Any, tmp_path: Path) -> None:
    """Step, micro batch, rank and slot of each sample are those of Megatron's samplers."""
    path = build_numbered(tmp_path)
    found = trace(path)
    total = len(found)
    random = np.random.default_rng(3)
    for _ in range(40):
        micro, ranks = int(random.integers(1, 5)), int(random.integers(1, 5))
        accumulate = int(random.integers(1, 4))
        batch = micro * ranks * accumulate
        first = int(random.integers(0, max(total // batch, 1)))
        count = max(min(4, total // batch - first), 0)
        if kind != "single":
            first, count = first + int(random.integers(0, 2)) * (total // batch), 4
        numbers = np.arange(first + 1, first + count + 1)
        steps = Steps.of(numbers, numbers * batch, np.full(count, batch))
        run = TracedRun(found, Sampling(kind, micro, ranks))
        dealt = {}
        for some in run.of_steps(steps):
            assert some.ranks is not None
            for step, position, m, rank, slot in zip(
                steps.numbers[some.rows], some.traced.positions, *some.ranks, strict=True
            ):
                dealt[int(step), int(m), int(rank), int(slot)] = int(position)
        expected = {}
        for rank in range(ranks):
            batches = sampler_of(kind, total, first * batch, micro, rank, ranks)
            for number, own in enumerate(itertools.islice(batches, count * accumulate)):
                for slot, position in enumerate(own):
                    place = first + 1 + number // accumulate, number % accumulate, rank, slot
                    expected[place] = int(position)
        assert dealt == expected


def sampler_of(
    kind: str, total: int, consumed: int, micro: int, rank: int, ranks: int
) -> Iterator[list[int]]:
    """Yield the micro batches of a rank, epoch after epoch, as `cyclic_iter` does."""
    if kind == "single":
        yield from samplers.MegatronPretrainingSampler(total, consumed, micro, rank, ranks)
        return
    sampler = samplers.MegatronPretrainingRandomSampler(
        None, total, consumed, micro, rank, ranks, kind == "sharded"
    )
    step, epoch = micro * ranks, total - total % (micro * ranks)
    done = consumed
    while True:
        left = (epoch - done % epoch) // step
        yield from itertools.islice(iter(sampler), left)
        done += left * step
        sampler = samplers.MegatronPretrainingRandomSampler(
            None, total, done, micro, rank, ranks, kind == "sharded"
        )


@pytest.mark.since("0.19")
def test_full_validation_is_dealt_as_its_sampler_does() -> None:
    """Each rank goes through its own samples again and again, one at a time."""
    random = np.random.default_rng(4)
    for _ in range(60):
        ranks = int(random.integers(1, 6))
        total = int(random.integers(ranks, 40))
        sampling = Sampling("full", 1, ranks)
        order = sampling.order(total)
        iterations = -(-total // ranks)
        for rank in range(ranks):
            own = samplers.MegatronFullValidationSampler(total, rank, ranks)
            endless = itertools.chain.from_iterable(iter(own) for _ in itertools.count())
            theirs = [one[0] for one in itertools.islice(endless, 3 * iterations)]
            ids = order.ids(0, 3 * order.epoch)
            assert ids[rank::ranks].tolist() == theirs


def test_batches_are_the_calculators() -> None:
    """The sizes of ramps, with and without decreasing, and of schedules, step by step."""
    random = np.random.default_rng(5)
    ramps = schedules = 0
    while ramps < 60:
        micro, ranks = int(random.integers(1, 3)), int(random.integers(1, 4))
        decrease, unit = bool(random.integers(0, 2)), micro * ranks
        start = unit * int(random.integers(1, 4))
        increment = int(random.integers(1, 9)) if decrease else unit * int(random.integers(1, 4))
        final = start + increment * int(random.integers(1, 8))
        samples = int(random.integers(10, 2000))
        if RELEASE >= "0.18":
            break  # which has no ramps
        try:
            theirs = calculator.RampupBatchsizeNumMicroBatchesCalculator(
                final, micro, ranks, decrease, 0, start, increment, samples
            )
        except AssertionError:
            continue
        training = Training(
            seq_length=1,
            micro_batch_size=micro,
            data_parallel_size=ranks,
            global_batch_size=final,
            rampup_batch_size=(start, increment, samples),
            decrease_batch_size_if_needed=decrease,
            megatron="0.17",
        )
        require_sizes(theirs, training, unit)
        ramps += 1
    if not hasattr(calculator, "StepBatchsizeNumMicroBatchesCalculator"):
        return
    for _ in range(60):
        micro, ranks = int(random.integers(1, 3)), int(random.integers(1, 4))
        length = int(random.choice([1, 16, 4096]))
        begins = [0, *sorted(random.choice(np.arange(1, 500), 3, replace=False).tolist())]
        sizes = [micro * ranks * int(random.integers(1, 6)) for _ in begins]
        text = " ".join(f"{b * length}:{s}" for b, s in zip(begins, sizes, strict=True))
        theirs = calculator.StepBatchsizeNumMicroBatchesCalculator(
            micro, ranks, False, 1, text, length
        )
        training = Training(seq_length=length, step_batch_size_schedule=text)
        require_sizes(theirs, training, micro * ranks)
        schedules += 1
    assert schedules == 60


def require_sizes(theirs: Any, training: Training, unit: int) -> None:
    """Compare the sizes of the first steps, each after the samples before it."""
    consumed = 0
    for size in batch_sizes(training, 200).tolist():
        theirs.update(consumed, consistency_check=False)
        assert size == theirs.get() * unit
        consumed += size


def test_batches_need_what_they_depend_on() -> None:
    """A ramp needs the release, and decreasing the size of a micro batch."""
    training = Training(seq_length=1, global_batch_size=8, rampup_batch_size=(4, 4, 9))
    with pytest.raises(ConfigError, match="which release counts"):
        batch_sizes(training, 3)


@pytest.mark.parametrize("case", ["megatron", "packed", "passes"])
def test_megatron_counts_what_is_left(case: str, tmp_path: Path) -> None:
    """Read by Megatron's own index, the views have each token as often as it is left."""
    path = build_numbered(tmp_path, case)
    split = trace(path)
    rest = write_rest(
        [Trained(split, Consumed.of_number(130))], str(tmp_path / "rest"), RestOptions()
    )
    traced = trace(path).samples(np.arange(130))
    inputs = traced.ends - traced.label_only
    for corpus, made in enumerate(rest.corpora):
        whole = IndexedDataset(made.corpus)
        starts = np.concatenate([[0], np.cumsum(whole.sequence_lengths)])
        counts = np.zeros(int(starts[-1]), np.int64)
        own = np.repeat(traced.corpora, np.diff(traced.bounds)) == corpus
        for sequence, begin, end in zip(
            traced.sequences[own], traced.begins[own], inputs[own], strict=True
        ):
            counts[starts[sequence] + begin : starts[sequence] + end] += 1
        if made.view is not None:
            view = IndexedDataset(made.view)
            for number in range(len(view)):
                np.add.at(counts, np.asarray(view[number], np.int64), 1)
        entry = split.cache.table("sections")[split.pairs[corpus][0]]
        tokens = slice(starts[int(entry["begin"])], starts[int(entry["end"])])
        assert (counts[tokens] == made.times).all()


@pytest.mark.parametrize("split", ["train", "valid"])
@pytest.mark.parametrize("case", ["megatron", "no extra token"])
def test_files_of_megatron_itself_are_traced(case: str, split: str, tmp_path: Path) -> None:
    """What Megatron wrote is read as a cache, of which all answers are the same."""
    path = build_numbered(tmp_path, case)
    config = config_from_mapping(fields_of(tmp_path / "corpora", case))
    build_with_megatron(config, tmp_path / "megatron", 1 << 30, 1 << 30)
    ours, theirs = trace(path, split), trace(tmp_path / "megatron", split)
    assert len(theirs) == len(ours)
    assert theirs.corpora == ours.corpora
    positions = np.arange(len(ours))
    for mine, found in zip(ours.samples(positions), theirs.samples(positions), strict=True):
        assert np.array_equal(mine, found)
    assert theirs.positions(2, [5, 7]).tolist() == ours.positions(2, [5, 7]).tolist()
    one, other = make_report(ours), make_report(theirs)
    for name in ("samples", "corpora", "windows", "succession", "repeats", "padding"):
        assert getattr(one, name) == getattr(other, name)
    single = next((tmp_path / "megatron").glob(f"*-GPTDataset-{split}-description.txt"))
    assert len(trace(str(single).removesuffix("-description.txt"), split)) > 0


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    """No descriptions, several data sets, a description without a field, and pickled arrays."""
    with pytest.raises(NotReady, match="has no description"):
        trace(tmp_path)
    config = config_from_mapping(fields_of(tmp_path / "corpora", "megatron"))
    build_numbered(tmp_path)
    directory = tmp_path / "megatron"
    build_with_megatron(config, directory, 1 << 30, 1 << 30)
    other = msgspec.structs.replace(config, seed=6)
    build_with_megatron(other, directory, 1 << 30, 1 << 30)
    with pytest.raises(ConfigError, match="has 2 data sets of split 'train'; name one of them"):
        trace(directory)
    stem = next(directory.glob("*-BlendedDataset-train-description.txt"))
    array = Path(str(stem).replace("description.txt", "dataset_index.npy"))
    np.save(array, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(CacheCorrupt, match="is no array of"):
        trace(str(stem).removesuffix("-description.txt"))
    stem.write_text("{}")
    with pytest.raises(CacheCorrupt, match="is not a description"):
        trace(directory)


def train(
    path: Path, job: int, first: int, last: int, consumed: int, interval: int
) -> list[LoggedJob]:
    """Train from one iteration to another, and return what the log says."""
    words = [path.parent, job, first, last, consumed, interval]
    here = {"CACHE": str(path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = start(
        list(map(str, words)),
        environment=here,
        program=(sys.executable, "-m", "tests.judges.training_run"),
    )
    assert done.returncode == 0, done.stderr
    return parse_log(f"job {job}", done.stdout.splitlines(keepends=True))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.since("0.19")
@pytest.mark.parametrize("interval", [1, 3])
def test_steps_of_a_log_are_those_that_were_served(interval: int, tmp_path: Path) -> None:
    """Two jobs with batches by a schedule, the second from a checkpoint within the first."""
    path = build_numbered(tmp_path)
    jobs = train(path, 0, 0, 9, 0, interval)
    consumed = int(logged_steps(jobs)[0].ends[5])  # of the checkpoint after iteration 6
    jobs += train(path, 1, 6, 12, consumed, interval)
    steps, _, notes = logged_steps(jobs)
    assert notes == []
    assert steps.numbers.tolist() == [*range(1, 10), *range(7, 13)]
    assert steps.numbers[steps.rolled_back].tolist() == [7, 8, 9]
    assert set((steps.ends - steps.begins).tolist()) == {8, 12}
    sampling = Sampling.of_run(run_of_log(jobs[-1]), "train")
    assert sampling == Sampling("single", 2, 2)
    run = TracedRun(trace(path), sampling)
    for job in (0, 1):
        served = json.loads((path.parent / f"served-{job}.json").read_text())
        own = steps.take(steps.jobs == job)
        found = []
        for some in run.of_steps(own):
            assert some.ranks is not None
            columns = (own.numbers[some.rows], *some.ranks, some.traced.positions)
            found += np.stack(columns, axis=1).tolist()
        assert sorted(found) == sorted(served)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.since("0.19")
def test_the_line_of_a_checkpoint_is_megatrons() -> None:
    """What says the iteration of a checkpoint is written as it is looked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.training import checkpointing  # noqa: PLC0415

    text = inspect.getsource(checkpointing)
    assert "successfully loaded checkpoint from" in text
    assert "at iteration {iteration}" in text
