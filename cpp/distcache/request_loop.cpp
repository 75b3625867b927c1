#include "distcache/request_loop.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <system_error>
#include <utility>

#include "distcache/answer_head.hpp"

namespace distcache {
namespace {

using namespace std::chrono_literals;

constexpr double first_window = 32;  // requests at a time
constexpr double least_window = 4;
constexpr double most_window = 64;
constexpr std::size_t most_pending = 8;             // requests of a host that wait for a connection
constexpr std::int64_t longest_drained = 64 << 10;  // bytes of the body of a refusal
constexpr auto quiet = 1s;                          // the window is halved once in this time
constexpr int most_losses = 8;     // of connections without an answer, one after the other
constexpr int most_doublings = 4;  // of the pause after refusals
constexpr auto stuck = 5s;         // without any answer
constexpr auto away = 5s;          // until a host is asked again that does not answer
constexpr auto gathering = 500us;  // for which answers are gathered
constexpr std::size_t input_size = 256 << 10;

int system_call(int result, const char* what) {
    if (result < 0) {
        throw std::system_error(errno, std::generic_category(), what);
    }
    return result;
}

}  // namespace

// A server, and what is sent to it.
struct RequestLoop::Host {
    std::string origin;
    const std::string* certificates = nullptr;
    double window = first_window;
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
    [[nodiscard]] bool answers() const { return Clock::now() - answered < stuck; }

    [[nodiscard]] std::size_t free_slots() const {
        const auto taken = busy + pending.size();
        const auto slots = static_cast<std::size_t>(window);
        return taken < slots ? slots - taken : 0;
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
                   return entry.second->free_slots() > 0;
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
        } else if (is_urgent) {
            host.pending.push_front(std::move(job));
            dispatch(host);
        } else {
            host.pending.push_back(std::move(job));
            dispatch(host);
        }
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

// Begin to make a connection; returns whether libcurl could.
bool RequestLoop::connect(Host& host) {
    auto connection = std::make_unique<Connection>();
    connection->host = &host;
    connection->easy = curl_.easy_init();
    connection->heard = Clock::now();
    if (connection->easy == nullptr) {
        return false;
    }
    const auto milliseconds = static_cast<long>(silence_.count());
    bool made = curl_.easy_setopt(connection->easy, Curl::url, host.origin.c_str()) == 0;
    const auto set = [&](int option, long value) {
        made = made && curl_.easy_setopt(connection->easy, option, value) == 0;
    };
    set(Curl::no_signal, 1);
    set(Curl::connect_only, 1);
    set(Curl::http_version, 2);  // 1.1
    set(Curl::http_proxy_tunnel, 1);
    set(Curl::protocols, 3);  // HTTP and HTTPS
    set(Curl::connect_timeout_ms, milliseconds);
    if (!host.certificates->empty()) {
        const Curl::Blob blob{host.certificates->data(), host.certificates->size(), 1};
        made = made && curl_.easy_setopt(connection->easy, Curl::ca_blob, &blob) == 0;
    }
    made = made && curl_.multi_add_handle(multi_, connection->easy) == 0;
    if (!made) {
        curl_.easy_cleanup(connection->easy);
        leave_to_threads(host, away);
        return false;
    }
    ++host.connecting;
    ++connecting_;
    host.connections.push_back(std::move(connection));
    return true;
}

// Use the connections that have been made since; returns whether there are any.
bool RequestLoop::note_connected() {
    bool any = false;
    int running = 0;
    curl_.multi_perform(multi_, &running);
    int left = 0;
    while (Curl::Message* const message = curl_.multi_info_read(multi_, &left)) {
        for (auto& [name, host] : hosts_) {
            const auto found = std::find_if(
                host->connections.begin(), host->connections.end(),
                [&](const auto& connection) { return connection->easy == message->easy; });
            if (found == host->connections.end()) {
                continue;
            }
            Connection& connection = **found;
            --host->connecting;
            --connecting_;
            connection.state = Connection::State::idle;
            curl_.easy_getinfo(connection.easy, Curl::active_socket, &connection.socket);
            epoll_event event{.events = EPOLLIN, .data = {.ptr = &connection}};
            if (message->data.result != 0 || connection.socket < 0 ||
                ::epoll_ctl(epoll_, EPOLL_CTL_ADD, connection.socket, &event) != 0) {
                connection.socket = -1;
                close(connection);
                leave_to_threads(*host, away);
            } else {
                any = true;
                dispatch(*host);
            }
            break;
        }
    }
    return any;
}

void RequestLoop::send(Connection& connection) {
    while (connection.sent < connection.output.size()) {
        std::size_t count = 0;
        const int error =
            curl_.easy_send(connection.easy, connection.output.data() + connection.sent,
                            connection.output.size() - connection.sent, &count);
        if (error == Curl::again) {
            connection.waits_to_send = true;
            epoll_event event{.events = EPOLLIN | EPOLLOUT, .data = {.ptr = &connection}};
            ::epoll_ctl(epoll_, EPOLL_CTL_MOD, connection.socket, &event);
            return;
        }
        if (error != 0) {
            lose(connection);
            return;
        }
        connection.sent += count;
        if (connection.sent == connection.output.size() && connection.waits_to_send) {
            connection.waits_to_send = false;
            epoll_event event{.events = EPOLLIN, .data = {.ptr = &connection}};
            ::epoll_ctl(epoll_, EPOLL_CTL_MOD, connection.socket, &event);
        }
    }
}

void RequestLoop::receive(Connection& connection) {
    for (;;) {
        std::size_t count = 0;
        const int error = curl_.easy_recv(connection.easy, input_.data(), input_.size(), &count);
        if (error == Curl::again) {
            return;
        }
        if (error != 0 || count == 0 || connection.state != Connection::State::busy) {
            lose(connection);
            return;
        }
        connection.heard = Clock::now();
        auto input = std::span<const char>(input_).first(count);
        if (connection.answer.size == 0) {
            const std::size_t before = connection.head.size();
            connection.head.append(input.data(), input.size());
            const auto head = parse_head(connection.head);
            if (!head) {
                continue;
            }
            connection.answer = *head;
            const std::int64_t wanted = connection.job.end - connection.job.begin;
            const std::int64_t most = head->status == 206 ? wanted : longest_drained;
            if (!head->is_plain || head->length < 0 || head->length > most ||
                head->size <= before) {
                if (head->status != 0) {
                    refuse(*connection.host, connection.job, head->status);
                    connection.job = {};
                }
                lose(connection);
                return;
            }
            input = input.subspan(head->size - before);
            connection.body.clear();
            connection.body.reserve(static_cast<std::size_t>(head->length));
        }
        const auto bytes = std::as_bytes(input);
        if (connection.body.size() + bytes.size() >
            static_cast<std::size_t>(connection.answer.length)) {
            lose(connection);
            return;
        }
        connection.body.insert(connection.body.end(), bytes.begin(), bytes.end());
        if (connection.body.size() == static_cast<std::size_t>(connection.answer.length)) {
            answer(connection);
            return;
        }
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

// Note the end of a connection; a request that it may have ended is sent again, once.
void RequestLoop::lose(Connection& connection) {
    Host& host = *connection.host;
    if (connection.state == Connection::State::busy) {
        --host.busy;
        if (connection.is_used && connection.answer.size == 0 && !connection.job.again) {
            connection.job.again = true;
            host.pending.push_front(std::move(connection.job));
        } else {
            pass_on(connection.job);
        }
        connection.job = {};
        connection.state = Connection::State::idle;
        if (++host.losses >= most_losses) {
            host.losses = 0;
            leave_to_threads(host, away);
        }
    }
    close(connection);
}

void RequestLoop::pass_on(const Job& job) {
    for (const TakenRange& taken : job.ranges) {
        buffer_.pass_on(taken.id);
    }
}

// Close a connection that has no request.
void RequestLoop::close(Connection& connection) {
    Host& host = *connection.host;
    if (connection.socket >= 0) {
        ::epoll_ctl(epoll_, EPOLL_CTL_DEL, connection.socket, nullptr);
    }
    curl_.multi_remove_handle(multi_, connection.easy);
    curl_.easy_cleanup(connection.easy);
    connection.state = Connection::State::closed;
    const auto found = std::find_if(host.connections.begin(), host.connections.end(),
                                    [&](const auto& entry) { return entry.get() == &connection; });
    closed_.push_back(std::move(*found));
    host.connections.erase(found);
}

void RequestLoop::close_silent() {
    for (auto& [name, host] : hosts_) {
        std::vector<Connection*> silent;
        for (const auto& connection : host->connections) {
            const auto now = Clock::now();
            if (connection->state == Connection::State::busy &&
                (now - connection->heard > silence_ || now - connection->asked > 4 * silence_)) {
                silent.push_back(connection.get());
            }
        }
        for (Connection* const connection : silent) {
            lose(*connection);
        }
    }
}

}  // namespace distcache
