#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace distcache {

/// The functions of libcurl that connections are made by, loaded when the first one is needed: most
/// processes need none, and a machine may lack the library.
///
/// libcurl 7.50 to 8; its ABI has been stable since 2006 (soname 4), so that its numbers are here.
class Curl {
public:
    struct Easy;   ///< a connection
    struct Multi;  ///< connections that are being made
    struct Message {
        int kind;
        Easy* easy;
        union {
            void* pointer;
            int result;
        } data;
    };
    struct Blob {
        const void* data;
        std::size_t size;
        unsigned flags;
    };
    enum Option : int {
        no_signal = 99,
        http_proxy_tunnel = 61,
        http_version = 84,
        connect_only = 141,
        connect_timeout_ms = 156,
        protocols = 181,
        url = 10002,
        ca_blob = 40309,
    };
    static constexpr int active_socket = 0x500000 + 44;
    static constexpr int again = 81;  ///< CURLE_AGAIN

    /// Load the first of some libraries that exists. Throws std::runtime_error if there is none, or
    /// it lacks a function.
    explicit Curl(const std::vector<std::string>& libraries);
    Curl(const Curl&) = delete;
    Curl& operator=(const Curl&) = delete;

    Easy* (*easy_init)();
    void (*easy_cleanup)(Easy*);
    int (*easy_setopt)(Easy*, int, ...);
    int (*easy_getinfo)(Easy*, int, ...);
    int (*easy_send)(Easy*, const void*, std::size_t, std::size_t*);
    int (*easy_recv)(Easy*, void*, std::size_t, std::size_t*);
    Multi* (*multi_init)();
    int (*multi_cleanup)(Multi*);
    int (*multi_add_handle)(Multi*, Easy*);
    int (*multi_remove_handle)(Multi*, Easy*);
    int (*multi_perform)(Multi*, int*);
    Message* (*multi_info_read)(Multi*, int*);
};

}  // namespace distcache
