"""The output of an ingest: paths of unfinished corpora, their claim and publication."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, Literal, NamedTuple

from distcache.corpus.idx import bin_path, idx_path
from distcache.corpus.loss import loss_path
from distcache.corpus.mds.shard_table import read_table, shards_path
from distcache.corpus.receipt import (
    Origin,
    Receipt,
    find_receipt,
    read_receipt,
    receipt_path,
    write_receipt,
)
from distcache.errors import ConfigError, DistcacheError, KeyMismatch
from distcache.ranks.agreement import on_rank_0
from distcache.ranks.communicator import Communicator
from distcache.ranks.heartbeat import Heartbeat
from distcache.ranks.production import produce
from distcache.ranks.progress import NullProgress, Progress, Stopwatch
from distcache.ranks.workspace import Workspace, claim, hidden_directory
from distcache.storage.files import digest_range, is_plain_file, make_link
from distcache.storage.url import is_url

COMPARED_FIELDS: Final = ("kind", "tokenizer", "versions")
RESULTS: Final = frozenset({"length_of_all"})  # options have results of a command, too
SUFFIXES: Final = ("bin", "shards", "loss", "idx", "receipt.json")
MAX_NAME_BYTES: Final = 200  # bytes: suffixes and numbers are appended


class Links(NamedTuple):
    """Targets of the links that a view has in the place of files."""

    tokens: str
    loss: str | None = None  # the loss mask of its corpus, if that has one


class Output:
    """The paths of unfinished corpora in a workspace, and their final names.

    Their files are `N.bin` (or `N.shards`), `N.loss` where there is a loss mask, `N.idx` and
    `N.receipt.json` of a workspace, N counting from 0. Rank 0 holds the workspace during `produce`.

    Parameters
    ----------
    prefix : str
        Prefix of the corpus; with `numbered`, the N-th is ``PREFIX-00000``.
    numbered : bool
        Whether there may be several.
    tokens : str
        Suffix of the file beside the index: ``bin`` or ``shards``.

    Attributes
    ----------
    workspace : Workspace
        Directory of the unfinished files.
    """

    def __init__(
        self, prefix: str, *, numbered: bool = False, tokens: Literal["bin", "shards"] = "bin"
    ) -> None:
        self.tokens = tokens
        if is_url(prefix):
            raise ConfigError(
                f"--out {prefix}: cannot be in a bucket; write to a filesystem, and put the "
                "corpora there with the cache: `distcache upload --corpora`"
            ).of_all_ranks()
        self.prefix = os.path.abspath(prefix)
        self._given = prefix
        self.numbered = numbered
        if not Path(self.prefix).name:
            raise ConfigError(
                f"--out {prefix}: is a directory; expected the path of a corpus in one"
            ).of_all_ranks()
        shared = hidden_directory(Path(self.prefix), "ingest")
        self.workspace = Workspace(shared, otherwise="choose another --out")

    @property
    def directory(self) -> Path:
        """Where the unfinished files are."""
        return self.workspace.path

    @property
    def journal(self) -> Path:
        """The journal of an ingest."""
        return self.directory / "journal.jsonl"

    def final(self, shard: int) -> str:
        """Return the final prefix of the N-th corpus."""
        return f"{self.prefix}-{shard:05}" if self.numbered else self.prefix

    def name(self, shard: int) -> str:
        """Return the last component of the final prefix of the N-th corpus."""
        return Path(self.final(shard)).name

    def unfinished(self, shard: int) -> str:
        """Return the prefix of the N-th unfinished corpus."""
        return str(self.directory / str(shard))

    def part(self, shard: int, name: str) -> str:
        """Return the path of a file of the N-th unfinished corpus."""
        return f"{self.unfinished(shard)}.{name}"

    def produce(
        self,
        communicator: Communicator,
        origin: Origin,
        watch: Stopwatch,
        make: Callable[[], tuple[list[Receipt], Mapping[int, Links]]],
        *,
        resumes: bool = False,
    ) -> tuple[list[Receipt], bool]:
        """Make the corpora, or find those that were made from the same. Collective.

        Waits for another job that makes them. A killed publication is completed.

        Parameters
        ----------
        communicator : Communicator
            All ranks.
        origin : Origin
            Everything that the corpora depend on.
        watch : Stopwatch
            Progress of this rank.
        make : callable
            Writes, syncs and verifies the unfinished corpora. Returns their receipts, and for each
            corpus whose `.bin` is a link the targets of its links, seen from the final name.
            Collective.
        resumes : bool
            Whether `make` continues the unfinished work of a killed run.

        Returns
        -------
        list of Receipt
            Receipts of the corpora.
        bool
            Whether the corpora existed.

        Raises
        ------
        KeyMismatch
            If other files have their names.
        ConfigError
            If the prefix is not a path in a directory.
        """
        found: list[Receipt] = []

        def claim_or_find() -> bool:
            self._require_name()
            claimed = self._claim(origin, watch)
            found.extend([] if claimed else self._published(origin))
            return claimed

        def prepare_and_make() -> tuple[list[Receipt], Mapping[int, Links]]:
            on_rank_0(communicator, lambda: self._prepare(origin), None, "making room")
            return make()

        return produce(
            communicator,
            self.workspace,
            watch,
            claim=claim_or_find,
            on_existing=lambda: (
                on_rank_0(communicator, lambda: found, list[Receipt], "reading receipts"),
                True,
            ),
            make=prepare_and_make,
            publish=lambda made: self._publish(*made),
            report=lambda made, _none: (made[0], False),
            resumes=resumes,
        )

    def _claim(self, origin: Origin, progress: Progress) -> bool:
        workspace = self.workspace
        made_from = origin.made_from
        while claim(
            workspace, lambda: bool(self._published(origin)), self.prefix, progress, made_from
        ):
            same = workspace.stamp == made_from
            # A killed publication may have named some of the files here.
            if same or any(ours for _, ours in self._final_files()):
                with Heartbeat(workspace.path, Stopwatch(NullProgress())):
                    if complete := len(self._whole_receipts(workspace.published())):
                        self._give_names(complete)
                if complete:
                    workspace.remove()
                    continue
            try:
                self._require_free(self._differences(origin), resuming=same)
            except KeyMismatch:
                if workspace.stamp is None:
                    workspace.remove()  # it has nothing to resume
                else:
                    workspace.release()
                raise
            return True
        return False

    def _prepare(self, origin: Origin) -> None:
        """Keep files that were made from the same, and remove others."""
        for final, ours in self._final_files():
            if ours:  # of a killed publication that is not whole: it is made again
                os.unlink(final)
        self.workspace.prepare(origin.made_from)
        for receipt in self.directory.glob("*.receipt.json"):
            receipt.unlink()  # what it describes is written again

    def link_tokens(self, shard: int, links: Links) -> None:
        """Make the `.bin` of the N-th unfinished corpus a link to other tokens, and its mask."""
        prefix = self.unfinished(shard)
        for path, target in ((bin_path(prefix), links.tokens), (loss_path(prefix), links.loss)):
            Path(path).unlink(missing_ok=True)
            if target is not None:
                otherwise = "write the view elsewhere, and its tokens by `materialize`"
                make_link(Path(path), target, otherwise)

    def _publish(self, receipts: list[Receipt], links: Mapping[int, Links]) -> None:
        """Publish synced corpora with their receipts."""
        for shard, targets in links.items():
            self.link_tokens(shard, targets)
        for shard in reversed(range(len(receipts))):  # the first one says how many there are
            write_receipt(self.unfinished(shard), receipts[shard])
        self._give_names(len(receipts))

    def _require_name(self) -> None:
        name = os.fsencode(Path(self.prefix).name)
        if len(name) > MAX_NAME_BYTES:
            raise ConfigError(f"--out: the name has {len(name)} bytes, more than {MAX_NAME_BYTES}")
        if not name or self._given.endswith("/") or os.path.isdir(self.prefix):
            raise ConfigError(
                f"--out {self.prefix}: is a directory; expected the path of a corpus in one"
            )
        if not self.prefix.isprintable():
            raise ConfigError(f"--out {self.prefix!r}: expected printable text")

    def _published(self, origin: Origin) -> list[Receipt]:
        """Return the receipts of the corpora if all exist and were made from the same."""
        found = self._whole_receipts(None)
        return found if all(one.made_from == origin.made_from for one in found) else []

    def _whole_receipts(self, named: Collection[str] | None) -> list[Receipt]:
        """Return the receipts of the corpora if all are whole.

        Parameters
        ----------
        named : collection of str or None
            Files that have their final names, while others lack theirs; then indices are digested.
            None if all have them.
        """
        found: list[Receipt] = []
        while not found or len(found) < found[0].corpora:
            tokens, receipt_file, idx = (
                there if named is None or there in named else here
                for here, there in self._names(len(found))
            )
            if not (is_plain_file(receipt_file) and is_plain_file(idx)):
                return []
            try:
                receipt = read_receipt(receipt_file)
                sizes = self._token_bytes(tokens, len(found)), os.stat(idx).st_size
            except (OSError, DistcacheError):
                return []
            if sizes != (receipt.bin_size, receipt.idx_size):
                return []
            masks = (loss_path(self.unfinished(len(found))), loss_path(self.final(len(found))))
            if receipt.loss is not None and not any(map(os.path.lexists, masks)):
                return []
            if named is not None and digest_range(idx, 0, sizes[1]) != receipt.idx_digest:
                return []
            found.append(receipt)
        return found

    def _token_bytes(self, tokens: str, shard: int) -> int:
        """Return the bytes of a `.bin` or of a table's shards; links lead on from final names."""
        if self.tokens == "shards":
            return read_table(tokens.removesuffix(".shards")).bin_size
        if os.path.islink(tokens):
            tokens = str(Path(self.final(shard)).parent / os.readlink(tokens))
        return os.stat(tokens).st_size

    def _give_names(self, shards: int) -> None:
        self.workspace.require_mine()
        self._require_free()
        masks = [
            (loss_path(self.unfinished(shard)), loss_path(self.final(shard)))
            for shard in range(shards)
        ]
        names = [pair for pair in masks if os.path.lexists(pair[0])]
        names += [pair for shard in range(shards) for pair in self._names(shard)]
        if (taken := self.workspace.publish(names)) is not None:
            self._require_free()
            raise KeyMismatch(
                f"{taken}: another process had made it, and has removed it since; run "
                "again, which publishes what is done"
            )

    def _names(self, shard: int) -> list[tuple[str, str]]:
        here, there = self.unfinished(shard), self.final(shard)
        # The `.idx` comes last: without it nothing is a corpus.
        tokens = bin_path if self.tokens == "bin" else shards_path
        return [(path(here), path(there)) for path in (tokens, receipt_path, idx_path)]

    def _require_free(self, why: str = "", *, resuming: bool = True) -> None:
        """Refuse to publish if other files have final names; those of this workspace may.

        They may not if what is in it is another command's, and is not resumed.

        Raises
        ------
        KeyMismatch
            Naming all of them, and the known differences.
        """
        taken = [final for final, ours in self._final_files() if not (ours and resuming)]
        if taken:
            verb = "exist" if len(taken) > 1 else "exists"
            raise KeyMismatch(
                f"{', '.join(taken)}: already {verb}, and not with what this command makes{why}; "
                "move what is there away, or choose another --out"
            )

    def _final_files(self) -> list[tuple[str, bool]]:
        """Return every file with a final name of this output, and whether it is ours."""
        named = self.workspace.published()
        finals = [f"{self.final(shard)}.{suffix}" for shard in self._named() for suffix in SUFFIXES]
        return sorted((final, final in named) for final in finals if os.path.lexists(final))

    def _named(self) -> list[int]:
        """Return the numbers of the corpora of which files may have final names."""
        if not self.numbered:
            return [0]  # without listing a directory that may hold thousands of corpora
        parent, name = os.path.split(self.prefix)
        pattern = re.compile(re.escape(name) + r"-(\d{5,})\..+")
        matches = map(pattern.fullmatch, os.listdir(parent))
        return sorted({int(match[1]) for match in matches if match})

    def _differences(self, origin: Origin) -> str:
        """Return, for a message, in which options an existing corpus differs by its receipt."""
        with contextlib.suppress(DistcacheError, OSError):
            found = find_receipt(self.final(0))
            if found is not None and found.made_from == origin.made_from:
                return " (its files are damaged, or some are missing)"
            if found is not None:
                pairs = [
                    (name, getattr(found, name), getattr(origin, name)) for name in COMPARED_FIELDS
                ]
                pairs += [
                    (name, found.options.get(name), origin.options.get(name))
                    for name in {*found.options, *origin.options} - RESULTS
                ]
                names = sorted(name for name, there, here in pairs if there != here)
                return f" (differs in {', '.join(names or ['inputs'])})"
        return " (it has no receipt)"
