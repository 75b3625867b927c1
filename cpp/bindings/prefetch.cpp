#include <pybind11/stl.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "distcache/prefetch_buffer.hpp"
#include "distcache/request_loop.hpp"

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

FetchedBy fetched_by(const std::string& name) {
    static const std::map<std::string, FetchedBy> known{{"loop", FetchedBy::loop},
                                                        {"threads", FetchedBy::threads},
                                                        {"unpackers", FetchedBy::unpackers}};
    const auto found = known.find(name);
    if (found == known.end()) {
        throw py::value_error("nobody fetches by " + name);
    }
    return found->second;
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

std::vector<std::array<std::int64_t, 4>> take(PrefetchBuffer& buffer, double seconds,
                                              const std::string& fetcher) {
    const FetchedBy kind = fetched_by(fetcher);
    const py::gil_scoped_release release;
    std::vector<std::array<std::int64_t, 4>> found;
    for (const TakenRange& taken : buffer.take(kind, after(seconds))) {
        found.push_back({static_cast<std::int64_t>(taken.id), taken.range.source, taken.range.begin,
                         taken.range.size});
    }
    return found;
}

std::vector<int> open_shards(PrefetchBuffer& buffer, const py::array& sources, double seconds) {
    const auto found = input<std::int64_t>(sources, "sources");
    const py::gil_scoped_release release;
    return buffer.open_shards(found, after(seconds));
}

void store(PrefetchBuffer& buffer, std::uint64_t id, const py::array& content, int file) {
    const auto found = input<std::uint8_t>(content, "content");
    const py::gil_scoped_release release;
    buffer.store(id, std::as_bytes(found), file);
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
        .def(
            "add_source",
            [](PrefetchBuffer& buffer, const std::string& fetcher, std::int64_t whole) {
                return buffer.add_source(fetched_by(fetcher), whole);
            },
            py::arg("fetcher"), py::arg("whole"), R"doc(
Add a source, and return its number.

Parameters
----------
fetcher : str
    Who fetches its ranges: "loop" (a `RequestLoop`), "threads" that take them, or "unpackers", for
    whom readers wait, and who take a shard as a whole.
whole : int
    Bytes of the source if all of it may be announced as one range, of which any part is then
    served, else 0.
)doc")
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
    0 if a range was copied, 1 if the caller has to fetch it, 2 if the time was over, 3 if its file
    cannot be written to.

Raises
------
IndexError
    If a range is outside of its source.
)doc")
        .def("open_shards", &open_shards, py::arg("sources"), py::arg("seconds"), R"doc(
Open shards as soon as they are there.

Parameters
----------
sources : ndarray of int64, shape (shards,)
seconds : float
    Time limit.

Returns
-------
list of int
    A descriptor for each, which the caller closes; -1 where there is none, and `fetch` says why. A
    shard that is discarded is cut to no bytes.

Raises
------
IndexError
    If a source is no shard.
)doc")
        .def("take", &take, py::arg("seconds"), py::arg("fetcher") = "threads", R"doc(
Take ranges of one source that are close to one another: tuples of an id, source, byte, bytes.

Waits up to some seconds, and returns nothing then.
)doc")
        .def("store", &store, py::arg("taken"), py::arg("content"), py::arg("file") = -1, R"doc(
Write a range that was taken.

Parameters
----------
taken : int
    Its id.
content : ndarray of uint8
file : int
    Of a shard, and only there: a descriptor of an empty file, which the buffer closes; without one
    its readers get it from memory.

Raises
------
IndexError
    If it has another size, or a file where it may not.
)doc")
        .def("fail", &PrefetchBuffer::fail, release(), py::arg("taken"),
             "Discard a range that was taken: its readers fetch it themselves.")
        .def("pass_on", &PrefetchBuffer::pass_on, release(), py::arg("taken"),
             "Leave a range that was taken to the threads; a reader that waits fetches it.")
        .def("is_wanted", &PrefetchBuffer::is_wanted, release(), py::arg("taken"),
             "Return whether somebody will read a range that was taken.")
        .def("is_awaited", &PrefetchBuffer::is_awaited, release(), py::arg("taken"),
             "Return whether somebody waits for a range that was taken.")
        .def("close", &PrefetchBuffer::close, release(), "Let all who wait return.")
        .def("status", &status_of, "Return counts of streams, bytes and ranges.");
}

void register_loop(py::module_& module) {
    py::class_<RequestLoop>(module, "RequestLoop", R"doc(
Reads ranges of objects for a `PrefetchBuffer`, in one thread, over connections of libcurl.

It knows success only: all else is passed on to the threads that take from the buffer.

Parameters
----------
buffer : PrefetchBuffer
libraries : list of str
    Names of libcurl, of which the first that exists is used; RuntimeError if none does.
silence : float
    Seconds without a byte after which a connection is closed.
)doc")
        .def(py::init([](PrefetchBuffer& buffer, const std::vector<std::string>& libraries,
                         double silence) {
                 const auto milliseconds = static_cast<std::int64_t>(silence * 1000);
                 return std::make_unique<RequestLoop>(buffer, libraries,
                                                      std::chrono::milliseconds(milliseconds));
             }),
             py::arg("buffer"), py::arg("libraries"), py::arg("silence"), py::keep_alive<1, 2>())
        .def(
            "set_target",
            [](RequestLoop& loop, std::int64_t source, std::string origin, std::string path,
               std::string tag, std::int64_t size, double seconds, const py::bytes& certificates) {
                loop.set_target(source, {std::move(origin), std::move(path), std::move(tag), size,
                                         after(seconds), std::string(certificates)});
            },
            py::arg("source"), py::arg("origin"), py::arg("path"), py::arg("tag"), py::arg("size"),
            py::arg("seconds"), py::arg("certificates"), R"doc(
Say where a source is.

Parameters
----------
source : int
origin : str
    Scheme, host and port.
path : str
    Path with the query, which may be a signature.
tag : str
    ETag with its quotes.
size : int
    Bytes of the object.
seconds : float
    Time until the signature expires.
certificates : bytes
    Authorities in PEM; empty for those that libcurl knows.
)doc")
        .def("has_target", &RequestLoop::has_target, py::arg("source"),
             "Return whether a source is asked: its signature has not expired or been refused.")
        .def("counts", &RequestLoop::counts,
             "Return the requests that were sent, and the bytes that were received for them.")
        .def(
            "close", [](RequestLoop& loop) { loop.stop(); },
            py::call_guard<py::gil_scoped_release>(),
            "End the thread; what it has taken is passed on.");
}

}  // namespace

void register_prefetch(py::module_& module) {
    register_buffer(module);
    register_loop(module);
}

}  // namespace distcache::bindings
