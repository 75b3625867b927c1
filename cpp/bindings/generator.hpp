#pragma once

#include "distcache/shuffle.hpp"

namespace distcache::bindings {

/// A generator with the memory that its shuffles work in.
struct Generator : Mt19937 {
    using Mt19937::Mt19937;
    HugeMemory space;
};

}  // namespace distcache::bindings
