#include <pybind11/stl.h>

#include <chrono>
#include <tuple>
#include <vector>

#include "arrays.hpp"
#include "distcache/prefetch_buffer.hpp"

namespace distcache::bindings {
namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point after(double seconds) {
    // A time that no clock reaches is as good as any longer one.
    const std::chrono::duration<double> span(std::min(seconds, 1e8));
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(span);
}

std::vector<SourceRange> ranges_of(const py::array& array) {
    const auto numbers = input<std::int64_t>(array, "ranges", 2);
    if (array.shape(1) != 3) {
        throw py::value_error("ranges must have three columns");
    }
    std::vector<SourceRange> ranges;
    for (std::size_t i = 0; i < numbers.size(); i += 3) {
        ranges.push_back({numbers[i], numbers[i + 1], numbers[i + 2]});
    }
    return ranges;
}

void announce(PrefetchBuffer& buffer, std::int64_t stream, const py::array& ranges,
              const py::array& ends, std::int64_t budget) {
    const auto found = ranges_of(ranges);
    const auto bounds = input<std::int64_t>(ends, "ends");
    const py::gil_scoped_release release;
    buffer.announce(stream, found, bounds, budget);
}

void finish_readings(PrefetchBuffer& buffer, const py::array& readings) {
    const auto numbers = input<std::int64_t>(readings, "readings", 2);
    if (readings.shape(1) != 2) {
        throw py::value_error("readings must have two columns");
    }
    std::vector<ReadingNumber> ended;
    for (std::size_t i = 0; i < numbers.size(); i += 2) {
        ended.push_back({numbers[i], numbers[i + 1]});
    }
    const py::gil_scoped_release release;
    buffer.finish_readings(ended);
}

std::vector<int> fetch(PrefetchBuffer& buffer, const py::array& ranges, const py::array& files,
                       double seconds) {
    const auto found = ranges_of(ranges);
    const auto descriptors = input<std::int32_t>(files, "files");
    const py::gil_scoped_release release;
    std::vector<int> outcome;
    for (const FetchStatus status : buffer.fetch(found, descriptors, after(seconds))) {
        outcome.push_back(static_cast<int>(status));
    }
    return outcome;
}

using Taken = std::tuple<std::uint64_t, std::int64_t, std::int64_t, std::int64_t, bool>;

std::vector<Taken> take(PrefetchBuffer& buffer, double seconds, bool ahead) {
    const py::gil_scoped_release release;
    std::vector<Taken> found;
    for (const TakenRange& taken : buffer.take(after(seconds), ahead)) {
        const SourceRange& range = taken.range;
        found.emplace_back(taken.id, range.source, range.begin, range.size, taken.urgent);
    }
    return found;
}

void store(PrefetchBuffer& buffer, std::uint64_t id, const py::array& content) {
    const auto found = input<std::uint8_t>(content, "content");
    const py::gil_scoped_release release;
    buffer.store(id, std::as_bytes(found));
}

py::dict status_of(const PrefetchBuffer& buffer) {
    const auto status = buffer.status();
    py::dict found;
    found["streams"] = status.streams;
    found["budget"] = status.budget;
    found["used"] = status.used;
    found["queued"] = status.queued;
    found["held"] = status.held;
    found["hits"] = status.hits;
    found["misses"] = status.misses;
    found["error"] = status.error;
    return found;
}

void register_buffer(py::module_& module) {
    using release = py::call_guard<py::gil_scoped_release>;
    py::class_<PrefetchBuffer>(module, "PrefetchBuffer", R"doc(
The ranges that a node's processes will read, and those of them that are on its disk already.

A stream is what one process will read: readings, numbered from 0, of some ranges each. They are
fetched in this order, as far ahead as the budget allows. Each stream may have its share of the
budget; what it does not need is lent to others. From any thread.

Parameters
----------
descriptor : int
    Descriptor of an empty file, which nothing else uses; it stays open as long as the buffer.
)doc")
        .def(py::init<int>(), py::arg("descriptor"))
        .def("add_source", &PrefetchBuffer::add_source, release(), py::arg("whole"),
             py::arg("packed"), R"doc(
Add a source, and return its number.

Parameters
----------
whole : int
    Bytes of the source if all of it may be announced as one range, of which any part is then
    served, else 0.
packed : bool
    Whether it is a compressed shard, which is fetched as a whole.
)doc")
        .def("set_unpackers", &PrefetchBuffer::set_unpackers, release(), py::arg("count"),
             "Set how many packed sources are fetched at a time; at first, one.")
        .def("set_usual_budget", &PrefetchBuffer::set_usual_budget, release(), py::arg("budget"),
             "Set the bytes that may be ahead where no stream asks for any.")
        .def("open_stream", &PrefetchBuffer::open_stream, "Return the number of a new stream.")
        .def("close_stream", &PrefetchBuffer::close_stream, release(), py::arg("stream"),
             "Discard what only this stream would have read.")
        .def("announce", &announce, py::arg("stream"), py::arg("ranges"), py::arg("ends"),
             py::arg("budget"), R"doc(
Add readings to the end of a stream.

Parameters
----------
stream : int
ranges : ndarray of int64, shape (ranges, 3)
    Source, first byte and bytes.
ends : ndarray of int64, shape (readings,)
    Number of ranges up to the end of each reading.
budget : int
    Bytes on the disk that this stream asks for; the greatest of all open streams counts.

Raises
------
IndexError
    If a range is outside of its source, or the readings do not fit the ranges.
)doc")
        .def("finish_readings", &finish_readings, py::arg("readings"), R"doc(
Note that readings are over: each a stream and a number (ndarray of int64, shape (readings, 2)).
)doc")
        .def("fetch", &fetch, py::arg("ranges"), py::arg("files"), py::arg("seconds"), R"doc(
Copy ranges into files, at their own offsets, as soon as they are there.

Parameters
----------
ranges : ndarray of int64, shape (ranges, 3)
files : ndarray of int32, shape (ranges,)
    Descriptor of each range's file.
seconds : float
    Time limit.

Returns
-------
list of int
    0 if a range was copied, 1 if it could not be fetched, 2 if the time was over, 3 if the disk
    returned other bytes than were written, 4 if its file cannot be written to.

Raises
------
IndexError
    If a range is outside of its source.
)doc")
        .def("take", &take, py::arg("seconds"), py::arg("ahead"), R"doc(
Take ranges of one source that are close to one another, to fetch them.

Parameters
----------
seconds : float
    Time to wait for some.
ahead : bool
    Whether ranges are taken that no reader waits for yet.

Returns
-------
list of (int, int, int, int, bool)
    Id, source, first byte, bytes, and whether a reader waits for it; empty if there are none.
)doc")
        .def("store", &store, py::arg("taken"), py::arg("content"), R"doc(
Write a range that was taken.

Parameters
----------
taken : int
    Its id.
content : ndarray of uint8

Raises
------
IndexError
    If it has another size.
)doc")
        .def("fail", &PrefetchBuffer::fail, release(), py::arg("taken"),
             "Discard a range that was taken: its readers are told.")
        .def("close", &PrefetchBuffer::close, release(), "Let all who wait return.")
        .def("status", &status_of, "Return counts of streams, bytes and ranges.");
}

}  // namespace

void register_prefetch(py::module_& module) {
    register_buffer(module);
}

}  // namespace distcache::bindings
