#pragma once

#include <cstdint>
#include <span>

#include "distcache/sample_index.hpp"
#include "distcache/unaligned.hpp"

namespace distcache {

/// What a section in Megatron's order is made of: see `distcache.plan.model.SectionPlan`.
struct SmallSection {
    UnalignedView<std::int32_t> lengths;  ///< tokens of all sequences of its corpus
    std::int64_t begin;                   ///< the first sequence
    std::int64_t end;                     ///< the one after the last
    std::int64_t first_documents;         ///< entries of the document index that are shuffled first
    std::int64_t first_samples;           ///< entries of the shuffle index that are shuffled first
    std::uint32_t seed;
    // entries of the document index, rows of the sample index, entries of the shuffle index
    std::int64_t documents;
    std::int64_t rows;
    std::int64_t samples;
};

/// Build the arrays of sections that fit into memory, by one thread.
///
/// The same arrays as the steps of `distcache.builder.sections` make, which go through large ones
/// piece by piece. Those of one name follow one another, as in a unit of a cache. Rows are pairs,
/// at least one for each section; those beyond the last token end with the last document.
/// Requires lengths of all sequences, and documents of one or more whole epochs; a section without
/// sequences has no documents. The arrays have as many elements as the sections together.
void build_small_sections(std::span<const SmallSection> sections, SampleShape shape,
                          std::span<std::int32_t> documents, std::span<std::int32_t> rows,
                          std::span<std::uint32_t> samples);

}  // namespace distcache
