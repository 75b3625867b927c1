#include <random>

#include "catch.hpp"
#include "distcache/mt19937.hpp"

using distcache::Mt19937;

TEST_CASE("the stream is that of std::mt19937, over many blocks") {
    const std::uint32_t seed = GENERATE(0u, 1u, 1234u, 4294967295u);
    std::mt19937 truth(seed);
    Mt19937 generator(seed);
    for (int i = 0; i < 5000; ++i) {
        REQUIRE(generator.next32() == truth());
    }
}

TEST_CASE("a wide word joins two words, the first above") {
    Mt19937 narrow(7);
    Mt19937 wide(7);
    for (int i = 0; i < 1000; ++i) {
        const std::uint64_t upper = narrow.next32();
        const std::uint64_t lower = narrow.next32();
        REQUIRE(wide.next64() == ((upper << 32) | lower));
    }
}

TEST_CASE("ready words are the words to come, and only consumed ones are gone") {
    Mt19937 truth(3);
    Mt19937 generator(3);
    for (int round = 0; round < 50; ++round) {
        const auto words = generator.ready();
        REQUIRE_FALSE(words.empty());
        const std::size_t used = std::min<std::size_t>(words.size(), 100);
        for (std::size_t i = 0; i < used; ++i) {
            REQUIRE(words[i] == truth.next32());
        }
        generator.consume(used);
    }
}
