"""The typed, documented face of the C++ core.

All kernels release the GIL; an object is for one thread at a time, but for those of reading ahead,
which any thread may use. None converts its arrays: a wrong dtype or a non-contiguous array is a
`TypeError`, since a hidden copy of a large array would be a bug. The arrays of an `.idx` file may
be at unaligned addresses; every other array must be aligned. Each kernel has its own docstring.
"""

import os

from distcache._kernels import (
    NO_LINK,
    TOO_LONG,
    Blender,
    Cursor,
    Mapping,
    Mt19937,
    PackedCounts,
    Permutation,
    PrefetchBuffer,
    SampleRules,
    Section,
    SequenceFacts,
    TextScanner,
    build_small_sections,
    check_sequences,
    count_members,
    count_packed,
    count_visits,
    deal_steps,
    draws_within,
    emit_boundaries,
    fill_entries,
    find_outside,
    find_positions,
    find_ranges,
    find_samples,
    find_visits,
    first_descent,
    first_outside,
    gather,
    group_by_range,
    instructions,
    link_steps,
    look_up_lengths,
    narrow_tokens,
    pack_documents,
    read_ranges,
    read_samples,
    sum_section,
    sum_windows,
    trace_parts,
)
from distcache.errors import ConfigError

__all__ = [
    "NO_LINK",
    "TOO_LONG",
    "Blender",
    "Cursor",
    "Mapping",
    "Mt19937",
    "PackedCounts",
    "Permutation",
    "PrefetchBuffer",
    "SampleRules",
    "Section",
    "SequenceFacts",
    "TextScanner",
    "build_small_sections",
    "check_sequences",
    "count_members",
    "count_packed",
    "count_visits",
    "deal_steps",
    "draws_within",
    "emit_boundaries",
    "fill_entries",
    "find_outside",
    "find_positions",
    "find_ranges",
    "find_samples",
    "find_visits",
    "first_descent",
    "first_outside",
    "gather",
    "group_by_range",
    "instructions",
    "link_steps",
    "look_up_lengths",
    "narrow_tokens",
    "pack_documents",
    "read_ranges",
    "read_samples",
    "sum_section",
    "sum_windows",
    "trace_parts",
]

_wanted = os.environ.get("DISTCACHE_INSTRUCTIONS", "")
if _wanted not in ("", "baseline", "avx2", "avx512"):
    raise ConfigError(f"DISTCACHE_INSTRUCTIONS={_wanted!r}: expected baseline, avx2 or avx512")
_sigbus = os.environ.get("DISTCACHE_SIGBUS", "")
if _sigbus not in ("", "on", "off"):
    raise ConfigError(f"DISTCACHE_SIGBUS={_sigbus!r}: expected on or off")
