#include "distcache/request_loop.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <system_error>
#include <utility>

#include "distcache/request_host.hpp"

namespace distcache {
namespace {

using namespace std::chrono_literals;

constexpr double least_window = 4;
constexpr double most_window = 64;
constexpr std::size_t most_pending = 8;  // requests of a host that wait for a connection
constexpr auto quiet = 1s;               // the window is halved once in this time
constexpr int most_doublings = 4;        // of the pause after refusals
constexpr auto gathering = 500us;        // for which answers are gathered
constexpr std::size_t input_size = 256 << 10;

int system_call(int result, const char* what) {
    if (result < 0) {
        throw std::system_error(errno, std::generic_category(), what);
    }
    return result;
}

}  // namespace

RequestLoop::RequestLoop(PrefetchBuffer& buffer, const std::vector<std::string>& libraries,
                         std::chrono::milliseconds silence)
    : buffer_(buffer), curl_(libraries), silence_(silence), input_(input_size) {
    multi_ = curl_.multi_init();
    epoll_ = system_call(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
    event_ = system_call(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd");
    epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
    system_call(::epoll_ctl(epoll_, EPOLL_CTL_ADD, event_, &event), "epoll_ctl");
    thread_ = std::thread([this] { run(); });
    buffer_.on_work([this] { wake(); });
}

RequestLoop::~RequestLoop() {
    stop();
    curl_.multi_cleanup(multi_);
    ::close(event_);
    ::close(epoll_);
}

void RequestLoop::stop() {
    if (!thread_.joinable()) {
        return;
    }
    buffer_.on_work({});
    stopped_ = true;
    woken_ = false;
    wake();
    thread_.join();
    for (auto& [name, host] : hosts_) {
        while (!host->connections.empty()) {
            close(*host->connections.back());
        }
    }
}

void RequestLoop::set_target(std::int64_t source, RequestTarget target) {
    auto made = std::make_shared<Known>();
    made->request = "GET " + target.path +
                    " HTTP/1.1\r\nHost: " + target.origin.substr(target.origin.find("://") + 3) +
                    "\r\nIf-Match: " + target.tag +
                    "\r\nAccept-Encoding: identity\r\nUser-Agent: distcache\r\nRange: bytes=";
    const std::lock_guard lock(mutex_);
    made->certificates = &*authorities_.insert(std::move(target.certificates)).first;
    made->target = std::move(target);
    targets_[source] = std::move(made);
}

bool RequestLoop::has_target(std::int64_t source) const {
    return known(source) != nullptr;
}

std::shared_ptr<RequestLoop::Known> RequestLoop::known(std::int64_t source) const {
    const std::lock_guard lock(mutex_);
    const auto found = targets_.find(source);
    const bool valid = found != targets_.end() && found->second->valid &&
                       Clock::now() < found->second->target.until;
    return valid ? found->second : nullptr;
}

void RequestLoop::wake() {
    if (!woken_.exchange(true)) {
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto written = ::write(event_, &one, sizeof one);
    }
}

void RequestLoop::run() {
    std::array<epoll_event, 64> events{};
    auto inspected = Clock::now();
    while (!stopped_) {
        woken_ = false;
        closed_.clear();  // no event is about them any more
        take_jobs();
        for (auto& [name, host] : hosts_) {
            dispatch(*host);
        }
        const bool has_more_room = connecting_ > 0 && note_connected();
        const int patience = has_more_room ? 0 : connecting_ > 0 ? 2 : 500;  // milliseconds
        const int count = ::epoll_wait(epoll_, events.data(), events.size(), patience);
        for (int i = 0; i < count; ++i) {
            const epoll_event& event = events[static_cast<std::size_t>(i)];
            if (event.data.ptr == nullptr) {
                std::uint64_t ignored = 0;
                [[maybe_unused]] const auto read = ::read(event_, &ignored, sizeof ignored);
                continue;
            }
            auto& connection = *static_cast<Connection*>(event.data.ptr);
            if ((event.events & EPOLLOUT) != 0 && connection.state == Connection::State::busy) {
                send(connection);
            }
            if ((event.events & ~static_cast<std::uint32_t>(EPOLLOUT)) != 0 &&
                connection.state != Connection::State::closed) {
                receive(connection);
            }
        }
        if (count > 0 && !buffer_.has_waiting_readers()) {
            // Nobody waits: answers that come together cost one wake-up.
            std::this_thread::sleep_for(gathering);
        }
        if (Clock::now() - inspected > 500ms) {
            inspected = Clock::now();
            close_silent();
        }
    }
    for (auto& [name, host] : hosts_) {
        for (const Job& job : host->pending) {
            pass_on(job);
        }
        for (auto& connection : host->connections) {
            pass_on(connection->job);
        }
    }
}

// Take as many ranges as can be asked for now; what readers wait for always.
void RequestLoop::take_jobs() {
    const auto has_room = [&] {
        return hosts_.empty() || std::any_of(hosts_.begin(), hosts_.end(), [](const auto& entry) {
                   return entry.second->has_room();
               });
    };
    // A host that answers, with more to do than it can: what comes next may wait.
    const auto is_clogged = [&] {
        return std::any_of(hosts_.begin(), hosts_.end(), [](const auto& entry) {
            return entry.second->pending.size() >= most_pending && entry.second->answers();
        });
    };
    for (;;) {
        Job job;
        job.ranges = buffer_.take_awaited();
        const bool is_urgent = !job.ranges.empty();
        if (!is_urgent && has_room() && !is_clogged()) {
            job.ranges = buffer_.take(FetchedBy::loop, Clock::time_point{});
        }
        if (job.ranges.empty()) {
            return;
        }
        job.known = known(job.ranges.front().range.source);
        const SourceRange& last = job.ranges.back().range;
        job.begin = job.ranges.front().range.begin;
        job.end = last.begin + last.size;
        if (job.known == nullptr || job.end > job.known->target.size ||
            job.end - job.begin > PrefetchBuffer::longest_request) {
            pass_on(job);
            continue;
        }
        Host& host = host_of(*job.known);
        if (host.busy + host.pending.size() == 0) {
            host.answered = Clock::now();
        }
        if (Clock::now() < host.away_until || (!is_urgent && host.pending.size() >= most_pending)) {
            pass_on(job);
            continue;
        }
        host.pending.insert(is_urgent ? host.pending.begin() : host.pending.end(), std::move(job));
        dispatch(host);
    }
}

RequestLoop::Host& RequestLoop::host_of(Known& known) {
    if (known.host == nullptr) {
        auto& host = hosts_[{known.target.origin, known.certificates}];
        if (host == nullptr) {
            host = std::make_unique<Host>();
            host->origin = known.target.origin;
            host->certificates = known.certificates;
        }
        known.host = host.get();
    }
    return *known.host;
}

// Send what waits, over idle connections and new ones.
void RequestLoop::dispatch(Host& host) {
    if (host.pending.empty() || Clock::now() < host.away_until) {
        return;
    }
    std::vector<Connection*> idle;
    for (const auto& connection : host.connections) {
        if (connection->state == Connection::State::idle) {
            idle.push_back(connection.get());
        }
    }
    for (Connection* const connection : idle) {
        if (host.pending.empty() || host.busy >= static_cast<std::size_t>(host.window)) {
            return;
        }
        connection->job = std::move(host.pending.front());
        host.pending.pop_front();
        connection->state = Connection::State::busy;
        ++host.busy;
        const Job& job = connection->job;
        connection->output = job.known->request + std::to_string(job.begin) + '-' +
                             std::to_string(job.end - 1) + "\r\n\r\n";
        connection->sent = 0;
        connection->head.clear();
        connection->answer = {};
        connection->heard = connection->asked = Clock::now();
        ++requests_;
        send(*connection);
    }
    while (host.connecting < host.pending.size() &&
           host.connections.size() < static_cast<std::size_t>(host.window) && connect(host)) {
    }
}

// Send nothing to a host for a while. The threads retry, slow down, and tell who waits.
void RequestLoop::leave_to_threads(Host& host, Clock::duration pause) {
    host.away_until = Clock::now() + pause;
    for (const Job& job : std::exchange(host.pending, {})) {
        pass_on(job);
    }
}

// Use a whole answer.
void RequestLoop::answer(Connection& connection) {
    Host& host = *connection.host;
    Job job = std::move(connection.job);
    connection.job = {};
    const AnswerHead& head = connection.answer;
    const bool sound = head.status == 206 && head.tag == job.known->target.tag &&
                       head.first == job.begin && head.last == job.end - 1 &&
                       head.total == job.known->target.size && head.length == job.end - job.begin;
    if (sound) {
        for (const TakenRange& taken : job.ranges) {
            const auto begin = static_cast<std::size_t>(taken.range.begin - job.begin);
            buffer_.store(taken.id,
                          std::span<const std::byte>(connection.body)
                              .subspan(begin, static_cast<std::size_t>(taken.range.size)));
        }
        received_ += head.length;
        host.window = std::min(host.window + 1 / host.window, most_window);
        host.refusals = 0;
    } else {
        refuse(host, job, head.status);
    }
    --host.busy;
    connection.state = Connection::State::idle;
    connection.is_used = true;
    host.answered = Clock::now();
    host.losses = 0;
    if (head.closes) {
        close(connection);
    } else {
        dispatch(host);
    }
}

// Pass a request on that was refused: its object is not asked for again until its target is set, or
// the host is left alone for a while, longer each time.
void RequestLoop::refuse(Host& host, const Job& job, int status) {
    if (status == 429 || status >= 500) {
        if (Clock::now() - host.slowed >= quiet) {
            host.window = std::max(host.window / 2, least_window);
            host.slowed = Clock::now();
            host.refusals = std::min(host.refusals + 1, most_doublings);
        }
        leave_to_threads(host, quiet * (1 << host.refusals) / 2);
    } else {
        job.known->valid = false;
    }
    pass_on(job);
}

void RequestLoop::pass_on(const Job& job) {
    for (const TakenRange& taken : job.ranges) {
        buffer_.pass_on(taken.id);
    }
}

}  // namespace distcache
