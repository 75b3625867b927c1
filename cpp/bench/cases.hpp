#pragma once

#include <functional>
#include <string>
#include <vector>

namespace distcache::bench {

/// A kernel on a fixed input. `prepare` makes the input, and returns what is counted.
struct Case {
    std::string name;
    std::function<std::function<void()>()> prepare;
};

std::vector<Case> cases();

}  // namespace distcache::bench
