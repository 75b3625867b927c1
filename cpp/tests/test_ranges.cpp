#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

#include "catch.hpp"
#include "distcache/ranges.hpp"

using namespace distcache;

namespace {

// An unlinked file of bytes that count up.
class Counting {
public:
    explicit Counting(std::size_t size) {
        char name[] = "/tmp/rangesXXXXXX";
        descriptor_ = ::mkstemp(name);
        ::unlink(name);
        std::vector<unsigned char> bytes(size);
        for (std::size_t i = 0; i < size; ++i) {
            bytes[i] = static_cast<unsigned char>(i);
        }
        REQUIRE(::write(descriptor_, bytes.data(), size) == static_cast<ssize_t>(size));
    }
    ~Counting() { ::close(descriptor_); }
    Counting(const Counting&) = delete;
    Counting& operator=(const Counting&) = delete;
    [[nodiscard]] int descriptor() const { return descriptor_; }

private:
    int descriptor_;
};

}  // namespace

TEST_CASE("ranges in any order come one after the other") {
    const Counting file(100);
    const std::vector<std::int64_t> begins{90, 5, 7, 0};
    const std::vector<std::int64_t> sizes{3, 2, 4, 0};
    std::vector<unsigned char> out(9);
    const auto outcome = read_ranges(file.descriptor(), begins, sizes, out.data());
    REQUIRE(outcome.error == 0);
    REQUIRE(outcome.done == 9);
    REQUIRE(out == std::vector<unsigned char>{90, 91, 92, 5, 6, 7, 8, 9, 10});
}

TEST_CASE("a range beyond the file, and a wild one, are errors") {
    const Counting file(10);
    std::vector<unsigned char> out(8);
    const std::vector<std::int64_t> sizes{4, 4};
    for (const std::int64_t wild :
         {std::int64_t{7}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()}) {
        const std::vector<std::int64_t> begins{0, wild};
        const auto outcome = read_ranges(file.descriptor(), begins, sizes, out.data());
        REQUIRE(outcome.error == RangesOutcome::file_ends);
        REQUIRE(outcome.done == 4);
    }
    REQUIRE(read_ranges(-1, std::vector<std::int64_t>{0}, std::vector<std::int64_t>{1}, out.data())
                .error == EBADF);
}
