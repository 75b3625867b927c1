#include "distcache/packing.hpp"

#include "arrays.hpp"

namespace distcache::bindings {
namespace {

/// How many rows the documents of a group give.
struct PackedCounts {
    std::int64_t rows, documents, tokens, cut, left_out, empty;
};

PackedCounts count(const py::array& lengths, std::int64_t row_length, std::int64_t most_documents,
                   bool cuts_longer, std::int64_t multiple) {
    const auto view = unaligned<std::int32_t>(lengths, "lengths");
    const py::gil_scoped_release release;
    LengthCounts counts({row_length, most_documents, cuts_longer, multiple});
    counts.add(view);
    const std::int64_t kept = view.size() - counts.empty - counts.left_out;
    std::int64_t cut = 0;
    for (const std::int64_t tails : counts.tails) {
        cut += tails;
    }
    return {Packing(counts).rows() + counts.cut_rows,
            kept,
            counts.tokens,
            cut,
            counts.left_out,
            counts.empty};
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

void pack(const py::array& entries, std::int64_t row_length, std::int64_t most_documents,
          bool cuts_longer, std::int64_t multiple, std::int64_t first_entry, py::array documents,
          py::array starts) {
    const auto found = input<std::int64_t>(entries, "entries");
    const auto out = output<std::int32_t>(documents, "documents");
    const PackingRules rules{row_length, most_documents, cuts_longer, multiple};
    if (starts.dtype().equal(py::dtype::of<std::int32_t>())) {
        const auto pairs = output<std::int32_t>(starts, "starts", 2);
        const py::gil_scoped_release release;
        pack_documents(found, rules, first_entry, out, pairs);
    } else {
        const auto pairs = output<std::int64_t>(starts, "starts", 2);
        const py::gil_scoped_release release;
        pack_documents(found, rules, first_entry, out, pairs);
    }
}

}  // namespace

void register_packing(py::module_& module) {
    py::class_<PackedCounts>(module, "PackedCounts", R"doc(
How many rows the documents of a group give; from `count_packed`.

Attributes
----------
rows : int
    Rows.
documents : int
    Documents in them.
tokens : int
    Tokens of these documents.
cut : int
    Documents that are longer than a row, and cut.
left_out : int
    Documents that are longer than a row, and not cut.
empty : int
    Documents without tokens.
)doc")
        .def_readonly("rows", &PackedCounts::rows)
        .def_readonly("documents", &PackedCounts::documents)
        .def_readonly("tokens", &PackedCounts::tokens)
        .def_readonly("cut", &PackedCounts::cut)
        .def_readonly("left_out", &PackedCounts::left_out)
        .def_readonly("empty", &PackedCounts::empty);
    module.def("count_packed", &count, py::arg("lengths"), py::arg("row_length"),
               py::arg("most_documents"), py::arg("cuts_longer"), py::arg("multiple"), R"doc(
Return how many rows documents give, whatever their order.

Parameters
----------
lengths : ndarray of int32, shape (documents,)
    In tokens.
row_length : int
    Tokens of a row, at most 2**26.
most_documents : int
    Documents of a row; 0 for any number.
cuts_longer : bool
    Whether documents longer than a row are cut, or left out.
multiple : int
    Divisor of the row length, to whose multiples each document is padded in its row; 1 for none.

Raises
------
IndexError
    If the rules are not possible.
)doc");
    module.def("fill_entries", &fill, py::arg("lengths"), py::arg("begin"), py::arg("out"), R"doc(
Write the entries of documents begin, begin + 1, ..., for `pack_documents`.

Parameters
----------
lengths : ndarray of int32, shape (documents,)
    In tokens, at any address.
begin : int
out : ndarray of int64
    The document in the lower 32 bits, its length in the upper.

Raises
------
ValueError
    If a document has no length.
)doc");
    module.def("pack_documents", &pack, py::arg("entries"), py::arg("row_length"),
               py::arg("most_documents"), py::arg("cuts_longer"), py::arg("multiple"),
               py::arg("first_entry"), py::arg("documents"), py::arg("starts"), R"doc(
Pack documents into rows by best-fit decreasing; equal lengths are taken in the given order.

A document longer than a row gives whole rows, and its tail begins a row, before other documents are
placed. Among rows of equal room, the one that has waited longest is filled first.

Parameters
----------
entries : ndarray of int64, shape (group,)
    Documents, with their lengths in the upper 32 bits.
row_length, most_documents, cuts_longer, multiple
    As of `count_packed`.
first_entry : int
    Position of the first document in the document index.
documents : ndarray of int32, shape (documents,)
    The documents of all rows, one row after the other.
starts : ndarray of int32 or int64, shape (rows, 2)
    First document of each row, by its position in the document index, and the token of it.

Raises
------
IndexError
    If the shapes are not those of `count_packed`, or the rules are not possible.
)doc");
}

}  // namespace distcache::bindings
