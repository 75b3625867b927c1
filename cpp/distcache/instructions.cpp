#include "distcache/instructions.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

#if DISTCACHE_HAS_AVX512
#include <cpuid.h>
#endif

namespace distcache {
namespace {

constexpr std::array all{Instructions::baseline, Instructions::avx2, Instructions::avx512};
constexpr std::array names{"baseline", "avx2", "avx512"};

// How many of the names the processor has, with registers that the system saves (Intel's Software
// Developer's Manual, volume 1, 14.3 and 15.2). Not by __builtin_cpu_supports: with zig's runtime,
// which is in the wheels, that is always false.
std::size_t available() {
#if DISTCACHE_HAS_AVX512
    constexpr unsigned saves_ymm = 0x06;
    constexpr unsigned saves_zmm = 0xe6;
    constexpr unsigned for_avx2 = bit_AVX2 | bit_BMI | bit_BMI2;
    constexpr unsigned for_avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    constexpr unsigned for_both = bit_OSXSAVE | bit_FMA;
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & for_both) != for_both ||
        __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) {
        return 1;
    }
    unsigned saved = 0;
    asm("xgetbv" : "=a"(saved), "=d"(edx) : "c"(0));
    if ((ebx & for_avx2) != for_avx2 || (saved & saves_ymm) != saves_ymm) {
        return 1;
    }
    return (ebx & for_avx512) == for_avx512 && (saved & saves_zmm) == saves_zmm ? 3 : 2;
#else
    return 1;
#endif
}

// How many of the names come up to the one that is wanted; all, if it is none of them.
std::size_t allowed() {
    const char* wanted = std::getenv("DISTCACHE_INSTRUCTIONS");
    for (std::size_t i = 0; wanted != nullptr && i < names.size(); ++i) {
        if (std::strcmp(wanted, names[i]) == 0) {
            return i + 1;
        }
    }
    return names.size();
}

}  // namespace

std::span<const Instructions> available_instructions() {
    return std::span(all).first(available());
}

Instructions best_instructions() {
    static const Instructions best = all[std::min(available(), allowed()) - 1];
    return best;
}

}  // namespace distcache
