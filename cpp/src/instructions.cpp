#include "distcache/instructions.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

namespace distcache {
namespace {

constexpr std::array all{Instructions::baseline, Instructions::avx2, Instructions::avx512};
constexpr std::array names{"baseline", "avx2", "avx512"};

bool has_avx512() {
#if DISTCACHE_HAS_AVX512
    return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
           __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
           __builtin_cpu_supports("bmi") != 0 && __builtin_cpu_supports("bmi2") != 0;
#else
    return false;
#endif
}

bool has_avx2() {
#if DISTCACHE_HAS_AVX512
    return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 &&
           __builtin_cpu_supports("bmi") != 0 && __builtin_cpu_supports("bmi2") != 0;
#else
    return false;
#endif
}

std::size_t available() {
    if (!has_avx2()) {
        return 1;
    }
    return has_avx512() ? 3 : 2;
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
