#pragma once

#include "distcache/instructions.hpp"

/// DISTCACHE_DISPATCHED(result, name, (parameters), (arguments)) defines a function whose body is
/// `name_body`, always inlined: compiled for every kind of `Instructions`, of which
/// `best_instructions` chooses one, so that one portable binary uses the vectors of the machine it
/// runs on. Without DISTCACHE_DISPATCH there is the baseline alone. The body knows the kind.
#define DISTCACHE_BODY           \
    template <Instructions kind> \
    [[gnu::always_inline]] static inline
#if defined(DISTCACHE_DISPATCH) && DISTCACHE_HAS_AVX512
#define DISTCACHE_DISPATCHED(result, name, parameters, arguments) \
    DISTCACHE_AVX512 static result name##_avx512 parameters {     \
        return name##_body<Instructions::avx512> arguments;       \
    }                                                             \
    DISTCACHE_AVX2 static result name##_avx2 parameters {         \
        return name##_body<Instructions::avx2> arguments;         \
    }                                                             \
    static result name##_baseline parameters {                    \
        return name##_body<Instructions::baseline> arguments;     \
    }                                                             \
    result name parameters {                                      \
        switch (best_instructions()) {                            \
            case Instructions::avx512:                            \
                return name##_avx512 arguments;                   \
            case Instructions::avx2:                              \
                return name##_avx2 arguments;                     \
            case Instructions::baseline:                          \
                break;                                            \
        }                                                         \
        return name##_baseline arguments;                         \
    }
#else
#define DISTCACHE_DISPATCHED(result, name, parameters, arguments) \
    result name parameters {                                      \
        return name##_body<Instructions::baseline> arguments;     \
    }
#endif
