"""`distcache rest`: what is left of corpora after training."""

from __future__ import annotations

import os
import re
import shlex
from typing import Annotated, Final, Literal

import typer

from distcache.cache.corpus_places import moves_from
from distcache.cli.cache import TracedArgument
from distcache.cli.common import (
    JsonOption,
    LogOption,
    PrefixOption,
    ThreadsOption,
)
from distcache.cli.consumed import TrainingLogOption, consumed_of
from distcache.cli.show import make_progress, print_json, print_records
from distcache.errors import ConfigError
from distcache.ledger.consumed import Consumed
from distcache.ledger.rest import Rest, RestOptions, Trained, write_rest
from distcache.ledger.steps import Sampling
from distcache.ledger.trace import trace
from distcache.ranks.job_environment import threads_of, usable_cores
from distcache.storage.url import path_only

CACHE_AT_SAMPLES: Final = re.compile(r"(.+)@(\d{1,18})")


def rest_command(
    context: typer.Context,
    cache: TracedArgument,
    out: Annotated[
        str,
        typer.Option(
            "--out", "-o", metavar="DIR", callback=path_only, help="Directory for the views."
        ),
    ],
    samples: Annotated[
        int | None, typer.Option(min=0, help="Samples that training has consumed; or give --log.")
    ] = None,
    log: TrainingLogOption = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            "--and",
            metavar="CACHE@N",
            help="Another cache of the same corpora, and its samples; may be repeated.",
        ),
    ] = None,
    times: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Number of times that each token is an input in the end; by default the "
            "highest count so far, at least 1.",
        ),
    ] = None,
    partial: Annotated[
        Literal["keep", "drop"], typer.Option(help="Keep parts of documents, or drop them.")
    ] = "keep",
    prefix: PrefixOption = None,
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
    log_format: LogOption = "auto",
) -> None:
    """Make views of what is left of the corpora: for another sequence length, order or blend.

    Every token of the train split was an input, or is in the view, equally often. The sequences of
    the other splits become views unchanged. A run in another order than the cache's is described
    by Megatron's options: --dataloader-type cyclic, --micro-batch-size, --data-parallel-size. With
    --global-batch-size, it prints --phase-transition-iterations for both jobs.

    Examples
    --------
        distcache rest pretrain-4k.h5 --samples 120000 -o rest/

        distcache rest pretrain-4k.h5 --log train.log -o rest/

        distcache rest a.h5 --samples 50000 --and b.h5@20000 -o rest/ --partial drop
    """
    prefixes = dict(moves_from(prefix or [], os.environ))
    if samples is not None and log:
        raise ConfigError("--samples: a log says how many they are; give one of the two")
    opened = trace(cache, prefixes=prefixes)
    consumed = consumed_of(context, log, opened, samples=samples)
    if consumed is None:
        raise ConfigError(
            "give what training has consumed: --log FILE, --samples N, or a training command "
            "after --"
        )
    for note in consumed.summary():
        typer.echo(f"note: {note}", err=True)
    trained = [Trained(opened, consumed)]
    for path, count in map(_pair, also or []):
        trained.append(Trained(trace(path, prefixes=prefixes), Consumed.of_number(count)))
    sampling, batch = Sampling(), None
    if consumed.options:
        run = consumed.options[-1]
        sampling, batch = Sampling.of_run(run, "train"), run.training.global_batch_size
        others = any(Sampling.of_run(one, "train") != sampling for one in consumed.options)
        if others and sampling.kind != "single":
            raise ConfigError(
                f"jobs dealt the {sampling.kind} order to other ranks or micro batches than one "
                "another: which samples they consumed depends on it, and is not counted"
            )
    with make_progress(log_format) as progress:
        progress.phase("finding what is left", len(trained[0].split.pairs))
        rest = write_rest(
            trained,
            out,
            RestOptions(times, partial, sampling),
            threads or threads_of(usable_cores(), 1),
            progress.advance,
        )
    if as_json:
        print_json(rest)
        return
    _show(rest, out, sum(one.consumed.samples for one in trained), batch)


def _show(rest: Rest, out: str, total: int, batch: int | None) -> None:
    """Show what is left, and the options of both of Megatron's jobs."""
    print_records(
        f"What is left, in {out}",
        [
            {
                "corpus": one.corpus,
                "times": one.times,
                "tokens seen": one.trained_tokens,
                "tokens left": one.left_tokens,
                "sequences": one.sequences,
                "fragments": one.fragments,
                "dropped": one.dropped_tokens,
            }
            for one in rest.corpora
        ],
    )
    if batch and total % batch:
        typer.echo(f"note: {total:,} samples are no whole steps of {batch}", err=True)
    iteration = f"{total // batch}" if batch else f"ITERATION  # that consumed {total:,} samples"
    typer.echo(f"blend of a configuration: `blend_per_split` in {os.path.join(out, 'rest.json')}")
    typer.echo(f"Megatron, this job: --phase-transition-iterations {iteration}")
    typer.echo(
        f"Megatron, the next: --per-split-data-args-path {shlex.quote(rest.megatron)} "
        f"--phase-transition-iterations {iteration}"
    )


def _pair(text: str) -> tuple[str, int]:
    """Return the cache and the samples of ``CACHE@N``."""
    found = CACHE_AT_SAMPLES.fullmatch(text)
    if found is None:
        raise ConfigError(f"--and {text}: expected CACHE@SAMPLES")
    return found[1], int(found[2])
