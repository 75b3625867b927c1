"""`distcache rest`: what is left of corpora after training."""

from __future__ import annotations

import os
import re
import shlex
from typing import Annotated, Final, Literal

import typer

from distcache.cache.corpus_places import moves_from
from distcache.cli.cache import CacheArgument
from distcache.cli.common import (
    JsonOption,
    LogOption,
    PrefixOption,
    ThreadsOption,
    option_names,
)
from distcache.cli.show import make_progress, print_json, print_records
from distcache.errors import ConfigError
from distcache.ledger.rest import Rest, RestOptions, Trained, write_rest
from distcache.ledger.steps import Sampling
from distcache.ledger.trace import trace
from distcache.megatron.run_options import run_of_command
from distcache.ranks.job_environment import threads_of, usable_cores
from distcache.storage.url import path_only

CACHE_AT_SAMPLES: Final = re.compile(r"(.+)@(\d{1,18})")


def rest_command(
    context: typer.Context,
    cache: CacheArgument,
    samples: Annotated[int, typer.Option(min=0, help="Samples that training has consumed.")],
    out: Annotated[
        str,
        typer.Option(
            "--out", "-o", metavar="DIR", callback=path_only, help="Directory for the views."
        ),
    ],
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
            help="Number of times that each token is an input in the end; by default as often as "
            "the one that was most often, at least once.",
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
    the other splits become views as they are. A run in another order than the cache's is described
    by Megatron's options: --dataloader-type cyclic, --micro-batch-size, --data-parallel-size. With
    --global-batch-size the options of both jobs have the iteration between them.

    Examples
    --------
        distcache rest pretrain-4k.h5 --samples 120000 -o rest/

        distcache rest a.h5 --samples 50000 --and b.h5@20000 -o rest/ --partial drop
    """
    prefixes = dict(moves_from(prefix or [], os.environ))
    caches = [(cache, samples), *map(_pair, also or [])]
    trained = [Trained(trace(path, prefixes=prefixes), count) for path, count in caches]
    sampling, batch = Sampling(), None
    if context.args:
        length = trained[0].split.cache.sequence_length
        run = run_of_command(context.args, length, option_names(context))
        sampling, batch = Sampling.of_run(run, "train"), run.training.global_batch_size
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
    _show(rest, out, sum(count for _, count in caches), batch)


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
