#pragma once

/// DISTCACHE_VECTOR_CLONES compiles a function for AVX-512, AVX2 and the baseline and lets the
/// loader choose, so that one portable binary uses the vectors of the machine it runs on.
#if defined(DISTCACHE_DISPATCH) && defined(__x86_64__) && defined(__GLIBC__)
#define DISTCACHE_VECTOR_CLONES \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DISTCACHE_VECTOR_CLONES
#endif
