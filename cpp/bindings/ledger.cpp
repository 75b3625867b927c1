#include "distcache/ledger.hpp"

#include <cstddef>
#include <tuple>
#include <vector>

#include "distcache/deal.hpp"
#include "held_section.hpp"

namespace distcache::bindings {
namespace {

using Sections = std::vector<const HeldSection*>;

std::vector<const Section*> pointers_of(const Sections& sections) {
    std::vector<const Section*> found;
    for (const HeldSection* held : sections) {
        found.push_back(held == nullptr ? nullptr : &held->section);
    }
    return found;
}

std::tuple<py::array, py::array, py::array, py::array> trace(const Sections& sections,
                                                             const py::array& members,
                                                             const py::array& samples) {
    const auto member_span = input<std::int16_t>(members, "members");
    const auto sample_span = input<std::int64_t>(samples, "samples");
    TracedParts found;
    {
        const py::gil_scoped_release release;
        found = trace_parts(pointers_of(sections), member_span, sample_span);
    }
    return {moved(std::move(found.bounds)), moved(std::move(found.sequences)),
            moved(std::move(found.begins)), moved(std::move(found.ends))};
}

void deal_steps_of(const Sections& sections, const py::array& members, const py::array& samples,
                   std::int64_t row_length, std::int64_t batch, std::int64_t ranks,
                   std::int64_t micro_batch, py::array places, py::array work) {
    const auto member_span = input<std::int16_t>(members, "members");
    const auto sample_span = input<std::int64_t>(samples, "samples");
    const auto place_span = output<std::uint32_t>(places, "places");
    const auto work_span = output<double>(work, "work", 2);
    static_assert(sizeof(StepWork) == 5 * sizeof(double));
    if (work.shape(1) != 5) {
        throw py::value_error("work must have five sums for each step");
    }
    const std::span<StepWork> sums(reinterpret_cast<StepWork*>(work_span.data()),
                                   work_span.size() / 5);
    const py::gil_scoped_release release;
    deal_steps(pointers_of(sections), member_span, sample_span, row_length,
               Dealer(batch, ranks, micro_batch), place_span, sums);
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

std::tuple<std::int64_t, std::int64_t, std::int64_t> count(const py::array& members,
                                                           std::int64_t window, py::array counts) {
    const auto member_span = input<std::int16_t>(members, "members");
    const auto count_span = output<std::int64_t>(counts, "counts", 2);
    const std::int64_t datasets = counts.shape(1);
    const py::gil_scoped_release release;
    const BlendRuns runs = count_members(member_span, window, datasets, count_span);
    return {runs.same, runs.longest, runs.longest_begin};
}

std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t> sum(
    const HeldSection& section, std::int64_t samples, std::int64_t first, py::array trained,
    py::array documents, py::array squares, py::array tokens) {
    const auto trained_span = output<std::int64_t>(trained, "trained");
    const RowSums rows{output<std::uint16_t>(documents, "documents"),
                       output<float>(squares, "squares"), output<std::int32_t>(tokens, "tokens")};
    const py::gil_scoped_release release;
    const SectionSums sums = sum_section(section.section, samples, first, trained_span, rows);
    return {sums.trained, sums.continued, sums.whole, sums.cut_once, sums.cut_more};
}

std::tuple<py::array, py::array, py::array, py::array> find_visits_of(const HeldSection& section,
                                                                      const py::array& rows,
                                                                      std::int64_t first,
                                                                      py::array whole) {
    const auto row_span = input<std::uint16_t>(rows, "rows");
    const auto whole_span = output<std::uint16_t>(whole, "whole");
    PartVisits found;
    {
        const py::gil_scoped_release release;
        found = find_visits(section.section, row_span, first, whole_span);
    }
    return {moved(std::move(found.sequences)), moved(std::move(found.begins)),
            moved(std::move(found.ends)), moved(std::move(found.times))};
}

std::tuple<std::int64_t, std::int64_t, double> count_visits_of(const py::array& trained,
                                                               const py::array& lengths,
                                                               py::array visits,
                                                               py::array classes) {
    const auto trained_span = input<std::int64_t>(trained, "trained");
    const auto length_span = input<std::int64_t>(lengths, "lengths");
    const auto visit_span = output<std::int64_t>(visits, "visits");
    const auto class_span = output<std::int64_t>(classes, "classes");
    const py::gil_scoped_release release;
    const VisitSums sums = count_visits(trained_span, length_span, visit_span, class_span);
    return {sums.tokens, sums.never, sums.most};
}

using RowArrays = std::tuple<const HeldSection*, py::array, py::array, py::array>;

void sum_windows_of(const py::array& members, const py::array& samples, std::int64_t window,
                    const std::vector<RowArrays>& rows, py::array documents, py::array tokens,
                    py::array squares, py::array most_squares) {
    const auto member_span = input<std::int16_t>(members, "members");
    const auto sample_span = input<std::int64_t>(samples, "samples");
    std::vector<MemberRows> spans;
    for (const auto& [section, row_documents, row_squares, row_tokens] : rows) {
        spans.push_back({&section->section, input<std::uint16_t>(row_documents, "documents"),
                         input<float>(row_squares, "squares"),
                         input<std::int32_t>(row_tokens, "tokens")});
    }
    const WindowSums sums{
        output<std::int64_t>(documents, "documents"), output<std::int64_t>(tokens, "tokens"),
        output<double>(squares, "squares"), output<float>(most_squares, "most_squares")};
    const py::gil_scoped_release release;
    sum_windows(member_span, sample_span, window, spans, sums);
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
    module.def("deal_steps", &deal_steps_of, py::arg("sections"), py::arg("members"),
               py::arg("samples"), py::arg("row_length"), py::arg("batch"), py::arg("ranks"),
               py::arg("micro_batch"), py::arg("places"), py::arg("work"), R"doc(
Deal the samples of steps to ranks and micro batches, so that these have equal work.

The work of a sample is the sum of the squares of the inputs that it has of each document; padding
belongs to the last.

Parameters
----------
sections : list of Section or None
    Sections of the members, as of `trace_parts`.
members : ndarray of int16, shape (samples,)
    Member of each sample of whole steps.
samples : ndarray of int64, shape (samples,)
    Number of each sample in its section.
row_length : int
    Tokens of a sample.
batch, ranks, micro_batch : int
    Samples of a step, ranks, and samples of a micro batch.
places : ndarray of uint32, shape (samples,)
    Sample that each place of a step gets, counted from the first of the step; written. Micro batch
    m of rank r begins at place (m * ranks + r) * micro_batch.
work : ndarray of float64, shape (steps, 5)
    Work of each step: of all, of the heaviest rank in order and as it is dealt, and the sum over
    micro batches of the heaviest rank of each, in order and as it is dealt; written.

Raises
------
IndexError
    If the arrays lead outside of one another, or the samples are no whole steps.
ValueError
    If a batch does not have whole micro batches of all ranks.
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
    module.def("count_members", &count, py::arg("members"), py::arg("window"), py::arg("counts"),
               R"doc(
Count the samples of each member in each window of a blend.

Parameters
----------
members : ndarray of int16, shape (positions,)
    Dataset index of the blend.
window : int
    Samples of a window; the last one may have fewer.
counts : ndarray of int64, shape (windows, members)
    Samples of each member in each window; added to.

Returns
-------
same : int
    Places whose sample is of the same member as the one before.
longest, begin : int
    Samples of the longest run of one member, and where it begins.

Raises
------
IndexError
    If the blend names a member that does not exist.
)doc");
    module.def("sum_section", &sum, py::arg("section"), py::arg("samples"), py::arg("first"),
               py::arg("trained"), py::arg("documents"), py::arg("squares"), py::arg("tokens"),
               R"doc(
Sum up a section of which the first samples are trained on.

Parameters
----------
section : Section
    Section of tokens.
samples : int
    Number of samples that are trained on.
first : int
    First sequence of the section's range.
trained : ndarray of int64, shape (sequences,)
    Tokens of each sequence of the range that are inputs, over all visits; added to.
documents : ndarray of uint16, shape (rows,)
    Number of parts of each row, the samples before they are shuffled; 65,535 stands for more.
squares : ndarray of float32, shape (rows,)
    Sum of the squares of their lengths.
tokens : ndarray of int32, shape (rows,) or (0,)
    Sum of their lengths; empty where all rows have equally many tokens.

Returns
-------
trained, continued, whole, cut_once, cut_more : int
    Tokens that are trained on, those of them whose sequence begins in a row before; and entries of
    the document index that are in one row, in two, and in more.

Raises
------
IndexError
    If the arrays lead outside of one another.
)doc");
    module.def("find_visits", &find_visits_of, py::arg("section"), py::arg("rows"),
               py::arg("first"), py::arg("whole"), R"doc(
Find what the rows of a section visit, each of them so often.

Parameters
----------
section : Section
    Section of tokens.
rows : ndarray of uint16, shape (rows,)
    Visits of each row.
first : int
    First sequence of the section's range.
whole : ndarray of uint16, shape (sequences,)
    Visits of whole sequences of the range; added to.

Returns
-------
sequences : ndarray of int64, shape (parts,)
    Sequence of each part that is no whole one, counted from `first`.
begins, ends : ndarray of int32, shape (parts,)
    Range of its tokens that are inputs.
times : ndarray of uint16, shape (parts,)
    Visits of the part, at least one.

Raises
------
IndexError
    If the arrays lead outside of one another.
OverflowError
    If a sequence has more than 65,535 visits.
)doc");
    module.def("count_visits", &count_visits_of, py::arg("trained"), py::arg("lengths"),
               py::arg("visits"), py::arg("classes"), R"doc(
Count documents by their visits and by their lengths.

Parameters
----------
trained : ndarray of int64, shape (documents,)
    Tokens of each document that are inputs, over all visits.
lengths : ndarray of int64, shape (documents,)
    Tokens of each document.
visits : ndarray of int64, shape (classes,)
    Documents that are never seen, in part, once, twice and so on, the last for all that are seen
    more often; added to. Documents without tokens are in none.
classes : ndarray of int64, shape (classes,)
    Documents by the number of bits of their lengths; added to.

Returns
-------
tokens, never : int
    Tokens of all documents, and those that are never inputs.
most : float
    Inputs of a document, over all visits, for each of its tokens.

Raises
------
IndexError
    If there is not a length for each document.
)doc");
    module.def("sum_windows", &sum_windows_of, py::arg("members"), py::arg("samples"),
               py::arg("window"), py::arg("rows"), py::arg("documents"), py::arg("tokens"),
               py::arg("squares"), py::arg("most_squares"), R"doc(
Sum up each window of a blend.

Parameters
----------
members : ndarray of int16, shape (positions,)
    Dataset index of the blend.
samples : ndarray of int64, shape (positions,)
    Dataset sample index of the blend.
window : int
    Samples of a window; the last one may have fewer.
rows : list of (Section, ndarray, ndarray, ndarray)
    Section of each member, and its documents, squares and tokens, from `sum_section`.
documents, tokens : ndarray of int64, shape (windows,)
    Parts of the samples of each window, and their inputs where rows say these; added to.
squares : ndarray of float64, shape (windows,)
    Sum of their squares; added to.
most_squares : ndarray of float32, shape (windows,)
    The greatest of one sample.

Raises
------
IndexError
    If the arrays lead outside of one another.
)doc");
}

}  // namespace distcache::bindings
