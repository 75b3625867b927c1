"""Who writes corpora: this process, another one that is at it, or nobody because they are there."""

from __future__ import annotations

from distcache.corpus.output import Output
from distcache.corpus.receipt import (
    Receipt,
    find_receipt,
    read_receipt,
    receipt_path,
    write_receipt,
)

__all__ = ["claim_output", "publish_output"]


def claim_output(output: Output, made_from: str) -> list[Receipt]:
    """Become the writer of an output, or return the receipts of the corpora that are there.

    A publication that was killed is completed.

    Parameters
    ----------
    output : Output
        Where to write.
    made_from : str
        Digest of all that the corpora depend on.

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
    output.claim()
    if output.resume(made_from):
        complete = output.completed()
        receipts = [read_receipt(receipt_path(output.unfinished(n))) for n in range(complete)]
        if receipts:
            output.publish(complete)
        return receipts
    found = _published(output, made_from)
    if found:
        output.remove()
        return found
    try:
        output.require_free()
    except BaseException:
        output.remove()
        raise
    return []


def _published(output: Output, made_from: str) -> list[Receipt]:
    receipts: list[Receipt] = []
    while (found := find_receipt(output.final(len(receipts)))) is not None:
        if found.made_from != made_from:
            return []
        receipts.append(found)
        if not output.numbered:
            break
    return receipts


def publish_output(output: Output, receipts: list[Receipt]) -> None:
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
