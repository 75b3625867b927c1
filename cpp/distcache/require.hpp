#pragma once

#include <stdexcept>

namespace distcache {

/// Throws std::out_of_range where arrays lead outside of one another.
inline void require(bool condition, const char* what) {
    if (!condition) {
        throw std::out_of_range(what);
    }
}

}  // namespace distcache
