#include <string>

#include "catch.hpp"
#include "distcache/answer_head.hpp"

using namespace distcache;

namespace {

const std::string usual =
    "HTTP/1.1 206 Partial Content\r\nContent-Length: 20\r\nContent-Range: bytes 10-29/1000\r\n"
    "ETag: \"abc\"\r\nServer: x\r\n\r\n";

}  // namespace

TEST_CASE("the head of an answer says what its body is") {
    const std::string bytes = usual + "body";
    const auto head = parse_head(bytes);
    REQUIRE(head.has_value());
    REQUIRE(head->status == 206);
    REQUIRE(head->size == usual.size());
    REQUIRE(head->length == 20);
    REQUIRE(head->tag == "\"abc\"");
    REQUIRE(head->first == 10);
    REQUIRE(head->last == 29);
    REQUIRE(head->total == 1000);
    REQUIRE_FALSE(head->closes);
}

TEST_CASE("a head that is not whole is waited for, up to a limit") {
    for (std::size_t size = 0; size < usual.size(); ++size) {
        REQUIRE_FALSE(parse_head(usual.substr(0, size)).has_value());
    }
    const auto endless = parse_head("HTTP/1.1 206 OK\r\nX: " + std::string(70'000, 'x'));
    REQUIRE(endless.has_value());
    REQUIRE(endless->status == 0);
}

TEST_CASE("names of fields have any case, and values blanks around them") {
    const std::string bytes =
        "HTTP/1.1 503 \r\ncontent-LENGTH:   0  \r\netag:\"x\"\r\nCONNECTION: Close\r\n\r\n";
    const auto head = parse_head(bytes);
    REQUIRE(head->status == 503);
    REQUIRE(head->length == 0);
    REQUIRE(head->tag == "\"x\"");
    REQUIRE(head->closes);
}

TEST_CASE("what is no answer that can be used has status 0 or no length") {
    for (const char* const text :
         {"SSH-2.0-OpenSSH\r\n\r\n", "<html>\r\n\r\n", "HTTP/1.1 \r\n\r\n",
          "HTTP/1.1 2x6 OK\r\n\r\n", "HTTP/1.1 206 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
          "HTTP/1.1 206 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n"}) {
        const auto head = parse_head(text);
        REQUIRE((head->status == 0 || !head->is_plain));
    }
    for (const char* const length : {"-1", "1x", "", "99999999999999999999", "0x10", "1 2"}) {
        const auto head =
            parse_head("HTTP/1.1 206 OK\r\nContent-Length: " + std::string(length) + "\r\n\r\n");
        REQUIRE(head->length == -1);
    }
    for (const char* const range :
         {"10-29/1000", "bytes 10/1000", "bytes 10-29", "bytes */1000", "bytes -5-3/9", "/-"}) {
        const auto head =
            parse_head("HTTP/1.1 206 OK\r\nContent-Range: " + std::string(range) + "\r\n\r\n");
        REQUIRE((head->first == -1 || head->last == -1 || head->total == -1));
    }
}

TEST_CASE("a connection of HTTP/1.0 ends with its answer") {
    REQUIRE(parse_head("HTTP/1.0 206 OK\r\nContent-Length: 1\r\n\r\n")->closes);
}
