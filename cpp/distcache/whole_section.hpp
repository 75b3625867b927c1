#pragma once

#include <cstdint>
#include <span>

#include "distcache/sample_index.hpp"

namespace distcache {

/// What a section in Megatron's order is made of: see `distcache.plan.model.SectionPlan`.
struct SectionRules {
    std::int64_t begin;            ///< the first sequence
    std::int64_t end;              ///< the one after the last
    std::int64_t first_documents;  ///< entries of the document index that are shuffled first
    std::int64_t first_samples;    ///< entries of the shuffle index that are shuffled first
    SampleShape shape;
    std::uint32_t seed;
};

/// Build all arrays of a section that fits into memory, by one thread.
///
/// The same arrays as the steps of `distcache.builder.sections` make, which go through large ones
/// piece by piece. `rows` are pairs, one more than samples; those beyond the last token end with
/// the last document. Requires lengths of all sequences, and documents of whole epochs,
/// at least one; those of a split that is less than a document are empty.
void build_section(UnalignedView<std::int32_t> lengths, const SectionRules& rules,
                   std::span<std::int32_t> documents, std::span<std::int32_t> rows,
                   std::span<std::uint32_t> samples);

}  // namespace distcache
