#include "distcache/instructions.hpp"

#include <array>
#include <cstdlib>
#include <cstring>

namespace distcache {
namespace {

constexpr std::array all{Instructions::baseline, Instructions::avx512};

bool has_avx512() {
#if DISTCACHE_HAS_AVX512
    return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
           __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
           __builtin_cpu_supports("bmi2") != 0;
#else
    return false;
#endif
}

}  // namespace

std::span<const Instructions> available_instructions() {
    return std::span(all).first(has_avx512() ? 2 : 1);
}

Instructions best_instructions() {
    static const Instructions best = [] {
        const char* wanted = std::getenv("DISTCACHE_INSTRUCTIONS");
        const bool plain = wanted != nullptr && std::strcmp(wanted, "baseline") == 0;
        return plain ? Instructions::baseline : available_instructions().back();
    }();
    return best;
}

}  // namespace distcache
