"""The typed, documented face of the C++ core.

All kernels release the GIL. None converts its arrays: a wrong dtype or a non-contiguous array is
a `TypeError`, since a hidden copy of a large array would be a bug. The arrays of an `.idx` file
may lie at unaligned addresses; every other array must be aligned.

Mt19937(seed)
    The generator of NumPy's legacy ``RandomState(seed)`` with 0 <= seed < 2**32. ``next32()`` is
    the next word of its stream.

    ``shuffle(values, stop=1)`` shuffles an array of int32, uint32 or int64 in place, as
    ``RandomState.shuffle`` does; with ``stop`` only its steps from the last position down to
    ``stop``, after which a shuffle of the first ``stop`` values would be what is left.
    ``skip_shuffle(size, stop=1)`` moves past the draws of those steps without the values, which is
    several times faster. ``draw(first, count)`` gives the draws of the steps first, first - 1, ...,
    each in [0, step], as uint64 of shape (count,); ``ValueError`` if count > first.

gather(values, positions, out)
    ``out[i] = values[positions[i]]`` for int64 values and positions of int32 or int64.
    ``IndexError`` if a position is not within the values.

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
    ``skip(steps)`` only counts; ``taken`` is how often each corpus has been taken. ``IndexError``
    when an exhaustive blend has not as many steps left; ``ValueError`` for a weight that is not
    finite or is negative.

check_sequences(lengths, offsets, begin, end, item_size)
    The facts and faults of sequences [begin, end) of an `.idx`: lengths int32 and offsets int64 of
    shape (sequences,), item_size in bytes.

first_descent(bounds, begin, end)
    The first i in [begin, end) with bounds[i] < bounds[i - 1], or -1; int64 of shape (entries,).
"""

from distcache._kernels import (
    Blender,
    Cursor,
    Mt19937,
    SequenceFacts,
    check_sequences,
    emit_boundaries,
    first_descent,
    gather,
)

__all__ = [
    "Blender",
    "Cursor",
    "Mt19937",
    "SequenceFacts",
    "check_sequences",
    "emit_boundaries",
    "first_descent",
    "gather",
]
