#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <system_error>
#include <vector>

#include "catch.hpp"
#include "distcache/mapping.hpp"

using namespace distcache;

namespace {

constexpr std::size_t page = 4096;

// A file of ones that has no name any more.
int file_of_ones(std::size_t size) {
    std::string name = "/tmp/distcache-mapping-XXXXXX";
    const int descriptor = ::mkstemp(name.data());
    REQUIRE(descriptor >= 0);
    ::unlink(name.c_str());
    const std::vector<char> ones(size, 1);
    REQUIRE(::write(descriptor, ones.data(), size) == static_cast<ssize_t>(size));
    return descriptor;
}

}  // namespace

TEST_CASE("What is cut off a mapped file reads as zeros, and is noticed") {
    const int descriptor = file_of_ones(4 * page);
    const Mapping cut(descriptor, 4 * page);
    const Mapping other(descriptor, page);
    REQUIRE(cut.bytes()[3 * page] == std::byte{1});
    REQUIRE(::ftruncate(descriptor, page) == 0);
    const auto faults = Mapping::faults();
    CHECK(cut.bytes()[2 * page] == std::byte{0});
    CHECK(cut.bytes()[4 * page - 1] == std::byte{0});
    CHECK_FALSE(cut.is_intact());
    CHECK(Mapping::faults() == faults + 1);
    CHECK(cut.bytes()[0] == std::byte{1});
    CHECK(other.bytes()[0] == std::byte{1});
    CHECK(other.is_intact());
    ::close(descriptor);
}

TEST_CASE("A place in the table is used again, and begins intact") {
    for (int round = 0; round < 3; ++round) {
        const int descriptor = file_of_ones(page);
        const Mapping mapping(descriptor, page);
        CHECK(mapping.is_intact());
        REQUIRE(::ftruncate(descriptor, 0) == 0);
        CHECK(mapping.bytes()[0] == std::byte{0});
        CHECK_FALSE(mapping.is_intact());
        ::close(descriptor);
    }
}

TEST_CASE("An error of a mapping that is not ours ends the process as ever") {
    const int descriptor = file_of_ones(page);
    const Mapping mapping(descriptor, page);
    const pid_t child = ::fork();
    if (child == 0) {
        ::signal(SIGBUS, SIG_DFL);
        const Mapping again(descriptor, page);  // handles the signal once more
        auto* address = static_cast<volatile char*>(
            ::mmap(nullptr, page, PROT_READ, MAP_SHARED, descriptor, 0));
        if (::ftruncate(descriptor, 0) != 0) {
            ::_exit(2);
        }
        ::_exit(address[0] + 3);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == SIGBUS);
    ::close(descriptor);
}

TEST_CASE("What cannot be mapped is read into memory") {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    CHECK_THROWS_AS(Mapping(ends[0], page), std::system_error);  // neither
    ::close(ends[0]);
    ::close(ends[1]);
    // A file that Linux refuses to map, as some filesystems refuse it for each of their files.
    const int descriptor = ::open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    REQUIRE(descriptor >= 0);
    REQUIRE(::mmap(nullptr, page, PROT_READ, MAP_SHARED, descriptor, 0) == MAP_FAILED);
    const Mapping mapping(descriptor, 3 * page);
    ::close(descriptor);
    CHECK(mapping.is_copy());
    CHECK(mapping.is_intact());
    const auto bytes = mapping.bytes();
    const auto last = bytes.last(page);  // 4,096 random bytes are not all zeros
    CHECK(std::any_of(last.begin(), last.end(), [](auto value) { return value != std::byte{0}; }));
    const std::vector<std::byte> before(bytes.begin(), bytes.end());
    mapping.release(0, 3 * page);
    CHECK(std::equal(before.begin(), before.end(), bytes.begin()));
}
