"""Who writes corpora: this process, another one that is at it, or nobody because they are there."""

from __future__ import annotations

import contextlib
import os
from typing import Final

from distcache.corpus.idx import bin_path, idx_path
from distcache.corpus.output import Output
from distcache.corpus.receipt import (
    Origin,
    Receipt,
    find_receipt,
    read_receipt,
    receipt_path,
    write_receipt,
)
from distcache.errors import DistcacheError, KeyMismatch
from distcache.progress import Silent, Stopwatch
from distcache.ranks.agreement import from_rank_0, together
from distcache.ranks.communicator import Communicator, SerialCommunicator
from distcache.ranks.heartbeat import Heartbeat

__all__ = ["claim_output", "claim_output_together", "publish_together"]

COMPARED: Final = ("kind", "tokenizer", "versions")


def claim_output_together(
    communicator: Communicator, output: Output, origin: Origin
) -> list[Receipt]:
    """Let rank 0 claim an output for all, as `claim_output` does. Collective."""

    def claim() -> tuple[str, list[Receipt]]:
        found = claim_output(output, origin)
        return output.private, found

    private, found = from_rank_0(
        communicator, claim, tuple[str, list[Receipt]], "claiming the output"
    )
    if communicator.rank > 0:
        output.use(private)
    return found


def claim_output(output: Output, origin: Origin) -> list[Receipt]:
    """Become the writer of an output, or return the receipts of the corpora that are there.

    The writer then begins by `Output.begin`. A publication that was killed is completed.

    Parameters
    ----------
    output : Output
        Where to write.
    origin : Origin
        Of the corpora: all that they depend on.

    Returns
    -------
    list of Receipt
        Empty if there is something to do.

    Raises
    ------
    KeyMismatch
        If something else has their names.
    NotReady
        If another process writes there.
    """
    made_from = origin.made_from
    output.claim()
    same = output.stamp == made_from
    # What is published is done, even if whoever did it was killed before it had cleaned up.
    found = _published(output, made_from)
    complete = 0 if found else output.completed()
    if complete and (same or output.is_partly_published()):
        paths = [receipt_path(output.unfinished(shard)) for shard in range(complete)]
        receipts = [read_receipt(path) for path in paths]
        watch = Stopwatch(Silent(), lambda: 0.0)
        with Heartbeat(output.directory, watch, SerialCommunicator()):
            output.publish(complete)
        output.remove()
        if same:
            return receipts
        output.claim()
    if found:
        output.remove()
        return found
    try:
        output.require_free(_differences(output, origin))
    except KeyMismatch:
        if output.stamp is None:
            output.remove()  # there is nothing in it that anybody could resume
        raise
    return []


def _published(output: Output, made_from: str) -> list[Receipt]:
    """Return the receipts of the corpora that are there, if all are that this would make."""
    try:
        first = find_receipt(output.final(0))
    except DistcacheError:
        return []  # what has its name is none
    if first is None or first.made_from != made_from:
        return []
    receipts = [find_receipt(output.final(shard)) for shard in range(first.corpora)]
    found = [receipt for receipt in receipts if receipt and receipt.made_from == made_from]
    whole = all(_has_sizes(output.final(shard), receipt) for shard, receipt in enumerate(found))
    return found if len(found) == first.corpora and whole else []


def _differences(output: Output, origin: Origin) -> str:
    """Say in which options a corpus that is there differs, as far as its receipt says it."""
    with contextlib.suppress(DistcacheError, OSError):
        found = find_receipt(output.final(0))
        if found is not None:
            pairs = [(name, getattr(found, name), getattr(origin, name)) for name in COMPARED]
            options = {*found.options, *origin.options}
            pairs += [(name, found.options.get(name), origin.options.get(name)) for name in options]
            names = sorted(name for name, there, here in pairs if there != here)
            return f" (differs in {', '.join(names or ['inputs'])})"
    return " (it has no receipt)"


def _has_sizes(prefix: str, receipt: Receipt) -> bool:
    try:
        found = (os.stat(bin_path(prefix)).st_size, os.stat(idx_path(prefix)).st_size)
    except OSError:
        return False
    return found == (receipt.bin_size, receipt.idx_size)


def publish_together(
    communicator: Communicator, output: Output, receipts: list[Receipt], heartbeat: Heartbeat
) -> None:
    """Let rank 0 give corpora their names, then clean up. Collective.

    The heartbeats of all ranks end in between, before their files are removed.
    """
    from_rank_0(communicator, lambda: _publish(output, receipts), None, "publishing")
    heartbeat.end()
    together(communicator, lambda: None, "the last heartbeats")
    from_rank_0(communicator, output.remove, None, "cleaning up")


def _publish(output: Output, receipts: list[Receipt]) -> None:
    """Give corpora that are synced their names, with their receipts.

    Raises
    ------
    KeyMismatch
        If a name has been taken in the meantime.
    """
    for shard, receipt in enumerate(receipts):
        write_receipt(output.unfinished(shard), receipt)
    output.complete(len(receipts))
    output.publish(len(receipts))
