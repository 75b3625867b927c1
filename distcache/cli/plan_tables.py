"""The tables of `distcache plan`: what a build would make, and what it needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import typer

from distcache.builder.finish import file_size, table_places
from distcache.cli.show import print_records
from distcache.plan.layout import Layout
from distcache.plan.losses import LossShare, loss_shares
from distcache.plan.model import CorpusEpochs, Plan
from distcache.plan.packing import packing_facts
from distcache.plan.phase_facts import PhaseFacts, phase_facts
from distcache.plan.source_needs import BucketNeeds
from distcache.storage.units import counted, size_text

MAX_ROWS: Final = 40  # of a table without --verbose


def plan_document(plan: Plan, layout: Layout) -> dict[str, Any]:
    """Return the plan as docs/commands.md describes it."""
    users: dict[int, list[str]] = {}
    for member in plan.members:
        users.setdefault(member.section, []).append(member.split)
    return {
        "key": plan.key,
        "file_bytes": file_size(table_places(plan, layout)),
        "corpora": plan.sources,
        "sections": [
            {
                "corpus": plan.sources[section.source].prefix,
                "splits": sorted(set(users[index])),
                "key": section.key,
                "sequences": [section.begin, section.end],
                "tokens": section.tokens,
                "passes": section.size.passes,
                "samples": section.size.samples,
                "separate_last_pass": section.size.separate_samples is not None,
                "bytes": sum(place.nbytes for place in layout.arrays[index]),
                "packing": None if section.packed is None else packing_facts(section.packed),
            }
            for index, section in enumerate(plan.sections)
        ],
        "blends": [
            {
                "split": blend.split,
                "key": blend.key,
                "size": blend.size,
                "exhaustive": blend.exhaustive,
                "corpora": [
                    plan.sources[member.source].prefix
                    for member in plan.members
                    if member.blend == index
                ],
            }
            for index, blend in enumerate(plan.blends)
        ],
        "phases": phase_facts(plan),
        "losses": loss_shares(plan),
        "epochs": plan.epochs,
    }


def show_plan(document: dict[str, Any], *, verbose: bool) -> None:
    """Print the document of a plan as tables."""
    sections = document["sections"]
    shown = sections if verbose or len(sections) <= MAX_ROWS else []
    title = f"Sections ({len(sections)})"
    if not shown:
        samples = sum(section["samples"] for section in sections)
        nbytes = size_text(sum(section["bytes"] for section in sections))
        typer.echo(f"{title}: {samples:,} samples, {nbytes}; --verbose lists them")
    else:
        _show_sections(title, sections)
    if any(section["packing"] is not None for section in shown):
        _show_packing(shown)
    if document["blends"]:
        _show_blends(document["blends"])
    if document["phases"]:
        _show_phases(document["phases"])
    if document["epochs"]:
        _show_epochs(document["epochs"])
    if document["losses"]:
        _show_losses(document["losses"])
    _show_estimate(document)
    if document["buckets"] is not None:
        _show_buckets(document["buckets"])
    for warning in document["warnings"]:
        typer.echo(f"warning: {warning}", err=True)


def _show_losses(losses: list[LossShare]) -> None:
    print_records(
        "What is learned",
        [
            {
                "corpus": one.corpus,
                "tokens with a loss": f"{one.tokens_with_loss:.1%}",
                "share of samples": f"{one.samples:.1%}",
                "share of the loss": f"{one.loss:.1%}",
            }
            for one in losses
        ],
    )


def _show_sections(title: str, sections: list[dict[str, Any]]) -> None:
    print_records(
        title,
        [
            {
                "corpus": section["corpus"],
                "splits": ",".join(section["splits"]),
                "sequences": section["sequences"][1] - section["sequences"][0],
                "tokens": section["tokens"],
                "passes": section["passes"],
                "samples": section["samples"],
                "size": size_text(section["bytes"]),
            }
            for section in sections
        ],
    )


def _show_packing(sections: list[dict[str, Any]]) -> None:
    print_records(
        "Samples of a pass",
        [
            {
                "corpus": section["corpus"],
                "splits": ",".join(section["splits"]),
                "samples": facts.samples,
                "fill": f"{100 * facts.fill:.2f} %",
                "padding": facts.padding,
                "documents a sample": f"{facts.documents_per_sample:.1f}",
                "cut": facts.cut,
                "left out": facts.left_out,
                "empty": facts.empty,
            }
            for section in sections
            for facts in [section["packing"]]
        ],
    )


def _show_blends(blends: list[dict[str, Any]]) -> None:
    print_records(
        f"Blends ({len(blends)})",
        [
            {
                "split": blend["split"],
                "corpora": len(blend["corpora"]),
                "samples": blend["size"],
                "kind": "exhaustive" if blend["exhaustive"] else "weighted",
            }
            for blend in blends
        ],
    )


def _show_phases(phases: list[PhaseFacts]) -> None:
    print_records(
        "Phases",
        [
            {
                "phase": number,
                "from sample": phase.begin,
                "samples": phase.samples,
                "corpus": own.corpus,
                "share": f"{100 * own.share:.2f} %",
                "samples so far": own.samples,
                "passes so far": f"{own.passes:.2f}",
            }
            for number, phase in enumerate(phases)
            for own in phase.corpora
        ],
    )


def _show_epochs(epochs: Sequence[CorpusEpochs]) -> None:
    samples = sum(one.samples for one in epochs)
    print_records(
        f"Epochs of training ({samples:,.0f} samples)",
        [
            {
                "corpus": one.corpus,
                "share": f"{100 * one.share:.4g} %",
                "samples": round(one.samples),
                "epochs": f"{one.epochs:.4g}",
            }
            for one in epochs
        ],
    )


def _show_estimate(document: dict[str, Any]) -> None:
    predicted = document["estimate"]
    typer.echo(f"key      {document['key']}")
    typer.echo(f"file     {size_text(document['file_bytes'])}")
    ranks, threads = document["ranks"], document["threads"]
    who = f"{counted(ranks, 'rank')}, {counted(threads, 'thread')}"
    if (needs := document["shards"]) is not None:
        stored, unpacked = size_text(needs.stored_bytes), size_text(needs.node_bytes)
        typer.echo(f"shards   {needs.shards:,} of {needs.corpora:,} corpora, {stored}")
        typer.echo(f"node     {unpacked}: {needs.compressed:,} shards are compressed")
        typer.echo(f"files    {needs.files_per_sample:.1f} for each sample of these corpora")
    typer.echo(f"memory   {size_text(predicted.memory)} per rank at most: {who}")
    typer.echo(f"time     about {predicted.seconds:.1f} s, if the filesystem is not the limit")
    typer.echo(f"slurm    --time={predicted.minutes} --mem={predicted.memory_gib}G")


def _show_buckets(needs: BucketNeeds) -> None:
    typer.echo(
        f"bucket   {counted(needs.corpora, 'corpus', 'corpora')}, {size_text(needs.nbytes)}, which "
        f"training reads {needs.passes:.2f} times; a sample takes {needs.requests_per_sample:.1f} "
        f"requests and {size_text(round(needs.bytes_per_sample))}"
    )
    print_records(
        "Training from a bucket, all nodes",
        [
            {
                "way": way.way,
                "requests": f"{way.requests:,}",
                "bytes": size_text(way.nbytes),
                "disk of a node": size_text(way.node_disk),
                "fits": "yes" if way.fits else "no",
            }
            for way in needs.ways
        ],
    )
    typer.echo(f"best     {needs.best}: {needs.reason}")
