#include <cstdint>
#include <map>
#include <random>

#include "catch.hpp"
#include "distcache/extents.hpp"

using namespace distcache;

TEST_CASE("the smallest free extent is taken, and what is left of it stays free") {
    Extents extents;
    const auto first = extents.take(1000);
    const auto second = extents.take(300);
    const auto third = extents.take(64);
    const auto last = extents.take(1);
    REQUIRE(last == extents.end() - Extents::unit);
    extents.release(first, 1000);
    extents.release(third, 64);
    REQUIRE(extents.take(60) == third);
    REQUIRE(extents.take(500) == first);
    REQUIRE(extents.take(400) == first + 512);
    REQUIRE(second == first + 1024);
}

TEST_CASE("free neighbours become one extent, and a free end shortens the file") {
    Extents extents;
    const auto first = extents.take(640);
    const auto second = extents.take(640);
    const auto third = extents.take(640);
    extents.release(first, 640);
    extents.release(second, 640);
    REQUIRE(extents.fits(1280, 0));
    REQUIRE_FALSE(extents.fits(1281, 0));
    REQUIRE(extents.end() == 1920);
    extents.release(third, 640);
    REQUIRE(extents.end() == 0);
    REQUIRE(extents.fits(100, 128));
    REQUIRE_FALSE(extents.fits(200, 128));
}

TEST_CASE("places never overlap") {
    Extents extents;
    std::mt19937_64 random(1);
    std::map<std::int64_t, std::int64_t> taken;
    for (int step = 0; step < 20'000; ++step) {
        if (taken.empty() || random() % 2 == 0) {
            const auto size = static_cast<std::int64_t>(1 + random() % 5000);
            const auto offset = extents.take(size);
            const auto [place, is_new] = taken.emplace(offset, Extents::rounded(size));
            REQUIRE(is_new);
            const auto next = std::next(place);
            REQUIRE((next == taken.end() || offset + place->second <= next->first));
            REQUIRE((place == taken.begin() ||
                     std::prev(place)->first + std::prev(place)->second <= offset));
            REQUIRE(offset + place->second <= extents.end());
        } else {
            const auto place =
                std::next(taken.begin(), static_cast<std::ptrdiff_t>(random() % taken.size()));
            extents.release(place->first, place->second);
            taken.erase(place);
        }
    }
    for (const auto& [offset, size] : taken) {
        extents.release(offset, size);
    }
    REQUIRE(extents.end() == 0);
}
