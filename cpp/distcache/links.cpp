#include "distcache/links.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <vector>

#include "draws.hpp"

namespace distcache {
namespace {

constexpr std::size_t ahead = 64;  // steps between a prefetch and its use

}  // namespace

std::size_t draws_within(std::uint32_t first, std::uint32_t count, std::uint32_t begin,
                         std::uint32_t end, std::span<std::uint32_t> steps,
                         std::span<std::uint32_t> draws, Mt19937& generator) {
    assert(1 <= count && count <= first && first < no_link);
    assert(begin <= end && steps.size() >= count && draws.size() >= count);
    std::array<std::uint32_t, block_steps + draw_slack> drawn;
    const std::uint32_t size = end - begin;
    std::size_t found = 0;
    for (std::uint32_t done = 0; done < count;) {
        const std::uint32_t step = first - done;
        const std::size_t block =
            steps_with_one_mask(step, std::min<std::size_t>(block_steps, count - done));
        draw_narrow(step, block, drawn.data(), generator, best_instructions());
        for (std::size_t k = 0; k < block; ++k) {
            // Written in any case, and overwritten by the next unless it is one of them.
            steps[found] = step - static_cast<std::uint32_t>(k);
            draws[found] = drawn[k];
            found += static_cast<std::size_t>(drawn[k] - begin < size);
        }
        done += static_cast<std::uint32_t>(block);
    }
    return found;
}

void link_steps(std::span<const std::uint32_t> steps, std::span<const std::uint32_t> draws,
                std::uint32_t begin, std::span<std::uint32_t> latest,
                std::span<std::uint32_t> links) {
    assert(draws.size() == steps.size() && links.size() == steps.size());
    for (std::size_t k = 0; k < steps.size(); ++k) {
        assert(draws[k] >= begin && draws[k] - begin < latest.size());
        assert(draws[k] <= steps[k]);
        if (k + ahead < steps.size()) {
            __builtin_prefetch(latest.data() + (draws[k + ahead] - begin), 1);
        }
        std::uint32_t& last = latest[draws[k] - begin];
        links[k] = last;
        last = steps[k] == draws[k] ? last : steps[k];
    }
}

void group_by_range(std::span<const std::uint32_t> keys, std::span<const std::int64_t> bounds,
                    std::span<std::uint32_t> order, std::span<std::int64_t> counts) {
    const auto range_of = [&](std::uint32_t key) {
        const auto after = std::upper_bound(bounds.begin() + 1, bounds.end() - 1, key);
        return static_cast<std::size_t>(after - bounds.begin()) - 1;
    };
    assert(bounds.size() == counts.size() + 1 && order.size() == keys.size());
    std::vector<std::uint16_t> ranges(keys.size());
    std::fill(counts.begin(), counts.end(), 0);
    for (std::size_t k = 0; k < keys.size(); ++k) {
        const std::size_t range = range_of(keys[k]);
        assert(bounds[range] <= keys[k] && keys[k] < bounds[range + 1]);
        ranges[k] = static_cast<std::uint16_t>(range);
        ++counts[range];
    }
    std::vector<std::size_t> next(counts.size());
    for (std::size_t r = 1; r < next.size(); ++r) {
        next[r] = next[r - 1] + static_cast<std::size_t>(counts[r - 1]);
    }
    for (std::size_t k = 0; k < keys.size(); ++k) {
        order[next[ranges[k]]++] = static_cast<std::uint32_t>(k);
    }
}

}  // namespace distcache
