#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "distcache/curl.hpp"
#include "distcache/prefetch_buffer.hpp"

namespace distcache {

/// Where a source is read by requests: an object, under an address that needs no credentials.
struct RequestTarget {
    using Clock = std::chrono::steady_clock;

    std::string origin;        ///< scheme, host and port
    std::string path;          ///< with the query, which may be a signature
    std::string tag;           ///< ETag, with its quotes; every answer must have it
    std::int64_t size;         ///< bytes of the object
    Clock::time_point until;   ///< when the signature expires
    std::string certificates;  ///< PEM of the authorities; empty for those that libcurl knows
};

/// Reads ranges of objects for a `PrefetchBuffer`, in one thread: HTTP/1.1 over connections that
/// libcurl has made, with their TLS and proxies.
///
/// It knows success only: an answer with status 206, the right ETag, range and length. All else is
/// passed on to the threads of Python, which know errors, retries and credentials; a target that
/// answers so is not asked again until it is set again. How many requests are sent at a time is
/// decided for each origin as in `distcache.storage.pace`.
class RequestLoop {
public:
    using Clock = std::chrono::steady_clock;

    /// Throws std::runtime_error without libcurl, std::system_error without a thread.
    /// A connection that is silent for so long is closed.
    RequestLoop(PrefetchBuffer& buffer, const std::vector<std::string>& libraries,
                std::chrono::milliseconds silence);
    RequestLoop(const RequestLoop&) = delete;
    RequestLoop& operator=(const RequestLoop&) = delete;
    ~RequestLoop();

    /// End the thread; what it has taken is passed on.
    void stop();

    /// Say where a source is, or where it is now.
    void set_target(std::int64_t source, RequestTarget target);

    /// Whether requests to a source are sent: its signature has not expired or been refused.
    [[nodiscard]] bool has_target(std::int64_t source) const;

    /// Requests that were sent, and bytes that were received for them.
    [[nodiscard]] std::pair<std::int64_t, std::int64_t> counts() const {
        return {requests_, received_};
    }

private:
    struct Host;
    struct Connection;
    // Until a host is asked again that does not answer.
    static constexpr std::chrono::seconds pause_of_lost{5};
    // A target, which the loop invalidates.
    struct Known {
        RequestTarget target;
        std::string request;                        // up to the range
        const std::string* certificates = nullptr;  // those of the target, in `authorities_`
        std::atomic<bool> valid = true;
        Host* host = nullptr;  // of the loop
    };
    // Ranges that one request fetches.
    struct Job {
        std::vector<TakenRange> ranges;
        std::shared_ptr<Known> known;
        std::int64_t begin = 0;
        std::int64_t end = 0;
        bool again = false;  // whether a connection has closed on it
    };

    void run();
    void take_jobs();
    [[nodiscard]] std::shared_ptr<Known> known(std::int64_t source) const;
    Host& host_of(Known& known);
    void dispatch(Host& host);
    bool connect(Host& host);
    bool note_connected();
    void leave_to_threads(Host& host, Clock::duration pause);
    void refuse(Host& host, const Job& job, int status);
    void send(Connection& connection);
    void receive(Connection& connection);
    void answer(Connection& connection);
    void lose(Connection& connection);
    void pass_on(const Job& job);
    void close(Connection& connection);
    void close_silent();
    void wake();

    PrefetchBuffer& buffer_;
    const Curl curl_;
    const std::chrono::milliseconds silence_;
    mutable std::mutex mutex_;  // of the targets
    std::unordered_map<std::int64_t, std::shared_ptr<Known>> targets_;
    std::set<std::string> authorities_;  // which many targets share
    std::map<std::pair<std::string, const std::string*>, std::unique_ptr<Host>> hosts_;
    Curl::Multi* multi_;
    int epoll_;
    int event_;
    std::atomic<bool> woken_ = false;
    std::atomic<bool> stopped_ = false;
    std::atomic<std::int64_t> requests_ = 0;
    std::atomic<std::int64_t> received_ = 0;
    std::size_t connecting_ = 0;
    std::vector<char> input_;
    std::vector<std::unique_ptr<Connection>> closed_;  // of which events may still come
    std::thread thread_;
};

}  // namespace distcache
