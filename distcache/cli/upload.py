"""`distcache upload`."""

from __future__ import annotations

from typing import Annotated

import typer

from distcache.builder.upload import Uploaded, UploadOptions, upload
from distcache.cli.common import JsonOption, LogOption, interrupt_on_signals
from distcache.cli.show import make_progress, print_json
from distcache.ranks.connect import connect
from distcache.storage.units import size_text


def upload_command(
    cache: Annotated[str, typer.Argument(help="A finished cache.")],
    to: Annotated[
        str, typer.Option("--out", "-o", help="A directory of a bucket: s3://bucket/directory.")
    ],
    corpora: Annotated[
        bool,
        typer.Option("--corpora", help="Also upload the .idx, .bin and receipts, beside it."),
    ] = False,
    readback: Annotated[
        bool,
        typer.Option("--readback", help="Read every byte back, and not only cache and .idx."),
    ] = False,
    threads: Annotated[
        int,
        typer.Option(min=1, help="Large objects that a rank sends at a time; of small ones 16."),
    ] = 2,
    log_format: LogOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Upload a cache to a bucket, from which any node localizes it and trains.

    Runs alone or under mpiexec or srun; the objects are shared out over the ranks. No object is
    ever replaced: exit code 7 if another one has a name. Run it again to continue. Credentials and
    endpoints are those of AWS's own tools.

    Examples
    --------
        distcache upload caches/pretrain.h5 -o s3://bucket/pretrain --corpora

        srun -n 16 distcache upload caches/pretrain.h5 -o s3://bucket/pretrain --corpora
    """
    communicator = connect()
    interrupt_on_signals()
    options = UploadOptions(corpora=corpora, readback=readback, threads=threads)
    with make_progress(log_format, communicator.rank) as progress:
        done = upload(communicator, cache, to, options, progress)
    if communicator.rank == 0:
        if as_json:
            print_json(done)
        else:
            _show(done)


def _show(done: Uploaded) -> None:
    sent = f"{done.sent} of {done.objects} objects, {size_text(done.sent_bytes)}, were sent now"
    typer.echo(f"{done.url}: {size_text(done.nbytes)}, key {done.key}; {sent}")
    typer.echo(f"# on every node: distcache localize {done.url}")
