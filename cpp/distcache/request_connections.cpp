// The connections of a `RequestLoop`: made by libcurl, written to and read from here.

#include <sys/epoll.h>

#include <algorithm>
#include <span>
#include <utility>

#include "distcache/request_host.hpp"

namespace distcache {
namespace {

constexpr std::int64_t longest_drained = 64 << 10;  // bytes of the body of a refusal
constexpr int most_losses = 8;  // of connections without an answer, one after the other

}  // namespace

// Begin to make a connection; returns whether libcurl could.
bool RequestLoop::connect(Host& host) {
    auto connection = std::make_unique<Connection>();
    connection->host = &host;
    connection->easy = curl_.easy_init();
    connection->heard = Clock::now();
    const auto milliseconds = static_cast<long>(silence_.count());
    bool made = connection->easy != nullptr &&
                curl_.easy_setopt(connection->easy, Curl::url, host.origin.c_str()) == 0;
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
        curl_.easy_cleanup(connection->easy);  // of nothing, too
        leave_to_threads(host, pause_of_lost);
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
                leave_to_threads(*host, pause_of_lost);
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
            leave_to_threads(host, pause_of_lost);
        }
    }
    close(connection);
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
