#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "distcache/section.hpp"

namespace distcache {

/// The parts of documents that samples consist of; those without tokens are left out.
struct TracedParts {
    std::vector<std::int64_t> bounds;  ///< parts up to each sample; one more than samples
    std::vector<std::int32_t> sequences;
    std::vector<std::int32_t> begins;  ///< first token within the sequence
    std::vector<std::int32_t> ends;    ///< token after the last, which may be a label alone
};

/// Finds the parts of samples of several sections, in their order.
///
/// Sections that no sample is of may be null. A section of rows has neither sample nor shuffle
/// index: a sample is a whole entry. Throws std::out_of_range if the arrays lead outside of one
/// another, as `find_parts` does.
TracedParts trace_parts(std::span<const Section* const> sections,
                        std::span<const std::int16_t> members,
                        std::span<const std::int64_t> samples);

/// Sums up the squares of the inputs that samples of a length have of each document, padding
/// included: the work of attention that does not cross documents. Throws as `trace_parts`.
void sum_squares(std::span<const Section* const> sections, std::span<const std::int16_t> members,
                 std::span<const std::int64_t> samples, std::int64_t row_length,
                 std::span<double> squares);

/// Whether a bit is set.
inline bool has_bit(std::span<const std::uint64_t> bits, std::int64_t i) {
    return ((bits[static_cast<std::size_t>(i >> 6)] >> (i & 63)) & 1) != 0;
}

/// Finds the samples of a section, ascending, that have a token of a wanted sequence.
///
/// `wanted` has a bit for each sequence. One pass over the document index, in which the rows are
/// found by galloping in the sample index, and one over the shuffle index. Throws as `trace_parts`.
std::vector<std::int64_t> find_samples(const Section& section,
                                       std::span<const std::uint64_t> wanted);

/// Finds the places of a blend, ascending, at which a member gives one of its wanted samples,
/// which ascend. Throws std::out_of_range if the blend names a member that does not exist.
std::vector<std::int64_t> find_positions(std::span<const std::int16_t> members,
                                         std::span<const std::int64_t> samples,
                                         std::span<const std::span<const std::int64_t>> wanted);

/// How samples of a blend follow one another.
struct BlendRuns {
    std::int64_t same = 0;     ///< places whose sample is of the same member as the one before
    std::int64_t longest = 0;  ///< samples of the longest run of one member
    std::int64_t longest_begin = 0;
};

/// Counts the samples of each member in each window of a blend.
///
/// `counts` has a row of `datasets` numbers for each window, which are added to. Throws
/// std::out_of_range if the blend names a member that does not exist, or there is no room.
BlendRuns count_members(std::span<const std::int16_t> members, std::int64_t window,
                        std::int64_t datasets, std::span<std::int64_t> counts);

/// What the rows of a section are, whatever their order.
struct RowSums {
    std::span<std::uint16_t> documents;  ///< parts with inputs; 65,535 stands for more
    std::span<float> squares;            ///< sum of the squares of their lengths
    std::span<std::int32_t> tokens;      ///< inputs; or empty, where all rows have equally many
};

/// What the sequences of a section are to training.
struct SectionSums {
    std::int64_t trained = 0;    ///< tokens that are inputs of trained rows
    std::int64_t continued = 0;  ///< those of them whose sequence begins in a row before
    std::int64_t whole = 0;      ///< entries that are in one row
    std::int64_t cut_once = 0;   ///< entries that are in two
    std::int64_t cut_more = 0;   ///< entries that are in more
};

/// Sums up a section of which the first samples are trained on.
///
/// `trained` has the inputs of each sequence from `first` on, which are added to. Throws
/// std::out_of_range if the arrays lead outside of one another, or of what is given.
SectionSums sum_section(const Section& section, std::int64_t samples, std::int64_t first,
                        std::span<std::int64_t> trained, const RowSums& rows);

/// Parts of sequences that rows visit.
struct PartVisits {
    std::vector<std::int64_t> sequences;  ///< counted from the first of the section
    std::vector<std::int32_t> begins, ends;
    std::vector<std::uint16_t> times;  ///< above 0
};

/// Finds what the rows of a section visit, each of them so often.
///
/// Visits of whole sequences, from `first` on, are added to `whole`; the others are returned, in
/// the order of the document index, with those of rows that follow one another as one. Throws
/// std::out_of_range if the arrays lead outside of one another, or of what is given,
/// and std::overflow_error if a sequence has more visits than can be counted.
PartVisits find_visits(const Section& section, std::span<const std::uint16_t> rows,
                       std::int64_t first, std::span<std::uint16_t> whole);

/// How often documents are trained on.
struct VisitSums {
    std::int64_t tokens = 0;
    std::int64_t never = 0;  ///< tokens that are never inputs
    double most = 0;         ///< inputs of a document, over all visits, for each of its tokens
};

/// Counts documents by their visits and by their lengths.
///
/// `visits` are never, in part, once, twice and so on, the last for all that are more; `classes` by
/// the number of bits of a length. Both are added to. A document without tokens is in no visit.
VisitSums count_visits(std::span<const std::int64_t> trained, std::span<const std::int64_t> lengths,
                       std::span<std::int64_t> visits, std::span<std::int64_t> classes);

/// What the samples of windows are.
struct WindowSums {
    std::span<std::int64_t> documents, tokens;
    std::span<double> squares;
    std::span<float> most_squares;  ///< of one sample
};

/// The rows of a member of a blend.
struct MemberRows {
    const Section* section;
    std::span<const std::uint16_t> documents;
    std::span<const float> squares;
    std::span<const std::int32_t> tokens;
};

/// Sums up each window of a blend. Throws std::out_of_range as `count_members`.
void sum_windows(std::span<const std::int16_t> members, std::span<const std::int64_t> samples,
                 std::int64_t window, std::span<const MemberRows> rows, const WindowSums& sums);

}  // namespace distcache
