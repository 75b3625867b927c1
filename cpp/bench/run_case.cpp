// Runs the case that is named, or lists the cases. Under callgrind, which is told to collect what
// is called `measured`, that is a count of its instructions.

#include <cstdio>
#include <cstring>

#include "cases.hpp"

extern "C" __attribute__((noinline)) void measured(const std::function<void()>& kernel) {
    kernel();
}

int main(int count, char** words) {
    for (const auto& known : distcache::bench::cases()) {
        if (count == 1) {
            std::puts(known.name.c_str());
        } else if (known.name == words[1]) {
            measured(known.prepare());
            return 0;
        }
    }
    return count == 1 ? 0 : 2;
}
