#include "distcache/ledger.hpp"

#include <cstddef>
#include <tuple>
#include <vector>

#include "held_section.hpp"

namespace distcache::bindings {
namespace {

using Sections = std::vector<const HeldSection*>;

std::tuple<py::array, py::array, py::array, py::array> trace(const Sections& sections,
                                                             const py::array& members,
                                                             const py::array& samples) {
    const auto member_span = input<std::int16_t>(members, "members");
    const auto sample_span = input<std::int64_t>(samples, "samples");
    TracedParts found;
    {
        const py::gil_scoped_release release;
        std::vector<const Section*> pointers;
        for (const HeldSection* held : sections) {
            pointers.push_back(held == nullptr ? nullptr : &held->section);
        }
        found = trace_parts(pointers, member_span, sample_span);
    }
    return {moved(std::move(found.bounds)), moved(std::move(found.sequences)),
            moved(std::move(found.begins)), moved(std::move(found.ends))};
}

py::array find_samples_of(const HeldSection& section, const py::array& wanted) {
    const auto bits = input<std::uint64_t>(wanted, "wanted");
    std::vector<std::int64_t> found;
    {
        const py::gil_scoped_release release;
        found = find_samples(section.section, bits);
    }
    return moved(std::move(found));
}

py::array find_positions_of(const py::array& members, const py::array& samples,
                            const std::vector<py::array>& wanted) {
    const auto member_span = input<std::int16_t>(members, "members");
    const auto sample_span = input<std::int64_t>(samples, "samples");
    std::vector<std::span<const std::int64_t>> spans;
    for (const py::array& own : wanted) {
        spans.push_back(input<std::int64_t>(own, "wanted"));
    }
    std::vector<std::int64_t> found;
    {
        const py::gil_scoped_release release;
        found = find_positions(member_span, sample_span, spans);
    }
    return moved(std::move(found));
}

}  // namespace

void register_ledger(py::module_& module) {
    module.def("trace_parts", &trace, py::arg("sections"), py::arg("members"), py::arg("samples"),
               R"doc(
Find the parts of documents that samples consist of; those without tokens are left out.

Parameters
----------
sections : list of Section or None
    Sections of the members, as far as samples are of them. One of rows has an empty sample index and an empty shuffle index.
members : ndarray of int16, shape (samples,)
    Member of each sample.
samples : ndarray of int64, shape (samples,)
    Number of each sample in its section.

Returns
-------
bounds : ndarray of int64, shape (samples + 1,)
    Numbers of parts up to each sample.
sequences : ndarray of int32, shape (parts,)
    Sequence of each part in its corpus.
begins, ends : ndarray of int32, shape (parts,)
    Range of its tokens within the sequence, with the extra one that is only a label.

Raises
------
IndexError
    If the arrays lead outside of one another.
)doc");
    module.def("find_samples", &find_samples_of, py::arg("section"), py::arg("wanted"), R"doc(
Find the samples of a section that have a token of a wanted sequence.

Parameters
----------
section : Section
    Section of the samples, as of `trace_parts`.
wanted : ndarray of uint64, shape (sequences / 64, rounded up,)
    A bit for each sequence of the corpus, the lowest first.

Returns
-------
ndarray of int64
    Numbers of the samples, ascending.

Raises
------
IndexError
    If the arrays lead outside of one another.
)doc");
    module.def("find_positions", &find_positions_of, py::arg("members"), py::arg("samples"),
               py::arg("wanted"), R"doc(
Find the places of a blend at which a member gives one of its wanted samples.

Parameters
----------
members : ndarray of int16, shape (positions,)
    Dataset index of the blend.
samples : ndarray of int64, shape (positions,)
    Dataset sample index of the blend, in which the samples of each member ascend.
wanted : list of ndarray of int64
    Wanted samples of each member, ascending.

Returns
-------
ndarray of int64
    Places, ascending.

Raises
------
IndexError
    If the blend names a member that does not exist.
)doc");
}

}  // namespace distcache::bindings
