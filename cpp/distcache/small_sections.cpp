#include "distcache/small_sections.hpp"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <iterator>
#include <memory>
#include <numeric>

#include "distcache/mt19937.hpp"
#include "distcache/shuffle.hpp"

namespace distcache {
namespace {

// The entries of all epochs, as they are before the shuffle: one epoch after the other.
void fill_epochs(const SmallSection& section, std::span<std::int64_t> entries) {
    const auto one_epoch = static_cast<std::size_t>(section.end - section.begin);
    fill_entries(section.lengths, section.begin, entries.first(one_epoch));
    for (std::size_t done = one_epoch; done < entries.size(); done += one_epoch) {
        std::ranges::copy(entries.first(one_epoch), entries.subspan(done).begin());
    }
}

void shuffle_samples(std::int64_t first, std::span<std::uint32_t> samples, Mt19937& generator) {
    std::iota(samples.begin(), samples.end(), 0U);
    shuffle(samples.first(static_cast<std::size_t>(first)), 1, generator);
    shuffle(samples.subspan(static_cast<std::size_t>(first)), 1, generator);
}

void cut_rows(std::span<const std::int64_t> entries, SampleShape shape,
              std::span<std::int32_t> rows) {
    rows[0] = rows[1] = 0;
    Cursor cursor{0, 0, 1};
    const auto cut = emit_boundaries(entries, 0, shape, cursor, rows.subspan(2));
    const std::int64_t last_length = entries.empty() ? 0 : Entry::length(entries.back());
    for (auto i = 2 * static_cast<std::size_t>(cut + 1); i < rows.size(); i += 2) {
        rows[i] = static_cast<std::int32_t>(std::ssize(entries) - 1);
        rows[i + 1] = static_cast<std::int32_t>(last_length - shape.extra_token);
    }
}

void build_one(const SmallSection& section, SampleShape shape, std::span<std::int64_t> entries,
               std::span<std::int32_t> documents, std::span<std::int32_t> rows,
               std::span<std::uint32_t> samples) {
    assert(rows.size() >= 2 && rows.size() % 2 == 0);
    fill_epochs(section, entries);
    Mt19937 generator(section.seed);
    const auto first = static_cast<std::size_t>(section.first_documents);
    shuffle(entries.first(first), 1, generator);
    shuffle(entries.subspan(first), 1, generator);
    shuffle_samples(section.first_samples, samples, generator);
    std::ranges::transform(entries, documents.begin(),
                           [](std::int64_t entry) { return static_cast<std::int32_t>(entry); });
    cut_rows(entries, shape, rows);
}

}  // namespace

void build_small_sections(std::span<const SmallSection> sections, SampleShape shape,
                          std::span<std::int32_t> documents, std::span<std::int32_t> rows,
                          std::span<std::uint32_t> samples) {
    std::int64_t most = 0;
    for (const auto& section : sections) {
        most = std::max(most, section.documents);
    }
    const auto memory =
        std::make_unique_for_overwrite<std::int64_t[]>(static_cast<std::size_t>(most));
    const auto take = [](auto& rest, std::int64_t count) {
        const auto taken = rest.first(static_cast<std::size_t>(count));
        rest = rest.subspan(taken.size());
        return taken;
    };
    for (const auto& section : sections) {
        const std::span entries(memory.get(), static_cast<std::size_t>(section.documents));
        build_one(section, shape, entries, take(documents, section.documents),
                  take(rows, 2 * section.rows), take(samples, section.samples));
    }
}

}  // namespace distcache
