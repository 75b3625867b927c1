#include <pybind11/stl.h>

#include <cmath>
#include <limits>
#include <utility>

#include "arrays.hpp"
#include "distcache/blend.hpp"
#include "distcache/sample_index.hpp"
#include "distcache/small_sections.hpp"

namespace distcache::bindings {
namespace {

template <class T>
std::int64_t emit_as(std::span<const std::int32_t> lengths, std::int64_t slice_begin,
                     SampleShape shape, Cursor& cursor, py::array& pairs) {
    const auto span = output<T>(pairs, "pairs", 2);
    const py::gil_scoped_release release;
    return emit_boundaries(lengths, slice_begin, shape, cursor, span);
}

std::int64_t emit(const py::array& lengths, std::int64_t slice_begin, std::int64_t sequence_length,
                  bool extra_token, Cursor& cursor, py::array pairs) {
    const auto span = input<std::int32_t>(lengths, "lengths");
    const auto consumed = cursor.position - slice_begin;
    if (sequence_length < 1 || consumed < 0 || consumed > lengths.size()) {
        throw py::value_error("sequence_length must be positive and the cursor within the slice");
    }
    const SampleShape shape{sequence_length, extra_token ? 1 : 0};
    if (pairs.dtype().equal(py::dtype::of<std::int32_t>())) {
        return emit_as<std::int32_t>(span, slice_begin, shape, cursor, pairs);
    }
    return emit_as<std::int64_t>(span, slice_begin, shape, cursor, pairs);
}

void look_up(const py::array& narrow, const py::array& lengths, std::int64_t begin,
             const py::array& sequences, py::array out) {
    const auto narrow_span = input<std::uint16_t>(narrow, "narrow");
    const auto view = unaligned<std::int32_t>(lengths, "lengths");
    const auto span = input<std::int32_t>(sequences, "sequences");
    const auto out_span = output<std::int32_t>(out, "out");
    const auto size = static_cast<std::int64_t>(narrow_span.size());
    if (begin < 0 || begin > view.size() - size || span.size() != out_span.size()) {
        throw py::value_error("each length must be in both tables, and out as large as sequences");
    }
    const py::gil_scoped_release release;
    require_within(span, begin, begin + size, "sequences must lie within the range");
    look_up_lengths(narrow_span, view, begin, span, out_span);
}

// The columns of a row of `rules`.
constexpr py::ssize_t rule_columns = 8;

SmallSection section_of(const py::handle& lengths, std::span<const std::int64_t> row) {
    const auto view = unaligned<std::int32_t>(py::cast<py::array>(lengths), "lengths");
    const SmallSection section{view,   row[0], row[1],
                               row[2], row[3], static_cast<std::uint32_t>(row[4]),
                               row[5], row[6], row[7]};
    const auto lies_within = [](std::int64_t count, std::int64_t size) {
        return count >= 0 && count <= size;
    };
    if (section.begin < 0 || section.begin > section.end || section.end > view.size()) {
        throw py::value_error("sequences must be a range of those that have lengths");
    }
    const std::int64_t one_epoch = section.end - section.begin;
    if (one_epoch == 0 ? section.documents != 0
                       : section.documents < 1 || section.documents % one_epoch != 0) {
        throw py::value_error("documents must be whole epochs");
    }
    if (!lies_within(section.documents, std::numeric_limits<std::int32_t>::max()) ||
        !lies_within(section.samples, std::numeric_limits<std::uint32_t>::max()) ||
        !lies_within(section.first_documents, section.documents) ||
        !lies_within(section.first_samples, section.samples) ||
        !lies_within(section.rows - 1, std::numeric_limits<std::int32_t>::max()) ||
        !lies_within(row[4], std::numeric_limits<std::uint32_t>::max())) {
        throw py::value_error(
            "first ones must be within their sizes, the seed must have 32 bits, and rows must be "
            "one or more");
    }
    return section;
}

void build_small(const py::tuple& lengths, const py::array& rules, std::int64_t sequence_length,
                 bool extra_token, py::array documents, py::array rows, py::array samples) {
    const auto rule_span = input<std::int64_t>(rules, "rules", 2);
    const auto document_span = output<std::int32_t>(documents, "documents");
    const auto row_span = output<std::int32_t>(rows, "rows", 2);
    const auto sample_span = output<std::uint32_t>(samples, "samples");
    if (sequence_length < 1 || rows.shape(1) != 2 || rules.shape(1) != rule_columns ||
        rules.shape(0) != static_cast<py::ssize_t>(lengths.size())) {
        throw py::value_error("rows must be pairs, and each section must have lengths and rules");
    }
    std::vector<SmallSection> sections;
    sections.reserve(lengths.size());
    std::int64_t left[] = {documents.shape(0), rows.shape(0), samples.shape(0)};
    for (const auto& one : lengths) {
        const auto row = rule_span.subspan(rule_columns * sections.size(), rule_columns);
        const auto& section = sections.emplace_back(section_of(one, row));
        left[0] -= section.documents;
        left[1] -= section.rows;
        left[2] -= section.samples;
    }
    if (left[0] != 0 || left[1] != 0 || left[2] != 0) {
        throw py::value_error("arrays must be as long as their sections together");
    }
    const py::gil_scoped_release release;
    build_small_sections(sections, {sequence_length, extra_token ? 1 : 0}, document_span, row_span,
                         sample_span);
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
    module.attr("TOO_LONG") = too_long;
    module.def("look_up_lengths", &look_up, py::arg("narrow"), py::arg("lengths"), py::arg("begin"),
               py::arg("sequences"), py::arg("out"), R"doc(
Write the lengths of sequences of a range, in any order.

Parameters
----------
narrow : ndarray of uint16, shape (range,)
    Lengths of sequences begin, begin + 1, ... in tokens; `TOO_LONG` stands for itself and above.
lengths : ndarray of int32, shape (sequences,)
    Lengths of all sequences of the corpus, at any address.
begin : int
    First sequence of the range.
sequences : ndarray of int32, shape (any,)
    Sequences of the range.
out : ndarray of int32, shape of sequences
    Receives their lengths in tokens.

Raises
------
ValueError
    If the range is not within lengths, or out is not as large as sequences.
IndexError
    If a sequence is not within the range.
)doc");
    module.def("emit_boundaries", &emit, py::arg("lengths"), py::arg("slice_begin"),
               py::arg("sequence_length"), py::arg("extra_token"), py::arg("cursor"),
               py::arg("pairs"), R"doc(
Write the boundaries of samples that begin in a slice of a document index.

The rule of Megatron-Core's ``build_sample_idx``, as a function of token position.

Parameters
----------
lengths : ndarray of int32
    Lengths of the documents of the slice, in tokens.
slice_begin : int
    Position of the slice in the document index.
sequence_length : int
extra_token : bool
cursor : Cursor
    Advanced.
pairs : ndarray of int32 or int64, shape (room, 2)
    Rows (position, offset); written until it is full. Those after the last one hold anything.

Returns
-------
int
    The number of rows.
)doc");
    module.def("build_small_sections", &build_small, py::arg("lengths"), py::arg("rules"),
               py::arg("sequence_length"), py::arg("extra_token"), py::arg("documents"),
               py::arg("rows"), py::arg("samples"), R"doc(
Build the arrays of whole sections in Megatron's order, those of one name one after the other.

Parameters
----------
lengths : tuple of ndarray of int32, shape (sequences of the corpus,)
    The lengths in tokens, of the corpus of each section.
rules : ndarray of int64, shape (sections, 8)
    Of each section its first sequence, and the one after the last; the entries of the document
    index and of the shuffle index that are shuffled first; the seed; and the entries of the
    document index, the rows of the sample index and the entries of the shuffle index.
sequence_length : int
extra_token : bool
documents : ndarray of int32
    Receives the document indices.
rows : ndarray of int32, shape (rows, 2)
    Receives the sample indices, each of one row more than samples.
samples : ndarray of uint32
    Receives the shuffle indices.
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
