#include "draws.hpp"

#include <algorithm>
#include <bit>
#include <cassert>

namespace distcache {

std::size_t steps_with_one_mask(std::uint64_t first, std::size_t wanted) {
    assert(first > 0);
    const std::uint64_t below = std::bit_floor(first) - 1;
    return static_cast<std::size_t>(std::min<std::uint64_t>(wanted, first - below));
}

// A rejected word is overwritten by the next: the loop has no branch to mispredict, and it never
// looks at more words than steps are left.
void draw_narrow(std::uint32_t first, std::size_t count, std::uint32_t* draws, Mt19937& generator,
                 [[maybe_unused]] Instructions instructions) {
    assert(count <= first && std::bit_width(first) == std::bit_width(first - (count - 1)));
    const auto mask = static_cast<std::uint32_t>(std::bit_ceil(std::uint64_t{first} + 1) - 1);
    std::size_t done = 0;
    while (done < count) {
        const auto words = generator.ready();
        const std::size_t usable = std::min(words.size(), count - done);
        std::size_t used = 0;
#if DISTCACHE_HAS_AVX512
        if (instructions != Instructions::baseline) {
            const auto draw = instructions == Instructions::avx512 ? draw_avx512 : draw_avx2;
            const Drawn drawn = draw(words.data(), usable, first, done, count, draws);
            used = drawn.words;
            done += drawn.draws;
        }
#endif
        for (; used < usable; ++used) {
            const std::uint32_t value = words[used] & mask;
            draws[done] = value;
            done += static_cast<std::size_t>(value <= first - done);
        }
        generator.consume(usable);
    }
}

void draw_wide(std::uint64_t first, std::size_t count, std::uint64_t* draws, Mt19937& generator) {
    assert(count <= first && std::bit_width(first) == std::bit_width(first - (count - 1)));
    const std::uint64_t mask = ~std::uint64_t{0} >> std::countl_zero(first);
    for (std::size_t done = 0; done < count;) {
        const std::uint64_t value = generator.next64() & mask;
        draws[done] = value;
        done += static_cast<std::size_t>(value <= first - done);
    }
}

}  // namespace distcache
