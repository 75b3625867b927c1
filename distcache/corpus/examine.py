"""Examine corpora with all ranks, which divide the files by bytes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import xxhash

from distcache.corpus.corpus import CorpusFacts, open_cached
from distcache.corpus.idx import bin_path, idx_path
from distcache.corpus.loss import LossFacts, loss_path, loss_version, read_loss
from distcache.corpus.mds.shard_table import read_table
from distcache.corpus.soundness import (
    RELEASED_FROM,
    Fault,
    Outline,
    RangeFacts,
    check_range,
    digest_idx,
    outline,
    summarize,
)
from distcache.errors import CorpusError, NotReady
from distcache.ranks.agreement import on_all_ranks, own_share, spread
from distcache.ranks.communicator import Communicator
from distcache.ranks.job_environment import node_name
from distcache.ranks.progress import NullProgress, Progress
from distcache.ranks.sending import digest_of_place
from distcache.storage.files import digest_range
from distcache.storage.listing import listed, listed_version
from distcache.storage.place import require_answer, threads_for, version_at
from distcache.storage.threads import map_in_threads
from distcache.storage.url import is_url

BLOCK_BYTES: Final = 64 << 20  # bytes of a `.bin` that are digested by one rank
TASK_SEQUENCES: Final = 1 << 22  # sequences of a task; 80 MiB of an .idx
BYTES_PER_SEQUENCE: Final = 20
WORTH_A_THREAD: Final = 1 << 19  # bytes of a task
PROBED_CORPORA: Final = 16  # corpora that show how long files take to open
WORTH_WAITING: Final = 5e-4  # seconds of one; below, threads wait for the interpreter's lock
MAX_DIRECTORIES: Final = 256  # in which each node looks for one corpus
PER_FILE: Final = 1 << 16  # cost of opening a file, in bytes read


class _Task(msgspec.Struct, frozen=True):
    """A corpus whose sequences [begin, end) to check, whose whole file to digest, or both."""

    corpus: int
    begin: int
    end: int
    check: bool
    digest: bool


class _Finding(msgspec.Struct, frozen=True):
    checked: RangeFacts | None
    digest: str | None


def examine(
    communicator: Communicator,
    prefixes: Sequence[str],
    threads: int,
    progress: Progress | None = None,
) -> tuple[dict[str, CorpusFacts], tuple[Fault, ...]]:
    """Check that corpora are sound. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    prefixes : sequence of str
        Each once.
    threads : int
        Files that each rank reads at a time.
    progress : Progress or None
        Receiver of the bytes that this rank has read.

    Returns
    -------
    facts : dict of str to CorpusFacts
        Facts of the sound corpora, by prefix.
    faults : tuple of Fault
        Faults of all other corpora, in the order of the prefixes.
    """
    progress = progress or NullProgress()
    _require_one_view(communicator, prefixes)

    def outline_own(own: Sequence[str]) -> list[Outline]:
        return _outline(own, threads)

    heads = spread(communicator, prefixes, outline_own, Outline, "reading headers")
    tasks = [task for index, head in enumerate(heads) for task in _tasks(index, head)]
    costs = [_cost(task, heads[task.corpus]) for task in tasks]

    def run(task: _Task) -> _Finding:
        found = _run(task, heads[task.corpus])
        progress.advance(_cost(task, heads[task.corpus]))
        return found

    # Small files are mostly Python code, which one thread runs faster than several.
    mean = sum(costs) / max(len(costs), 1)
    progress.phase("checking corpora", sum(costs) / communicator.size)
    useful = threads if mean >= WORTH_A_THREAD else 1
    findings = spread(
        communicator,
        tasks,
        lambda own: map_in_threads(run, own, useful),
        _Finding,
        "checking corpora",
        costs,
    )
    facts, faults = _put_together(heads, tasks, findings)
    masked = [facts[head.prefix] for head in heads if head.has_loss and head.prefix in facts]
    if masked:
        facts, wrong = _with_losses(communicator, facts, masked, threads)
        faults = (*faults, *wrong)
    changed = _changes(communicator, list(facts.values()))
    return {prefix: facts[prefix] for prefix in facts if prefix not in changed}, (
        *faults,
        *(fault for found in changed.values() for fault in found),
    )


class _Loss(msgspec.Struct, frozen=True):
    facts: LossFacts | None
    faults: tuple[Fault, ...] = ()


def _with_losses(
    communicator: Communicator,
    facts: dict[str, CorpusFacts],
    masked: Sequence[CorpusFacts],
    threads: int,
) -> tuple[dict[str, CorpusFacts], list[Fault]]:
    """Read the loss masks of corpora, and return all facts with theirs. Collective."""

    def read(corpus: CorpusFacts) -> _Loss:
        try:
            idx = open_cached(corpus.prefix, corpus.file_versions)
            return _Loss(read_loss(corpus.prefix, idx, corpus.bin_size))
        except CorpusError as error:
            path = loss_path(corpus.prefix)
            message = str(error).removeprefix(f"{path}: ")
            return _Loss(None, (Fault(corpus.prefix, path, message),))

    def read_all(own: Sequence[CorpusFacts]) -> list[_Loss]:
        return map_in_threads(read, own, threads)

    costs = [corpus.bin_size for corpus in masked]
    found = spread(communicator, masked, read_all, _Loss, "reading loss masks", costs)
    faults = [fault for loss in found for fault in loss.faults]
    new = dict(facts)
    for corpus, loss in zip(masked, found, strict=True):
        if loss.facts is None:
            del new[corpus.prefix]
        else:
            new[corpus.prefix] = msgspec.structs.replace(corpus, loss=loss.facts)
    return new, faults


def _outline(prefixes: Sequence[str], threads: int) -> list[Outline]:
    """Return the outlines of corpora, by several threads where files take long to open."""
    with listed(path(prefix) for prefix in prefixes for path in (bin_path, loss_path)):
        if any(map(is_url, prefixes)):
            return map_in_threads(outline, prefixes, threads_for(prefixes, threads))
        begin = time.perf_counter()
        first = [outline(prefix) for prefix in prefixes[:PROBED_CORPORA]]
        some = threads_at((time.perf_counter() - begin) / max(len(first), 1), threads)
        return first + map_in_threads(outline, prefixes[PROBED_CORPORA:], some)


def threads_at(seconds: float, threads: int) -> int:
    """Return how many threads open files of which one takes so many seconds."""
    return threads if seconds >= WORTH_WAITING else 1


def _run(task: _Task, head: Outline) -> _Finding:
    idx = open_cached(head.prefix, head.file_versions)
    checked = check_range(head, idx, task.begin, task.end) if task.check else None
    digest = digest_idx(idx) if task.digest else None
    if idx.size < RELEASED_FROM:
        idx.release(0, idx.size)
    idx.require_intact()
    return _Finding(checked, digest)


def _require_one_view(communicator: Communicator, prefixes: Sequence[str]) -> None:
    """Refuse nodes that see other corpora than the rest, before any is read. Collective.

    One index of each directory is looked for: what differs between nodes are filesystems.

    Raises
    ------
    CorpusError
        If a node does not see an index that others see, on all ranks.
    """
    if communicator.size == 1:
        return
    by_directory = {os.path.dirname(name): name for name in prefixes if not is_url(name)}  # noqa: PTH120
    chosen = list(by_directory.values())[:MAX_DIRECTORIES]
    nodes = communicator.allgather(node_name(os.environ), str, "the names of nodes")
    looks = nodes.index(nodes[communicator.rank]) == communicator.rank
    mine = [_size_of(idx_path(prefix)) for prefix in chosen] if looks else []
    views = communicator.allgather(mine, list[int], "looking for the corpora")
    lookers = [rank for rank, node in enumerate(nodes) if nodes.index(node) == rank]
    problems = []
    for place, prefix in enumerate(chosen):
        sizes = {rank: views[rank][place] for rank in lookers}
        wanted = max(sizes.values())
        blind = [rank for rank, size in sizes.items() if size != wanted]
        if blind:
            what = "does not see it" if sizes[blind[0]] < 0 else "sees another file there"
            problems.append(
                f"{idx_path(prefix)}: rank {blind[0]} on {nodes[blind[0]]} {what} ({len(blind)} of "
                f"{len(lookers)} nodes); every node must see the same corpora"
            )
    if problems:
        raise CorpusError(*problems).of_all_ranks()


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def _changes(communicator: Communicator, corpora: Sequence[CorpusFacts]) -> dict[str, list[Fault]]:
    """Return the corpora that were modified while they were read, by prefix. Collective."""

    def compare(own: Sequence[CorpusFacts]) -> list[list[Fault]]:
        with listed(path for facts in own for path in facts.files):
            return map_in_threads(_changed, own, _at_once(own))

    found = spread(communicator, corpora, compare, list[Fault], "examining corpora again")
    return {faults[0].prefix: faults for faults in found if faults}


def _at_once(corpora: Sequence[CorpusFacts]) -> int:
    """Return how many corpora are compared at a time: several, if they are in a bucket."""
    return threads_for((facts.prefix for facts in corpora), 1)


def _changed(facts: CorpusFacts) -> list[Fault]:
    problems = (problem.partition(": ") for problem in changes_of(facts))
    return [Fault(facts.prefix, path, message) for path, _, message in problems]


def require_sound(
    communicator: Communicator, prefixes: Sequence[str], threads: int
) -> dict[str, CorpusFacts]:
    """Return the facts of corpora that must all be sound. Collective.

    Raises
    ------
    CorpusError
        With every fault of every corpus, on all ranks.
    NotReady
        If they are that there are no such corpora.
    """
    facts, faults = examine(communicator, prefixes, threads)
    if faults:
        kind = NotReady if all(fault.missing for fault in faults) else CorpusError
        raise kind(*map(str, faults)).of_all_ranks()  # all ranks have all faults
    return facts


def digest_tokens(
    communicator: Communicator,
    prefix: str,
    size: int,
    advance: Callable[[float], None] = lambda _: None,
) -> str:
    """Return the digest of a `.bin`: XXH3-128 over the XXH3-128 of each 64 MiB. Collective.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks, which divide the blocks.
    prefix : str
        Path of the corpus without suffix.
    size : int
        Bytes of the `.bin`.
    advance : callable
        Receiver of the bytes that this rank has read.
    """
    blocks = range(-(-size // BLOCK_BYTES))

    def digests_of(own: Sequence[int]) -> list[str]:
        path = bin_path(prefix)
        ends = [(block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, size)) for block in own]
        version = version_at(path) if is_url(path) else None
        found = []
        for begin, end in ends:
            if version is None:
                found.append(digest_range(path, begin, end))
            else:
                found.append(digest_of_place(path, version, begin, end))
            advance(end - begin)
        return found

    digests = spread(communicator, blocks, digests_of, str, "digesting tokens")
    return xxhash.xxh3_128_hexdigest("".join(digests).encode())


def _tasks(index: int, head: Outline) -> list[_Task]:
    if head.idx_size == 0:
        return []
    if head.sequences <= TASK_SEQUENCES:
        return [_Task(index, 0, head.sequences, check=True, digest=True)]
    return [
        _Task(index, 0, 0, check=False, digest=True),
        *(
            _Task(
                index, begin, min(begin + TASK_SEQUENCES, head.sequences), check=True, digest=False
            )
            for begin in range(0, head.sequences, TASK_SEQUENCES)
        ),
    ]


def _cost(task: _Task, head: Outline) -> int:
    checked = BYTES_PER_SEQUENCE * (task.end - task.begin)
    return PER_FILE + checked + (head.idx_size if task.digest else 0)


def _put_together(
    heads: Sequence[Outline], tasks: Sequence[_Task], findings: Sequence[_Finding]
) -> tuple[dict[str, CorpusFacts], tuple[Fault, ...]]:
    digests: dict[int, str] = {}
    checked: dict[int, list[RangeFacts]] = {}
    for task, found in zip(tasks, findings, strict=True):
        if found.digest is not None:
            digests[task.corpus] = found.digest
        if found.checked is not None:
            checked.setdefault(task.corpus, []).append(found.checked)
    facts: dict[str, CorpusFacts] = {}
    faults: list[Fault] = []
    for index, head in enumerate(heads):
        if index not in digests:
            faults += head.faults
            continue
        whole, wrong = summarize(head, checked[index], digests[index])
        faults += wrong
        if not wrong:
            facts[head.prefix] = whole
    return facts, tuple(faults)


def require_unchanged(
    communicator: Communicator, corpora: Sequence[CorpusFacts], *, tokens: bool = False
) -> None:
    """Refuse corpora that were modified since they were examined. Collective.

    Sizes, inodes and times are compared. An index that is another file, or a later one, is digested
    once more: if it has the same content, nothing has changed. The content of a `.bin` is part of
    no array of a cache: only its size is compared, unless its tokens were read.

    Parameters
    ----------
    communicator : Communicator
        Group of all ranks.
    corpora : sequence of CorpusFacts
        Facts from their examination.
    tokens : bool
        Whether the tokens were read, too.

    Raises
    ------
    CorpusError
        With all of them, on all ranks.
    """
    own = own_share(communicator, corpora)
    at_once = _at_once(own)

    def compare() -> None:
        with listed(path for facts in own for path in facts.files):
            found = map_in_threads(lambda facts: changes_of(facts, tokens=tokens), own, at_once)
        problems = [problem for changes in found for problem in changes]
        if problems:
            raise CorpusError(*problems)

    on_all_ranks(communicator, compare, "comparing corpora with what was examined")


def changes_of(facts: CorpusFacts, *, tokens: bool = False) -> list[str]:
    """Return what has changed of one corpus since it was examined, each with its path first."""
    problems = []
    paths = facts.files
    loss = facts.loss if facts.file_versions else None  # nothing was read of a corpus that is gone
    if loss is not None and loss_version(facts.prefix) != loss.version:
        problems.append(
            f"{loss_path(facts.prefix)}: has been written to, or removed, since it was examined; "
            "build again"
        )
    for path, known in zip(paths, facts.file_versions, strict=False):
        try:
            found = listed_version(path)
        except OSError as error:
            require_answer(error)
            problems.append(f"{path}: cannot be read any more: {error.strerror}")
            continue
        if found == known:
            continue
        if is_url(path):
            same = False  # its bytes would have to be fetched again to tell
        elif path == paths[0]:
            same = (  # to one byte more: it may be growing
                found.size == known.size
                and digest_range(path, 0, found.size + 1) == facts.idx_digest
            )
        elif facts.shards is not None:
            same = read_table(facts.prefix).facts == facts.shards
        else:
            same = found.size == known.size and not tokens
        if not same:
            problems.append(
                f"{path}: has been written to since it was examined; do not write to a corpus "
                "while it is built from, and build again"
            )
    return problems
