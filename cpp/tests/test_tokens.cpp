#include <limits>
#include <vector>

#include "catch.hpp"
#include "distcache/tokens.hpp"

using namespace distcache;

TEST_CASE("tokens keep their values in a narrower type") {
    std::vector<std::int64_t> values(10'000);
    for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = static_cast<std::int64_t>(i * 6);
    }
    std::vector<std::uint16_t> out(values.size());
    REQUIRE(narrow_tokens<std::int64_t, std::uint16_t>(values, 60'000, out) == -1);
    for (std::size_t i = 0; i < values.size(); ++i) {
        REQUIRE(out[i] == values[i]);
    }
}

TEST_CASE("the first token outside of the limit is found wherever it stands") {
    for (const std::size_t place : {0U, 4095U, 4096U, 9998U, 9999U}) {
        for (const std::int64_t value :
             {std::int64_t{-1}, std::int64_t{100}, std::numeric_limits<std::int64_t>::min(),
              std::numeric_limits<std::int64_t>::max()}) {
            std::vector<std::int64_t> values(10'000, 99);
            values[place] = value;
            values.back() = value;
            std::vector<std::uint8_t> out(values.size());
            REQUIRE(narrow_tokens<std::int64_t, std::uint8_t>(values, 100, out) ==
                    static_cast<std::int64_t>(place));
            REQUIRE(first_outside<std::int64_t>(values, 100) == static_cast<std::int64_t>(place));
        }
    }
}

TEST_CASE("unsigned 64-bit tokens beyond the signed range are outside") {
    const std::vector<std::uint64_t> values{5, std::uint64_t{1} << 63};
    REQUIRE(first_outside<std::uint64_t>(values, 6) == 1);
    REQUIRE(first_outside<std::uint64_t>(values, (std::uint64_t{1} << 63) + 1) == -1);
}

TEST_CASE("no tokens are all inside") {
    REQUIRE(first_outside<std::int32_t>({}, 0) == -1);
}
