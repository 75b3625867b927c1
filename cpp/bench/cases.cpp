#include "cases.hpp"

#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>

#include "distcache/blend.hpp"
#include "distcache/idx.hpp"
#include "distcache/sample_index.hpp"
#include "distcache/shuffle.hpp"

namespace distcache::bench {
namespace {

constexpr auto plain = Instructions::baseline;
constexpr auto separate = Arithmetic::separate;

// Uniform numbers in (0, 1] that are the same with every standard library.
struct Uniform {
    Mt19937 generator{7};
    double operator()() { return (static_cast<double>(generator.next32()) + 1) / 4294967296.0; }
};

// Log-normal by Box and Muller (1958).
std::vector<double> log_normal(std::size_t size, double sigma) {
    Uniform uniform;
    std::vector<double> values(size);
    for (auto& value : values) {
        const double radius = std::sqrt(-2 * std::log(uniform()));
        value = std::exp(sigma * radius * std::cos(6.283185307179586 * uniform()));
    }
    return values;
}

std::vector<double> weights(std::size_t size) {
    auto values = log_normal(size, 1.5);
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    for (auto& value : values) {
        value /= sum;
    }
    return values;
}

std::function<void()> blend(const Blender& blender, std::size_t steps) {
    auto state = std::make_shared<Blender>(blender);
    state->skip(5000);  // to where corpora are taken as often as they will be
    auto corpora = std::make_shared<std::vector<std::int16_t>>(steps);
    auto samples = std::make_shared<std::vector<std::int64_t>>(steps);
    return [=] { state->next(*corpora, *samples); };
}

std::function<void()> shuffled(std::size_t size, const Partitioning& partitioning) {
    auto values = std::make_shared<std::vector<std::int64_t>>(size);
    auto space = std::make_shared<HugeMemory>();
    const auto run = [=] {
        Mt19937 generator(1);
        std::iota(values->begin(), values->end(), 0);
        shuffle(std::span(*values), 1, generator, {plain, space.get(), &partitioning});
    };
    run();  // so that all memory is there
    return run;
}

std::function<void()> skipped(std::size_t size) {
    return [=] {
        Mt19937 generator(1);
        skip_shuffle(size, 1, generator, plain);
    };
}

std::function<void()> boundaries(std::size_t size) {
    auto entries = std::make_shared<std::vector<std::int64_t>>(size);
    const auto lengths = log_normal(size, 1.0);
    for (std::size_t k = 0; k < size; ++k) {
        const auto length = static_cast<std::int64_t>(400 * lengths[k]);
        (*entries)[k] = (length << Entry::length_shift) | static_cast<std::int64_t>(k);
    }
    auto pairs = std::make_shared<std::vector<std::int32_t>>(2 * size);
    return [=] {
        Cursor cursor{0, 0, 1};
        emit_boundaries(std::span<const std::int64_t>(*entries), 0, {4096, 1}, cursor,
                        std::span(*pairs));
    };
}

std::function<void()> checked(std::int64_t size) {
    auto lengths = std::make_shared<std::vector<std::int32_t>>(static_cast<std::size_t>(size), 7);
    auto offsets = std::make_shared<std::vector<std::int64_t>>(static_cast<std::size_t>(size));
    for (std::size_t k = 0; k < offsets->size(); ++k) {
        (*offsets)[k] = static_cast<std::int64_t>(14 * k);
    }
    return [=] { check_sequences({lengths->data(), size}, {offsets->data(), size}, 0, size, 2); };
}

}  // namespace

std::vector<Case> cases() {
    static constexpr Partitioning small_regions{10, 8, 4096};
    static constexpr Partitioning one_region{10, 8, std::uint64_t{1} << 40};
    const auto of_weights = [](std::size_t corpora) {
        return [=] { return blend(Blender(weights(corpora), separate, plain), 1000); };
    };
    return {
        {"blend of 8", of_weights(8)},
        {"blend of 800", of_weights(800)},
        {"blend of 800 equals",
         [] { return blend(Blender(std::vector<double>(800, 1.0 / 800), separate, plain), 1000); }},
        {"shuffle in caches", [] { return shuffled(20000, one_region); }},
        {"shuffle in regions", [] { return shuffled(20000, small_regions); }},
        {"skipped shuffle", [] { return skipped(30000); }},
        {"boundaries", [] { return boundaries(20000); }},
        {"check of sequences", [] { return checked(20000); }},
    };
}

}  // namespace distcache::bench
