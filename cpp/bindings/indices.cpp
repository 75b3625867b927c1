#include <pybind11/stl.h>

#include <cmath>
#include <limits>
#include <utility>

#include "arrays.hpp"
#include "distcache/blend.hpp"
#include "distcache/sample_index.hpp"
#include "distcache/whole_section.hpp"

namespace distcache::bindings {
namespace {

template <class T>
std::int64_t emit_as(std::span<const std::int64_t> entries, std::int64_t slice_begin,
                     SampleShape shape, Cursor& cursor, py::array& pairs) {
    const auto span = output<T>(pairs, "pairs", 2);
    const py::gil_scoped_release release;
    return emit_boundaries(entries, slice_begin, shape, cursor, span);
}

std::int64_t emit(const py::array& entries, std::int64_t slice_begin, std::int64_t sequence_length,
                  bool extra_token, Cursor& cursor, py::array pairs) {
    const auto span = input<std::int64_t>(entries, "entries");
    const auto consumed = cursor.position - slice_begin;
    if (sequence_length < 1 || consumed < 0 || consumed > entries.size()) {
        throw py::value_error("sequence_length must be positive and the cursor within the slice");
    }
    const SampleShape shape{sequence_length, extra_token ? 1 : 0};
    if (pairs.dtype().equal(py::dtype::of<std::int32_t>())) {
        return emit_as<std::int32_t>(span, slice_begin, shape, cursor, pairs);
    }
    return emit_as<std::int64_t>(span, slice_begin, shape, cursor, pairs);
}

void fill(const py::array& lengths, std::int64_t begin, py::array out) {
    const auto view = unaligned<std::int32_t>(lengths, "lengths");
    const auto span = output<std::int64_t>(out, "out");
    if (begin < 0 || begin > view.size() - static_cast<std::int64_t>(span.size())) {
        throw py::value_error("there must be a length for each entry");
    }
    const py::gil_scoped_release release;
    fill_entries(view, begin, span);
}

void build_whole(const py::array& lengths, std::pair<std::int64_t, std::int64_t> sequences,
                 std::pair<std::int64_t, std::int64_t> first, std::int64_t sequence_length,
                 bool extra_token, std::uint32_t seed, py::array documents, py::array rows,
                 py::array samples) {
    const auto view = unaligned<std::int32_t>(lengths, "lengths");
    const auto document_span = output<std::int32_t>(documents, "documents");
    const auto row_span = output<std::int32_t>(rows, "rows", 2);
    const auto sample_span = output<std::uint32_t>(samples, "samples");
    const auto [begin, end] = sequences;
    const auto lies_within = [](std::int64_t count, std::size_t size) {
        return count >= 0 && static_cast<std::size_t>(count) <= size;
    };
    if (begin < 0 || begin > end || end > view.size()) {
        throw py::value_error("sequences must be a range of those that have lengths");
    }
    const auto one_epoch = static_cast<std::size_t>(end - begin);
    if (one_epoch == 0 ? !document_span.empty()
                       : document_span.empty() || document_span.size() % one_epoch != 0) {
        throw py::value_error("documents must be whole epochs");
    }
    if (sequence_length < 1 || rows.shape(1) != 2 || row_span.empty() ||
        document_span.size() > std::numeric_limits<std::int32_t>::max() ||
        sample_span.size() > std::numeric_limits<std::uint32_t>::max() ||
        !lies_within(first.first, document_span.size()) ||
        !lies_within(first.second, sample_span.size())) {
        throw py::value_error("rows must be pairs, and first within documents and samples");
    }
    const SectionRules rules{
        begin, end, first.first, first.second, {sequence_length, extra_token ? 1 : 0}, seed};
    const py::gil_scoped_release release;
    build_section(view, rules, document_span, row_span, sample_span);
}

Arithmetic arithmetic_of(bool fused) {
    return fused ? Arithmetic::fused : Arithmetic::separate;
}

Blender by_weight(const py::array& weights, bool fused) {
    const auto span = input<double>(weights, "weights");
    for (const double weight : span) {
        if (!(weight >= 0) || !std::isfinite(weight)) {
            throw py::value_error("weights must be finite and not negative");
        }
    }
    return Blender(span, arithmetic_of(fused));
}

Blender exhaustive(const py::array& sizes, bool fused) {
    const auto span = input<std::int64_t>(sizes, "sizes");
    std::int64_t left = std::int64_t{1} << 62;
    for (const std::int64_t size : span) {
        if (size < 0 || size > left) {
            throw py::value_error("sizes must not be negative, nor more than 2^62 together");
        }
        left -= size;
    }
    return Blender::exhaustive(span, arithmetic_of(fused));
}

void next(Blender& blender, py::array corpora, py::array samples) {
    const auto corpus_span = output<std::int16_t>(corpora, "corpora");
    const auto sample_span = output<std::int64_t>(samples, "samples");
    if (corpus_span.size() != sample_span.size()) {
        throw py::value_error("corpora and samples must have the same size");
    }
    blender.require_steps(static_cast<std::int64_t>(corpus_span.size()));
    const py::gil_scoped_release release;
    blender.next(corpus_span, sample_span);
}

void resume(Blender& blender, const py::array& taken) {
    blender.resume(input<std::int64_t>(taken, "taken"));
}

void skip(Blender& blender, std::int64_t steps) {
    blender.require_steps(steps);
    const py::gil_scoped_release release;
    blender.skip(steps);
}

}  // namespace

void register_indices(py::module_& module) {
    py::class_<Cursor>(module, "Cursor", R"doc(
A place in the tokens of a document index.

Parameters
----------
position : int
    The first entry that is not consumed.
token : int
    The number of tokens before it.
sample : int
    The next boundary to emit.
)doc")
        .def(py::init<std::int64_t, std::int64_t, std::int64_t>(), py::arg("position"),
             py::arg("token"), py::arg("sample"))
        .def_readonly("position", &Cursor::position)
        .def_readonly("token", &Cursor::token)
        .def_readonly("sample", &Cursor::sample);
    module.def("emit_boundaries", &emit, py::arg("entries"), py::arg("slice_begin"),
               py::arg("sequence_length"), py::arg("extra_token"), py::arg("cursor"),
               py::arg("pairs"), R"doc(
Write the boundaries of samples that begin in a slice of a document index.

The rule of Megatron-Core's ``build_sample_idx``, as a function of token position.

Parameters
----------
entries : ndarray of int64
    The slice: document in the lower 32 bits, length in tokens in the upper.
slice_begin : int
    Its position in the document index.
sequence_length : int
extra_token : bool
cursor : Cursor
    Advanced.
pairs : ndarray of int32 or int64, shape (room, 2)
    Rows (position, offset); written until it is full.

Returns
-------
int
    The number of rows.
)doc");
    module.def("fill_entries", &fill, py::arg("lengths"), py::arg("begin"), py::arg("out"), R"doc(
Write the entries of documents begin, begin + 1, ...

Parameters
----------
lengths : ndarray of int32, shape (documents,)
    In tokens.
begin : int
out : ndarray of int64
    The document in the lower 32 bits, its length in the upper.
)doc");
    module.def("build_section_arrays", &build_whole, py::arg("lengths"), py::arg("sequences"),
               py::arg("first"), py::arg("sequence_length"), py::arg("extra_token"),
               py::arg("seed"), py::arg("documents"), py::arg("rows"), py::arg("samples"), R"doc(
Build the arrays of a whole section in Megatron's order, in one call.

Parameters
----------
lengths : ndarray of int32, shape (sequences of the corpus,)
    In tokens.
sequences : (int, int)
    The first sequence of the section, and the one after the last.
first : (int, int)
    The entries of the document index and of the shuffle index that are shuffled first.
sequence_length : int
extra_token : bool
seed : int
documents : ndarray of int32, shape (epochs * sequences,)
    Receives the document index.
rows : ndarray of int32, shape (samples + 1, 2)
    Receives the sample index.
samples : ndarray of uint32
    Receives the shuffle index.
)doc");
    py::class_<Blender>(module, "Blender", R"doc(
A greedy blend: at each step the corpus whose share lags most behind its weight.

Megatron-Core's ``build_blending_indices`` and ``build_exhaustive_blending_indices``. Its lag is
``weight * step - taken``, rounded twice as on x86-64; if `fused`, once as on AArch64.
)doc")
        .def_static("by_weight", &by_weight, py::arg("weights"), py::arg("fused") = false, R"doc(
Return a blend by weights, float64 of shape (corpora,).

Raises
------
ValueError
    If a weight is negative or not finite.
)doc")
        .def_static("exhaustive", &exhaustive, py::arg("sizes"), py::arg("fused") = false, R"doc(
Return a blend that takes every sample of every corpus, int64 sizes of shape (corpora,).

Raises
------
ValueError
    If a size is negative, or their sum is beyond 2**62.
)doc")
        .def("next", &next, py::arg("corpora"), py::arg("samples"), R"doc(
Make steps, and write the corpus (int16) and the sample in it (int64), of shape (steps,).

Raises
------
IndexError
    If an exhaustive blend has fewer steps left.
)doc")
        .def("skip", &skip, py::arg("steps"), "Make steps without writing them; raises as `next`.")
        .def("resume", &resume, py::arg("taken"), R"doc(
Continue from the state in which each corpus has been taken so often, int64 of shape (corpora,).

Raises
------
IndexError
    If no blend can be in that state; this one is not changed then.
)doc")
        .def_property_readonly("taken", &Blender::taken,
                               "How often each corpus has been taken, int64.");
}

}  // namespace distcache::bindings
