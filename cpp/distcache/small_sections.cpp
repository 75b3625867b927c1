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

// The documents of all epochs, as they are before the shuffle: one epoch after the other.
void fill_epochs(const SmallSection& section, std::span<std::int32_t> documents) {
    const auto one_epoch = static_cast<std::size_t>(section.end - section.begin);
    std::iota(documents.begin(), documents.begin() + static_cast<std::ptrdiff_t>(one_epoch),
              static_cast<std::int32_t>(section.begin));
    for (std::size_t done = one_epoch; done < documents.size(); done += one_epoch) {
        std::ranges::copy(documents.first(one_epoch), documents.subspan(done).begin());
    }
}

void shuffle_samples(std::int64_t first, std::span<std::uint32_t> samples, Mt19937& generator) {
    std::iota(samples.begin(), samples.end(), 0U);
    shuffle(samples.first(static_cast<std::size_t>(first)), 1, generator);
    shuffle(samples.subspan(static_cast<std::size_t>(first)), 1, generator);
}

void cut_rows(std::span<const std::int32_t> lengths, SampleShape shape,
              std::span<std::int32_t> rows) {
    rows[0] = rows[1] = 0;
    Cursor cursor{0, 0, 1};
    const auto cut = emit_boundaries(lengths, 0, shape, cursor, rows.subspan(2));
    const std::int64_t last_length = lengths.empty() ? 0 : lengths.back();
    for (auto i = 2 * static_cast<std::size_t>(cut + 1); i < rows.size(); i += 2) {
        rows[i] = static_cast<std::int32_t>(std::ssize(lengths) - 1);
        rows[i + 1] = static_cast<std::int32_t>(last_length - shape.extra_token);
    }
}

void build_one(const SmallSection& section, SampleShape shape, std::span<std::int32_t> lengths,
               std::span<std::int32_t> documents, std::span<std::int32_t> rows,
               std::span<std::uint32_t> samples) {
    assert(rows.size() >= 2 && rows.size() % 2 == 0);
    fill_epochs(section, documents);
    Mt19937 generator(section.seed);
    const auto first = static_cast<std::size_t>(section.first_documents);
    shuffle(documents.first(first), 1, generator);
    shuffle(documents.subspan(first), 1, generator);
    shuffle_samples(section.first_samples, samples, generator);
    gather(section.lengths, std::span<const std::int32_t>(documents), lengths);
    cut_rows(lengths, shape, rows);
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
        std::make_unique_for_overwrite<std::int32_t[]>(static_cast<std::size_t>(most));
    const auto take = [](auto& rest, std::int64_t count) {
        const auto taken = rest.first(static_cast<std::size_t>(count));
        rest = rest.subspan(taken.size());
        return taken;
    };
    for (const auto& section : sections) {
        const std::span lengths(memory.get(), static_cast<std::size_t>(section.documents));
        build_one(section, shape, lengths, take(documents, section.documents),
                  take(rows, 2 * section.rows), take(samples, section.samples));
    }
}

}  // namespace distcache
