#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "catch.hpp"
#include "distcache/samples.hpp"

using namespace distcache;

namespace {

// A file of tokens 0, 1, 2, ..., without a name.
class TokenFile {
public:
    template <class T>
    explicit TokenFile(T count) : file_(std::tmpfile()) {
        std::vector<T> tokens(static_cast<std::size_t>(count));
        std::iota(tokens.begin(), tokens.end(), T{0});
        REQUIRE(std::fwrite(tokens.data(), sizeof(T), tokens.size(), file_) == tokens.size());
        std::fflush(file_);
    }
    TokenFile(const TokenFile&) = delete;
    TokenFile& operator=(const TokenFile&) = delete;
    ~TokenFile() { std::fclose(file_); }
    [[nodiscard]] int descriptor() const { return fileno(file_); }
    [[nodiscard]] std::vector<std::int32_t> descriptors() const { return {descriptor()}; }

private:
    std::FILE* file_;
};

// Three sequences of 5, 0 and 7 tokens, in the order 2, 1, 0; samples of 4 tokens.
struct Example {
    std::vector<std::int32_t> documents{2, 1, 0};
    std::vector<std::int32_t> samples{0, 0, 0, 4, 2, 1};
    std::vector<std::uint32_t> shuffle{1, 0};
    std::vector<std::int32_t> lengths{5, 0, 7};
    std::vector<std::int64_t> offsets{0, 10, 10};

    [[nodiscard]] Section section() const {
        return {documents,
                std::span<const std::int32_t>(samples),
                std::span<const std::uint32_t>(shuffle),
                {lengths.data(), 3},
                {offsets.data(), 3},
                TokenType::u16,
                1,
                {}};
    }
};

struct Row {
    std::vector<std::int64_t> tokens, labels, positions;
    std::vector<float> loss_mask;
    std::vector<std::uint8_t> ends;
    std::vector<std::int32_t> bounds;
    std::int32_t longest = 0;

    explicit Row(std::size_t length)
        : tokens(length),
          labels(length),
          positions(length),
          loss_mask(length),
          ends(length),
          bounds(length + 1) {}
    SampleRow view(bool bounded) {
        return {tokens,    labels,
                loss_mask, positions,
                ends,      bounded ? std::span<std::int32_t>(bounds) : std::span<std::int32_t>(),
                &longest};
    }
};

}  // namespace

TEST_CASE("parts are those of the sequences that a sample touches") {
    const Example example;
    std::vector<Part> parts;
    find_parts(example.section(), 0, parts);  // the shuffle index sends it to sample 1
    REQUIRE(parts.size() == 3);
    REQUIRE((parts[0].begin == 18 && parts[0].tokens == 3));
    REQUIRE(parts[1].tokens == 0);
    REQUIRE((parts[2].begin == 0 && parts[2].tokens == 2));
}

TEST_CASE("arrays that lead outside of one another are refused") {
    std::vector<Part> parts;
    Example example;
    REQUIRE_THROWS_AS(find_parts(example.section(), 2, parts), std::out_of_range);
    REQUIRE_THROWS_AS(find_parts(example.section(), -1, parts), std::out_of_range);
    for (const auto& [place, value] : std::vector<std::pair<std::size_t, std::int32_t>>{
             {2, 9}, {2, -1}, {3, 99}, {3, -5}, {4, 3}, {5, 77}, {5, -3}}) {
        Example spoilt;
        spoilt.samples[place] = value;
        REQUIRE_THROWS_AS(find_parts(spoilt.section(), 0, parts), std::out_of_range);
    }
    example.documents[0] = 3;
    REQUIRE_THROWS_AS(find_parts(example.section(), 0, parts), std::out_of_range);
    example.documents[0] = -1;
    REQUIRE_THROWS_AS(find_parts(example.section(), 0, parts), std::out_of_range);
    example.shuffle[0] = 2;
    REQUIRE_THROWS_AS(find_parts(example.section(), 0, parts), std::out_of_range);
}

TEST_CASE("a sample's tokens, labels, mask and positions") {
    const TokenFile file(std::uint16_t{12});
    const Example example;
    Row row(4);
    SampleReader reader({-1, 0, false, false});
    REQUIRE(reader.read(example.section(), 0, file.descriptors(), row.view(false)).error == 0);
    REQUIRE(row.tokens == std::vector<std::int64_t>{9, 10, 11, 0});
    REQUIRE(row.labels == std::vector<std::int64_t>{10, 11, 0, 1});
    REQUIRE(row.loss_mask == std::vector<float>{1, 1, 1, 1});
    REQUIRE(row.positions == std::vector<std::int64_t>{0, 1, 2, 3});
}

TEST_CASE("ends of documents mask and reset, padding masks and becomes zero") {
    const TokenFile file(std::uint16_t{12});
    const Example example;
    Row row(6);
    SampleReader reader({11, 10, true, true});
    REQUIRE(reader.read(example.section(), 0, file.descriptors(), row.view(false)).error == 0);
    REQUIRE(row.tokens == std::vector<std::int64_t>{9, 10, 0, 0, 1, 0});
    REQUIRE(row.labels == std::vector<std::int64_t>{10, 0, 0, 1, 0, 0});
    REQUIRE(row.loss_mask == std::vector<float>{1, 0, 1, 1, 0, 0});
    REQUIRE(row.positions == std::vector<std::int64_t>{0, 1, 0, 1, 2, 3});
    REQUIRE(row.ends == std::vector<std::uint8_t>{0, 1, 0, 0, 0, 0});
}

TEST_CASE("documents have bounds, and their own positions") {
    const TokenFile file(std::uint16_t{12});
    const Example example;
    Row row(6);
    SampleReader reader({-1, -1, false, false});
    REQUIRE(reader.read(example.section(), 0, file.descriptors(), row.view(true)).error == 0);
    REQUIRE(row.bounds == std::vector<std::int32_t>{0, 3, 3, 6, 6, 6, 6});
    REQUIRE(row.longest == 3);
    REQUIRE(row.positions == std::vector<std::int64_t>{0, 1, 2, 0, 1, 2});
}

TEST_CASE("a file that ends too early, and one that cannot be read, say where") {
    const TokenFile file(std::uint16_t{10});
    const Example example;
    Row row(4);
    SampleReader reader({-1, 0, false, false});
    const auto short_file = reader.read(example.section(), 0, file.descriptors(), row.view(false));
    REQUIRE(short_file.error == ReadOutcome::file_ends);
    REQUIRE(short_file.offset == 20);
    REQUIRE(
        reader.read(example.section(), 0, std::vector<std::int32_t>{-1}, row.view(false)).error ==
        EBADF);
}

TEST_CASE("a sample that is longer than its row is refused") {
    const TokenFile file(std::uint16_t{12});
    const Example example;
    Row row(3);
    SampleReader reader({-1, 0, false, false});
    REQUIRE_THROWS_AS(reader.read(example.section(), 0, file.descriptors(), row.view(false)),
                      std::out_of_range);
}

TEST_CASE("the parts of a sample may lie in files of their own") {
    const TokenFile first(std::uint16_t{8});
    const TokenFile second(std::uint16_t{8});
    Example example;
    example.offsets = {2, 4096, 4096 + 2};  // behind the first token of each
    const std::vector<std::int64_t> shards{0, 4096};
    Section section = example.section();
    section.shards = shards;
    REQUIRE(shard_of(section, 0) == 0);
    REQUIRE(shard_of(section, 4095) == 0);
    REQUIRE(shard_of(section, 4096) == 1);
    Row row(4);
    SampleReader reader({-1, 99, false, false});
    const std::vector<std::int32_t> files{second.descriptor(), -1, first.descriptor()};
    REQUIRE(reader.read(section, 0, files, row.view(false)).error == 0);
    REQUIRE(row.tokens == std::vector<std::int64_t>{5, 6, 7, 1});
    const std::vector<std::int32_t> closed{second.descriptor(), -1, -1};
    const auto outcome = reader.read(section, 0, closed, row.view(false));
    REQUIRE(outcome.error == EBADF);
    REQUIRE(outcome.part == 2);
    REQUIRE(outcome.offset == 2);
    REQUIRE_THROWS_AS(reader.read(section, 0, first.descriptors(), row.view(false)),
                      std::out_of_range);
    const std::vector<std::int64_t> later{100, 4096};
    section.shards = later;
    REQUIRE_THROWS_AS(reader.read(section, 0, files, row.view(false)), std::out_of_range);
    REQUIRE_THROWS_AS(shard_of(section, 99), std::out_of_range);
}
