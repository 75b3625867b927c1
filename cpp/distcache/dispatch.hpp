#pragma once

#include "distcache/instructions.hpp"

namespace distcache {

/// Before the `run` of a kernel: it is inlined into both versions below.
#define DISTCACHE_KERNEL [[gnu::always_inline]] static inline

#if defined(DISTCACHE_DISPATCH) && DISTCACHE_HAS_AVX512
template <class Kernel, class... Arguments>
DISTCACHE_AVX2 auto run_avx2(Arguments... arguments) {
    return Kernel::template run<Instructions::avx2>(arguments...);
}
#endif

/// Runs `Kernel::run<kind>(arguments...)`, compiled for the baseline and for AVX2, so that one
/// portable binary uses the vectors of the machine it runs on. Arguments are copied. There are no
/// copies for AVX-512: what compilers make of these loops is at most as fast, but for two that take
/// a few per cent of their callers' time; what wins is written by hand (`draw_avx512`,
/// `avx512_kernels`). Without DISTCACHE_DISPATCH there is the baseline alone.
template <class Kernel, class... Arguments>
auto dispatched(Arguments... arguments) {
#if defined(DISTCACHE_DISPATCH) && DISTCACHE_HAS_AVX512
    if (best_instructions() != Instructions::baseline) {
        return run_avx2<Kernel>(arguments...);
    }
#endif
    return Kernel::template run<Instructions::baseline>(arguments...);
}

}  // namespace distcache
