#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "distcache/answer_head.hpp"
#include "distcache/request_loop.hpp"

namespace distcache {

// A server, and what is sent to it.
struct RequestLoop::Host {
    std::string origin;
    const std::string* certificates = nullptr;
    double window = 32;  // requests at a time
    Clock::time_point slowed{};
    Clock::time_point away_until{};
    std::deque<Job> pending;
    std::vector<std::unique_ptr<Connection>> connections;
    std::size_t busy = 0;
    std::size_t connecting = 0;

    Clock::time_point answered{};  // or asked, if nothing was on its way
    int losses = 0;                // of connections since the last answer
    int refusals = 0;              // 503 and the like, since the last success

    // Whether it has answered lately, as far as it was asked.
    [[nodiscard]] bool answers() const { return Clock::now() - answered < std::chrono::seconds(5); }

    [[nodiscard]] bool has_room() const {
        return busy + pending.size() < static_cast<std::size_t>(window);
    }
};

struct RequestLoop::Connection {
    enum class State : std::uint8_t { connecting, idle, busy, closed };

    Host* host;
    Curl::Easy* easy;
    int socket = -1;
    State state = State::connecting;
    bool is_used = false;  // whether it has had an answer
    Job job;
    std::string output;
    bool waits_to_send = false;
    std::size_t sent = 0;
    std::string head;
    AnswerHead answer;
    std::vector<std::byte> body;
    Clock::time_point asked{};
    Clock::time_point heard{};
};

}  // namespace distcache
