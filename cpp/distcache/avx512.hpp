#pragma once

/// The intrinsics. GCC 12 takes the undefined operands of its own for mistakes.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
