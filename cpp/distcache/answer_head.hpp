#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace distcache {

/// The head of an HTTP/1.1 answer, as far as a request of a range needs it (RFC 9112, RFC 9110 14).
struct AnswerHead {
    int status = 0;
    std::size_t size = 0;      ///< bytes, with the empty line
    std::int64_t length = -1;  ///< bytes of the body; -1 if they are not said
    bool closes = false;       ///< whether the connection ends with it
    bool is_plain = true;      ///< whether the body is the bytes themselves: not chunked or packed
    std::string_view tag;      ///< ETag, into the bytes
    // Content-Range: first and last byte, and the size of the object; -1 if they are not said.
    std::int64_t first = -1;
    std::int64_t last = -1;
    std::int64_t total = -1;
};

/// Return the head of an answer; none if its end is not there. What is no answer has status 0.
std::optional<AnswerHead> parse_head(std::string_view bytes);

}  // namespace distcache
