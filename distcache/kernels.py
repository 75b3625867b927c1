"""The typed, documented face of the C++ core.

All kernels release the GIL; an object is for one thread at a time. None converts its arrays: a
wrong dtype or a non-contiguous array is a `TypeError`, since a hidden copy of a large array would
be a bug. The arrays of an `.idx` file may lie at unaligned addresses; every other array must be
aligned.

Mt19937(seed)
    The generator of NumPy's legacy ``RandomState(seed)`` with 0 <= seed < 2**32. ``next32()`` is
    the next word of its stream.

    ``shuffle(values, stop=1)`` shuffles an array of int32, uint32 or int64 in place, as
    ``RandomState.shuffle`` does; with ``stop`` only its steps from the last position down to
    ``stop``, after which a shuffle of the first ``stop`` values would be what is left.
    ``skip_shuffle(size, stop=1)`` moves past the draws of those steps without the values, which is
    several times faster. ``draw(first, count)`` gives the draws of the steps first, first - 1, ...,
    each in [0, step], as uint64 of shape (count,); ``ValueError`` if count > first.

Permutation(seed, size)
    The permutation that ``torch.randperm(size)`` draws on a CPU after ``manual_seed(seed)``, from
    its start on: ``next(out)`` fills an array of int64 with the next values, ``skip(count)`` moves
    past them, ``position`` is how many there have been. From 2**32 // 20 values on, torch's way
    needs all draws for any value: they are taken at once. `MemoryError` if there is not enough;
    `IndexError` for more values than are left.

instructions()
    What the kernels use: "baseline", "avx2" or "avx512".

draws_within(generator, first, begin, end, steps, draws)
    Of the steps first, first - 1, ... of a shuffle, as many as ``steps`` and ``draws`` have room
    for, write those whose draw lies in [begin, end), uint32 both, and return how many. Moves the
    generator past all of them.

link_steps(steps, draws, begin, latest, links)
    Link steps to the latest before them with the same draw, which ``latest``, uint32 of shape
    (positions,), has for each position from ``begin`` on, or ``NO_LINK``; of shape (steps,) the
    others. How the links lead to the shuffled positions: ``cpp/include/distcache/links.hpp``.

group_by_range(keys, bounds)
    The order, uint32 of shape (keys,), that groups keys, uint32, by the ranges [bounds[r],
    bounds[r + 1]) that they lie in, int64 of shape (ranges + 1,), and how many lie in each.

entries_at(lengths, begin, per_epoch, positions, out)
    The entries at shuffled positions, uint32, of a document index whose epochs have ``per_epoch``
    documents from ``begin`` on; int64 of the same shape.

gather(values, positions, out)
    ``out[i] = values[positions[i]]`` for int64 values and positions of int32 or int64.
    ``IndexError`` if a position is not within the values.

fill_entries(lengths, begin, out)
    Write the entries of documents begin, begin + 1, ...: int64 with the document in the lower 32
    bits and its length in tokens, from int32 lengths of shape (documents,), in the upper.

Cursor(position, token, sample)
    A place in the tokens of a document index: the first entry not yet consumed, the number of
    tokens before it, the next boundary to emit.

emit_boundaries(entries, slice_begin, sequence_length, extra_token, cursor, pairs)
    Write the boundaries of samples that start in ``entries``, the slice of a document index at
    position ``slice_begin``, as rows (position, offset) of ``pairs``, int32 or int64 of shape
    (room, 2). An entry is an int64: the document in its lower 32 bits, the length in tokens in its
    upper. Moves ``cursor`` and returns the number of rows; stops when ``pairs`` is full. The rule
    is that of Megatron-Core's ``build_sample_idx``, put as a function of token position.

Blender.by_weight(weights), Blender.exhaustive(sizes)
    The greedy blends of Megatron-Core's ``build_blending_indices`` (float64 weights of shape
    (corpora,)) and ``build_exhaustive_blending_indices`` (int64 sizes of shape (corpora,)).
    ``next(corpora, samples)`` fills int16 and int64 arrays of equal shape (steps,);
    ``skip(steps)`` only counts; ``taken`` is how often each corpus has been taken, and
    ``resume(taken)``, int64 of shape (corpora,), goes on from there. ``IndexError`` when an
    exhaustive blend has not as many steps left; ``ValueError`` for a weight that is not finite or
    is negative, and for sizes that are negative or more than 2^62 together; ``resume`` raises
    ``IndexError`` for counts that cannot be, and leaves the blend where it was.

Mapping(descriptor, size)
    The bytes of an open file, mapped for reading, as a buffer; ``OSError`` if that fails. Unlike
    ``mmap.mmap`` it keeps no descriptor of the file, and a file that is cut short, or whose
    filesystem fails, does not end the process: its bytes then read as zeros, ``intact`` is false,
    and ``faults()`` counts one more, over all mappings of the process. ``release(begin, end)``
    drops the pages of these bytes from this process; the page cache keeps them.

check_sequences(lengths, offsets, begin, end, item_size)
    The facts and faults of sequences [begin, end) of an `.idx`: lengths int32 and offsets int64 of
    shape (sequences,), item_size in bytes.

Section(document_index, sample_index, shuffle_index, lengths, offsets, type_code, extra_token)
    Where the samples of a section lie: its three arrays, the corpus's lengths and offsets, and the
    code of its token type, which must be that of an integer; ``ValueError`` otherwise. Holds the
    arrays. ``parts(sample)`` gives the parts of a sample as pairs (byte of the `.bin`, tokens), as
    Megatron-Core's ``GPTDataset`` draws them; ``IndexError`` if the arrays lead outside of one
    another.

SampleRules(pad, end_of_document, mask_end_of_document, reset_positions)
    What is made of tokens: `pad` fills samples that are too short and, wherever it stands, becomes
    token 0 without loss; ends of documents may be without loss, and positions start anew behind
    them.

read_samples(sections, samples, descriptors, first, rules, tokens, labels, loss_mask, positions,
             ends=None, bounds=None, longest=None)
    Read samples from open `.bin` files into successive rows, from `first` on, of the arrays of a
    batch: tokens, labels and positions int64, loss_mask float32, of shape (rows, sequence length).
    ``ends``, uint8 of that shape, becomes 1 where a document ends. With ``bounds``, int32 of shape
    (rows, sequence length + 1), and ``longest``, int32 of shape (rows,), also the cumulative
    lengths of the documents, filled up with the sequence length, and the longest; positions then
    start anew with each. The list of sections, samples int64 and descriptors int32 of shape
    (samples,) belong together. Returns (rows that were filled, error, byte): error is 0, an error
    number of pread, or -1 where the file ends too early. ``IndexError`` as `Section.parts`.

first_descent(bounds, begin, end)
    The first i in [begin, end) with bounds[i] < bounds[i - 1], or -1; int64 of shape (entries,).

narrow_tokens(values, limit, out)
    Copy tokens, integers of any type and shape (tokens,), into an array of a type that a `.bin` may
    have, and return the index of the first that is not in [0, limit), or -1; what is copied from
    there on is not defined. ``ValueError`` if the limit is beyond what the type of `out` holds.

first_outside(values, limit)
    The index of the first token that is not in [0, limit), or -1.
"""

import os

from distcache._kernels import (
    NO_LINK,
    Blender,
    Cursor,
    Mapping,
    Mt19937,
    Permutation,
    SampleRules,
    Section,
    SequenceFacts,
    check_sequences,
    draws_within,
    emit_boundaries,
    entries_at,
    fill_entries,
    first_descent,
    first_outside,
    gather,
    group_by_range,
    instructions,
    link_steps,
    narrow_tokens,
    read_samples,
)
from distcache.errors import ConfigError

__all__ = [
    "NO_LINK",
    "Blender",
    "Cursor",
    "Mapping",
    "Mt19937",
    "Permutation",
    "SampleRules",
    "Section",
    "SequenceFacts",
    "check_sequences",
    "draws_within",
    "emit_boundaries",
    "entries_at",
    "fill_entries",
    "first_descent",
    "first_outside",
    "gather",
    "group_by_range",
    "instructions",
    "link_steps",
    "narrow_tokens",
    "read_samples",
]

_wanted = os.environ.get("DISTCACHE_INSTRUCTIONS", "")
if _wanted not in ("", "baseline", "avx2", "avx512"):
    raise ConfigError(f"DISTCACHE_INSTRUCTIONS={_wanted!r}: expected baseline, avx2 or avx512")
