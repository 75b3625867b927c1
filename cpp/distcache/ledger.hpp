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

}  // namespace distcache
