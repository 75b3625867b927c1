#pragma once

#include <span>

namespace distcache {

/// Which instructions a kernel uses. The baseline is right everywhere; more is faster.
enum class Instructions { baseline, avx2, avx512 };

/// The most that this machine has, up to what the environment's DISTCACHE_INSTRUCTIONS names. It
/// governs all code.
Instructions best_instructions();

/// All that this machine has, for tests.
std::span<const Instructions> available_instructions();

}  // namespace distcache

/// DISTCACHE_AVX512 and DISTCACHE_AVX2 compile a function for these whatever the rest is compiled
/// for: it must be called only where `best_instructions` says so.
#if defined(__x86_64__)
#define DISTCACHE_HAS_AVX512 1
#define DISTCACHE_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,bmi,bmi2")))
#define DISTCACHE_AVX2 __attribute__((target("avx2,fma,bmi,bmi2")))
#else
#define DISTCACHE_HAS_AVX512 0
#endif
