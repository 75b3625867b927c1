#include <cstring>
#include <vector>

#include "catch.hpp"
#include "distcache/idx.hpp"

using namespace distcache;

namespace {

// Numbers at an address that no alignment fits.
template <class T>
class Misaligned {
public:
    explicit Misaligned(const std::vector<T>& values)
        : bytes_(values.size() * sizeof(T) + 1), size_(static_cast<std::int64_t>(values.size())) {
        if (!values.empty()) {
            std::memcpy(bytes_.data() + 1, values.data(), values.size() * sizeof(T));
        }
    }
    [[nodiscard]] UnalignedView<T> view() const { return {bytes_.data() + 1, size_}; }

private:
    std::vector<std::byte> bytes_;
    std::int64_t size_;
};

SequenceFacts check(const std::vector<std::int32_t>& lengths,
                    const std::vector<std::int64_t>& offsets, std::int64_t item_size = 2) {
    const Misaligned<std::int32_t> length_bytes(lengths);
    const Misaligned<std::int64_t> offset_bytes(offsets);
    return check_sequences(length_bytes.view(), offset_bytes.view(), 0,
                           static_cast<std::int64_t>(lengths.size()), item_size);
}

}  // namespace

TEST_CASE("sound sequences add up") {
    const auto facts = check({3, 0, 5}, {0, 6, 6});
    REQUIRE(facts.tokens == 8);
    REQUIRE(facts.empty == 1);
    REQUIRE(facts.first_negative == -1);
    REQUIRE(facts.first_misplaced == -1);
}

TEST_CASE("negative lengths and wrong offsets are counted, and the first is named") {
    const auto facts = check({3, -1, -7, 5}, {0, 6, 4, 0});
    REQUIRE(facts.negative_count == 2);
    REQUIRE(facts.first_negative == 1);
    const auto moved = check({3, 1, 1}, {0, 7, 9});
    REQUIRE(moved.misplaced_count == 1);
    REQUIRE(moved.first_misplaced == 1);
    REQUIRE(check({3}, {2}).first_misplaced == 0);
}

TEST_CASE("a range knows the sequence before it") {
    const Misaligned<std::int32_t> lengths({3, 4, 5});
    const Misaligned<std::int64_t> offsets({0, 6, 15});
    REQUIRE(check_sequences(lengths.view(), offsets.view(), 2, 3, 2).first_misplaced == 2);
    REQUIRE(check_sequences(lengths.view(), offsets.view(), 1, 2, 2).first_misplaced == -1);
}

TEST_CASE("extreme values neither overflow nor go unnoticed") {
    const std::int64_t least = INT64_MIN;
    const std::int64_t most = INT64_MAX;
    REQUIRE(check({INT32_MAX, 1}, {most, least}, 8).first_misplaced == 0);
    REQUIRE(check({INT32_MIN, INT32_MIN}, {0, least}, 8).first_negative == 0);
    REQUIRE(check({}, {}).tokens == 0);
}

TEST_CASE("sequences of a view that lie outside of its bytes are counted") {
    const std::int64_t most = INT64_MAX;
    const Misaligned<std::int32_t> lengths({3, 4, 0, 1, INT32_MAX, 1});
    const Misaligned<std::int64_t> offsets({14, 1, 20, most, 0, -1});
    const auto facts = find_outside(lengths.view(), offsets.view(), 0, 6, 2, 20);
    REQUIRE(facts.count == 3);
    REQUIRE(facts.first == 3);
    REQUIRE(find_outside(lengths.view(), offsets.view(), 0, 3, 2, 20).first == -1);
    REQUIRE(find_outside(lengths.view(), offsets.view(), 0, 3, 2, 19).count == 2);
}

TEST_CASE("the first descent of document boundaries is found") {
    const Misaligned<std::int64_t> bounds({0, 4, 4, 3, 9, 8});
    REQUIRE(first_descent(bounds.view(), 0, 6) == 3);
    REQUIRE(first_descent(bounds.view(), 4, 6) == 5);
    REQUIRE(first_descent(bounds.view(), 0, 3) == -1);
    REQUIRE(first_descent(bounds.view(), 0, 0) == -1);
}
