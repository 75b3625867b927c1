#pragma once

#include <span>

namespace distcache {

/// Which instructions a kernel that is written by hand uses. The baseline is right everywhere.
enum class Instructions { baseline, avx512 };

/// What this machine has, unless the environment's DISTCACHE_INSTRUCTIONS is `baseline`.
Instructions best_instructions();

/// All that this machine has, for tests.
std::span<const Instructions> available_instructions();

}  // namespace distcache

/// DISTCACHE_AVX512 compiles a function for AVX-512 whatever the rest is compiled for: it must be
/// called only where `best_instructions` says so.
#if defined(__x86_64__)
#define DISTCACHE_HAS_AVX512 1
#define DISTCACHE_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,bmi,bmi2")))
#else
#define DISTCACHE_HAS_AVX512 0
#endif
