#include "cases.hpp"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>

#include "distcache/blend.hpp"
#include "distcache/deal.hpp"
#include "distcache/idx.hpp"
#include "distcache/packing.hpp"
#include "distcache/sample_index.hpp"
#include "distcache/samples.hpp"
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
    auto values = std::make_shared<std::vector<std::int32_t>>(size);
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

std::function<void()> looked_up(std::size_t size) {
    auto lengths = std::make_shared<std::vector<std::int32_t>>(size, 7);
    auto narrow = std::make_shared<std::vector<std::uint16_t>>(size, 7);
    auto sequences = std::make_shared<std::vector<std::int32_t>>(size);
    std::iota(sequences->begin(), sequences->end(), 0);
    auto out = std::make_shared<std::vector<std::int32_t>>(size);
    return [=] {
        const auto count = static_cast<std::int64_t>(lengths->size());
        look_up_lengths(*narrow, {lengths->data(), count}, 0, *sequences, *out);
    };
}

std::function<void()> boundaries(std::size_t size) {
    auto lengths = std::make_shared<std::vector<std::int32_t>>();
    for (const double length : log_normal(size, 1.0)) {
        lengths->push_back(static_cast<std::int32_t>(400 * length));
    }
    auto pairs = std::make_shared<std::vector<std::int32_t>>(2 * size);
    return [=] {
        Cursor cursor{0, 0, 1};
        emit_boundaries(std::span<const std::int32_t>(*lengths), 0, {4096, 1}, cursor,
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

std::function<void()> dealt(std::size_t batch) {
    const auto work = std::make_shared<std::vector<double>>(log_normal(batch, 1.0));
    const auto dealer =
        std::make_shared<Dealer>(static_cast<std::int64_t>(batch), std::int64_t{64}, 4);
    auto places = std::make_shared<std::vector<std::uint32_t>>(batch);
    return [=] { dealer->deal(*work, *places); };
}

std::function<void()> packed(std::size_t size) {
    auto lengths = std::make_shared<std::vector<std::int64_t>>();
    for (const double length : log_normal(size, 1.0)) {
        lengths->push_back(1 + static_cast<std::int64_t>(400 * length));
    }
    return [=] {
        LengthCounts counts({.row_length = 4096, .most_documents = 0, .cuts_longer = true});
        for (const std::int64_t length : *lengths) {
            counts.add(length);
        }
        const Packing packing(counts);
    };
}

// A sample of documents of 128 tokens, and the mask of its loss.
struct SampleFiles {
    static constexpr std::int32_t documents = 64;
    static constexpr std::int32_t length = 128;

    std::vector<std::int32_t> order, lengths{std::vector<std::int32_t>(documents, length)};
    std::vector<std::int32_t> samples{0, 0, 32, 0};
    std::vector<std::uint32_t> shuffle{0};
    std::vector<std::int64_t> offsets;
    std::FILE* tokens = std::tmpfile();
    std::FILE* mask = std::tmpfile();
    std::vector<std::int32_t> descriptors{fileno(tokens)};

    SampleFiles() : order(documents), offsets(documents) {
        std::iota(order.begin(), order.end(), 0);
        for (std::size_t d = 0; d < documents; ++d) {
            offsets[d] = static_cast<std::int64_t>(2 * length * d);
        }
        const std::vector<std::uint16_t> some(documents * length, 7);
        const std::vector<std::uint8_t> ones(documents * length, 1);
        std::fwrite(some.data(), sizeof(some[0]), some.size(), tokens);
        std::fwrite(ones.data(), 1, ones.size(), mask);
        std::fflush(tokens);
        std::fflush(mask);
    }

    [[nodiscard]] Section section() const {
        return {order,
                std::span<const std::int32_t>(samples),
                std::span<const std::uint32_t>(shuffle),
                {lengths.data(), documents},
                {offsets.data(), documents},
                TokenType::u16,
                1,
                {}};
    }
};

std::function<void()> sample(bool has_mask) {
    constexpr std::size_t length = 4096;
    auto files = std::make_shared<SampleFiles>();
    auto reader = std::make_shared<SampleReader>(SampleRules{-1, 0, false, false});
    auto numbers = std::make_shared<std::vector<std::int64_t>>(3 * length);
    auto losses = std::make_shared<std::vector<float>>(length);
    return [=] {
        const std::span all(*numbers);
        reader->read(files->section(), 0, Descriptors{files->descriptors},
                     {.tokens = all.first(length),
                      .labels = all.subspan(length, length),
                      .loss_mask = *losses,
                      .positions = all.last(length),
                      .ends = {},
                      .bounds = {},
                      .longest = nullptr},
                     has_mask ? fileno(files->mask) : -1);
    };
}

}  // namespace

std::vector<Case> cases() {
    static constexpr Partitioning small_regions{10, 8, 4096};
    static constexpr Partitioning one_region{10, 8, std::uint64_t{1} << 40};
    const auto of_weights = [](std::size_t corpora, std::size_t steps = 1000,
                               Instructions instructions = plain) {
        return [=] { return blend(Blender(weights(corpora), separate, instructions), steps); };
    };
    return {
        {"blend of 8", of_weights(8)},
        {"blend of 800", of_weights(800)},
        {"blend of 800 equals",
         [] { return blend(Blender(std::vector<double>(800, 1.0 / 800), separate, plain), 1000); }},
        {"exhaustive blend of 8 in pieces",
         [] {
             auto blender = std::make_shared<Blender>(
                 Blender::exhaustive(std::vector<std::int64_t>(8, 10'000), separate, plain));
             auto corpora = std::make_shared<std::vector<std::int16_t>>(10);
             auto samples = std::make_shared<std::vector<std::int64_t>>(10);
             return [=] {
                 for (int piece = 0; piece < 100; ++piece) {
                     blender->next(*corpora, *samples);
                 }
             };
         }},
        {"blend of 8 in lanes", of_weights(8, 140'000, Instructions::avx2)},
        {"blend of 800 in registers", of_weights(800, 1000, Instructions::avx2)},
        {"shuffle in caches", [] { return shuffled(20000, one_region); }},
        {"shuffle in regions", [] { return shuffled(20000, small_regions); }},
        {"skipped shuffle", [] { return skipped(30000); }},
        {"lengths in any order", [] { return looked_up(20000); }},
        {"boundaries", [] { return boundaries(20000); }},
        {"check of sequences", [] { return checked(20000); }},
        {"deal of a step", [] { return dealt(1024); }},
        {"packing", [] { return packed(20000); }},
        {"sample", [] { return sample(false); }},
        {"sample with a mask", [] { return sample(true); }},
    };
}

}  // namespace distcache::bench
