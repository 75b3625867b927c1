#include "distcache/mapping.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>

namespace distcache {
namespace {

// What the handler of SIGBUS may look at: nothing but atomics that are always there.
struct Slot {
    std::atomic<std::uintptr_t> begin{0};
    std::atomic<std::uintptr_t> end{0};
    std::atomic<bool> damaged{false};
};

constexpr std::size_t most_read = std::size_t{2} << 30;  // bytes of a file that cannot be mapped
constexpr std::size_t most = std::size_t{1} << 16;       // mappings; Linux allows fewer
std::array<Slot, most> slots;
std::atomic<std::size_t> used{0};
std::atomic<std::uint64_t> fault_count{0};
std::mutex changing;
struct sigaction before = {};  // what handled SIGBUS before us

std::uintptr_t page_size() {
    static const auto size = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    return size;
}

// Put zeros in the place of what cannot be read of a mapping, from an address to its end.
bool replace_by_zeros(std::uintptr_t address) {
    const std::size_t count = used.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < count; ++i) {
        const std::uintptr_t end = slots[i].end.load(std::memory_order_acquire);
        const std::uintptr_t begin = slots[i].begin.load(std::memory_order_acquire);
        // A slot that is being given back or taken has no end, or another one than before.
        const bool settled = slots[i].end.load(std::memory_order_acquire) == end;
        if (settled && begin != 0 && begin <= address && address < end) {
            const std::uintptr_t first = address / page_size() * page_size();
            // NOLINTNEXTLINE(performance-no-int-to-ptr)
            void* const place = reinterpret_cast<void*>(first);
            slots[i].damaged.store(true, std::memory_order_release);
            fault_count.fetch_add(1, std::memory_order_release);
            return ::mmap(place, end - first, PROT_READ, MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS,
                          -1, 0) == place;
        }
    }
    return false;
}

void on_bus_error(int number, siginfo_t* info, void* context) {
    const int error = errno;
    const bool ours =
        info->si_code > 0 && replace_by_zeros(reinterpret_cast<std::uintptr_t>(info->si_addr));
    errno = error;
    if (ours) {
        return;
    }
    if ((before.sa_flags & SA_SIGINFO) != 0) {
        before.sa_sigaction(number, info, context);
    } else if (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN) {
        ::signal(number, SIG_DFL);  // what comes again ends the process
        if (info->si_code <= 0) {
            ::raise(number);
        }
    } else {
        before.sa_handler(number);
    }
}

// Whether the user leaves SIGBUS alone: then a mapped file that is cut short ends the process.
bool is_switched_off() {
    static const char* const wanted = std::getenv("DISTCACHE_SIGBUS");
    return wanted != nullptr && std::string_view(wanted) == "off";
}

// Handle SIGBUS, again if somebody else has taken it since, as torch does in its workers. What is
// not of our mappings goes to the handler that was there.
void handle_bus_errors() {
    if (is_switched_off()) {
        return;
    }
    struct sigaction now = {};
    ::sigaction(SIGBUS, nullptr, &now);
    if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_bus_error) {
        return;
    }
    page_size();
    before = now;
    struct sigaction ours = {};
    ours.sa_sigaction = on_bus_error;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&ours.sa_mask);
    ::sigaction(SIGBUS, &ours, nullptr);
}

std::size_t take_slot(std::uintptr_t begin, std::uintptr_t end) {
    const std::lock_guard lock(changing);
    handle_bus_errors();
    const auto in_use = slots.begin() + static_cast<std::ptrdiff_t>(used.load());
    const auto found =
        std::find_if(slots.begin(), in_use, [](const Slot& slot) { return slot.end.load() == 0; });
    if (found == slots.end()) {
        throw std::system_error(ENOMEM, std::generic_category(), "mmap");
    }
    const auto number = static_cast<std::size_t>(found - slots.begin());
    found->damaged.store(false);
    found->begin.store(begin, std::memory_order_release);
    found->end.store(end, std::memory_order_release);
    used.store(std::max(used.load(), number + 1), std::memory_order_release);
    return number;
}

}  // namespace

Mapping::Mapping(int descriptor, std::size_t size) : size_(size) {
    if (size == 0) {
        return;  // nothing can be mapped of nothing
    }
    void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
    if (address == MAP_FAILED) {
        const int error = errno;
        // Clients of some filesystems allow a process few mappings, and some filesystems none.
        const bool refused = error == EPERM || error == ENOMEM || error == ENODEV;
        if (!refused || size > most_read || !read_all(descriptor)) {
            throw std::system_error(error, std::generic_category(), "mmap");
        }
        return;
    }
    data_ = static_cast<std::byte*>(address);
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    try {
        slot_ = take_slot(begin, begin + (size + page_size() - 1) / page_size() * page_size());
    } catch (...) {
        ::munmap(address, size);
        throw;
    }
}

bool Mapping::read_all(int descriptor) {
    std::unique_ptr<std::byte[]> room(new (std::nothrow) std::byte[size_]);
    std::size_t done = 0;
    while (room != nullptr && done < size_) {
        const ssize_t count =
            ::pread(descriptor, room.get() + done, size_ - done, static_cast<off_t>(done));
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count < 0) {
            return false;
        }
        if (count == 0) {  // the file is shorter now
            std::fill_n(room.get() + done, size_ - done, std::byte{0});
            cut_ = true;
            break;
        }
        done += static_cast<std::size_t>(count);
    }
    copy_ = std::move(room);
    data_ = copy_.get();
    return data_ != nullptr;
}

Mapping::~Mapping() {
    if (data_ != nullptr && copy_ == nullptr) {
        slots[slot_].end.store(0, std::memory_order_release);
        ::munmap(data_, size_);
    }
}

bool Mapping::is_intact() const {
    if (data_ == nullptr || copy_ != nullptr) {
        return !cut_;
    }
    return !slots[slot_].damaged.load(std::memory_order_acquire);
}

void Mapping::release(std::size_t begin, std::size_t end) const {
    if (copy_ != nullptr) {
        return;
    }
    const std::size_t page = page_size();
    const std::size_t first = begin / page * page;
    if (const std::size_t last = std::min(end, size_); last > first) {
        ::madvise(data_ + first, last - first, MADV_DONTNEED);
    }
}

std::uint64_t Mapping::faults() {
    return fault_count.load(std::memory_order_acquire);
}

}  // namespace distcache
