#include "distcache/samples.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "held_section.hpp"

namespace distcache::bindings {
namespace {

// The arrays of a batch, each with a row per sample.
struct Batch {
    std::span<std::int64_t> tokens, labels, positions;
    std::span<float> loss_mask;
    std::span<std::uint8_t> ends;
    std::span<std::int32_t> bounds, longest, true_bounds;
    std::size_t rows, length;

    [[nodiscard]] SampleRow row(std::size_t i) const {
        const std::size_t begin = i * length;
        const bool bounded = !bounds.empty();
        return {
            tokens.subspan(begin, length),
            labels.subspan(begin, length),
            loss_mask.subspan(begin, length),
            positions.subspan(begin, length),
            ends.empty() ? ends : ends.subspan(begin, length),
            bounded ? bounds.subspan(i * (length + 1), length + 1) : bounds,
            bounded ? &longest[i] : nullptr,
            true_bounds.empty() ? true_bounds : true_bounds.subspan(i * (length + 1), length + 1)};
    }
};

Batch make_batch(py::array tokens, py::array labels, py::array loss_mask, py::array positions,
                 std::optional<py::array> ends, std::optional<py::array> bounds,
                 std::optional<py::array> longest, std::optional<py::array> true_bounds) {
    Batch batch{output<std::int64_t>(tokens, "tokens", 2),
                output<std::int64_t>(labels, "labels", 2),
                output<std::int64_t>(positions, "positions", 2),
                output<float>(loss_mask, "loss_mask", 2),
                {},
                {},
                {},
                {},
                static_cast<std::size_t>(tokens.shape(0)),
                static_cast<std::size_t>(tokens.shape(1))};
    const std::size_t size = batch.tokens.size();
    bool sound = batch.length > 0 && batch.labels.size() == size &&
                 batch.loss_mask.size() == size && batch.positions.size() == size &&
                 bounds.has_value() == longest.has_value();
    if (ends) {
        batch.ends = output<std::uint8_t>(*ends, "ends", 2);
        sound = sound && batch.ends.size() == size;
    }
    if (bounds && longest) {
        batch.bounds = output<std::int32_t>(*bounds, "bounds", 2);
        batch.longest = output<std::int32_t>(*longest, "longest");
        sound =
            sound && batch.bounds.size() == size + batch.rows && batch.longest.size() == batch.rows;
    }
    if (true_bounds) {
        batch.true_bounds = output<std::int32_t>(*true_bounds, "true_bounds", 2);
        sound = sound && !batch.bounds.empty() && batch.true_bounds.size() == size + batch.rows;
    }
    if (!sound) {
        throw py::value_error("the arrays of a batch must have a row per sample");
    }
    return batch;
}

// The descriptors of each sample: those from one begin to the next.
class SampleDescriptors {
public:
    SampleDescriptors(const py::array& descriptors, const py::array& begins, std::size_t samples)
        : all_(input<std::int32_t>(descriptors, "descriptors")),
          begins_(input<std::int64_t>(begins, "begins")) {
        if (begins_.size() != samples + 1 || begins_.front() != 0 ||
            !std::is_sorted(begins_.begin(), begins_.end()) ||
            begins_.back() != static_cast<std::int64_t>(all_.size())) {
            throw py::value_error("descriptors and begins must fit the samples");
        }
    }

    [[nodiscard]] Descriptors of(std::size_t i) const {
        const auto begin = static_cast<std::size_t>(begins_[i]);
        return all_.subspan(begin, static_cast<std::size_t>(begins_[i + 1]) - begin);
    }

private:
    std::span<const std::int32_t> all_;
    std::span<const std::int64_t> begins_;
};

// For each sample the bytes of its parts in the `.bin`.
std::tuple<py::array_t<std::int64_t>, py::array_t<std::int64_t>, py::array_t<std::int64_t>>
find_ranges(const std::vector<const HeldSection*>& sections, const py::array& samples) {
    const auto sample_span = input<std::int64_t>(samples, "samples");
    if (sections.size() != sample_span.size()) {
        throw py::value_error("there must be a section for each sample");
    }
    std::vector<std::int64_t> begins;
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> bounds{0};
    {
        const py::gil_scoped_release release;
        std::vector<Part> parts;
        for (std::size_t i = 0; i < sections.size(); ++i) {
            const Section& section = sections[i]->section;
            parts.clear();
            find_parts(section, sample_span[i], parts);
            for (const Part& part : parts) {
                begins.push_back(part.begin);
                sizes.push_back(part.tokens * token_size(section.type));
            }
            bounds.push_back(static_cast<std::int64_t>(begins.size()));
        }
    }
    const auto array = [](const std::vector<std::int64_t>& values) {
        return py::array_t<std::int64_t>(static_cast<py::ssize_t>(values.size()), values.data());
    };
    return {array(begins), array(sizes), array(bounds)};
}

std::tuple<std::int64_t, int, std::int64_t, std::int64_t> read_samples(
    const std::vector<const HeldSection*>& sections, const py::array& samples,
    const py::array& descriptors, const py::array& begins, std::int64_t first,
    const SampleRules& rules, py::array tokens, py::array labels, py::array loss_mask,
    py::array positions, std::optional<py::array> ends, std::optional<py::array> bounds,
    std::optional<py::array> longest, std::optional<py::array> true_bounds,
    const std::optional<py::array>& masks) {
    const Batch batch =
        make_batch(std::move(tokens), std::move(labels), std::move(loss_mask), std::move(positions),
                   std::move(ends), std::move(bounds), std::move(longest), std::move(true_bounds));
    const auto sample_span = input<std::int64_t>(samples, "samples");
    const SampleDescriptors files(descriptors, begins, sections.size());
    if (first < 0 || sections.size() != sample_span.size() ||
        static_cast<std::size_t>(first) + sections.size() > batch.rows) {
        throw py::value_error("sections and samples must fit the rows of the batch");
    }
    std::span<const std::int32_t> mask_span;
    if (masks) {
        mask_span = input<std::int32_t>(*masks, "masks");
        if (mask_span.size() != sections.size()) {
            throw py::value_error("there must be a mask, or none, for each sample");
        }
    }
    const py::gil_scoped_release release;
    static thread_local SampleReader reader(rules);  // whose buffers are large for long samples
    reader.use(rules);
    bool announced = false;
    for (std::size_t i = 0; i < sections.size(); ++i) {
        const auto row = static_cast<std::size_t>(first) + i;
        const ReadOutcome outcome =
            reader.read(sections[i]->section, sample_span[i], files.of(i), batch.row(row),
                        mask_span.empty() ? -1 : mask_span[i]);
        for (std::size_t k = i + 1; reader.waited() && !announced && k < sections.size(); ++k) {
            reader.announce(sections[k]->section, sample_span[k], files.of(k));
        }
        announced = announced || reader.waited();
        if (outcome.error != 0) {
            return {static_cast<std::int64_t>(i), outcome.error, outcome.offset,
                    outcome.part == SampleReader::of_mask
                        ? -1
                        : static_cast<std::int64_t>(outcome.part)};
        }
    }
    return {static_cast<std::int64_t>(sections.size()), 0, 0, 0};
}

}  // namespace

void register_samples(py::module_& module) {
    py::class_<HeldSection>(module, "Section", R"doc(
Where the samples of a section lie; it keeps a reference to its arrays.

Parameters
----------
document_index, sample_index, shuffle_index : ndarray
    Of the section.
lengths, offsets : ndarray of int32 and int64
    Of the corpus.
type_code : int
    Of its tokens; ValueError if it is no integer type.
extra_token : bool
shards : ndarray of int64, or None
    Ascending bytes of the `.bin` at which the files begin that make it up; None if it is one.
multiple : int
    Tokens to whose multiples each document of a packed sample is padded; 1 for none.
)doc")
        .def(py::init(&HeldSection::make), py::arg("document_index"), py::arg("sample_index"),
             py::arg("shuffle_index"), py::arg("lengths"), py::arg("offsets"), py::arg("type_code"),
             py::arg("extra_token"), py::arg("shards") = py::none(), py::arg("multiple") = 1);
    py::class_<SampleRules>(module, "SampleRules", R"doc(
How samples are made of tokens.

Parameters
----------
pad : int
    Fills samples that are too short, and becomes token 0 without loss wherever it occurs.
end_of_document : int
mask_end_of_document : bool
    Whether there is no loss at the end of a document.
reset_positions : bool
    Whether positions restart behind it.
)doc")
        .def(py::init<std::int64_t, std::int64_t, bool, bool>(), py::arg("pad"),
             py::arg("end_of_document"), py::arg("mask_end_of_document"),
             py::arg("reset_positions"));
    module.def("find_ranges", &find_ranges, py::arg("sections"), py::arg("samples"), R"doc(
Find the bytes of samples in the `.bin` files of their corpora.

Parameters
----------
sections : list of Section
    One for each sample.
samples : ndarray of int64, shape (samples,)

Returns
-------
begins, sizes : ndarray of int64, shape (parts,)
    First byte and bytes of each part of each sample.
bounds : ndarray of int64, shape (samples + 1,)
    The first part of each sample, then their number.

Raises
------
IndexError
    If the arrays point outside of one another.
)doc");
    module.def("read_samples", &read_samples, py::arg("sections"), py::arg("samples"),
               py::arg("descriptors"), py::arg("begins"), py::arg("first"), py::arg("rules"),
               py::arg("tokens"), py::arg("labels"), py::arg("loss_mask"), py::arg("positions"),
               py::arg("ends") = py::none(), py::arg("bounds") = py::none(),
               py::arg("longest") = py::none(), py::arg("true_bounds") = py::none(),
               py::arg("masks") = py::none(), R"doc(
Read samples from open files into successive rows of a batch.

Parameters
----------
sections : list of Section
    One for each sample.
samples : ndarray of int64, shape (samples,)
descriptors : ndarray of int32, shape (parts,)
    Of the `.bin` files: of all parts, as `find_ranges` has them, or one for each sample.
begins : ndarray of int64, shape (samples + 1,)
    Where the descriptors of each sample begin, then their number.
first : int
    The first row to fill.
rules : SampleRules
tokens, labels, positions : ndarray of int64, shape (rows, sequence length)
loss_mask : ndarray of float32, shape (rows, sequence length)
ends : ndarray of uint8, shape (rows, sequence length), or None
    Becomes 1 where a document ends.
bounds : ndarray of int32, shape (rows, sequence length + 1), or None
    Becomes the cumulative lengths of documents, filled up with the sequence length; positions then
    restart with each document.
longest : ndarray of int32, shape (rows,), or None
    Becomes the length of the longest document.
true_bounds : ndarray of int32, shape (rows, sequence length + 1), or None
    Becomes the cumulative lengths of documents without their padding; with `bounds`.
masks : ndarray of int32, shape (samples,), or None
    Descriptors of loss masks, with a byte for each token; -1 for a sample without one.

Returns
-------
rows, error, byte, part : int
    The rows that were filled; 0, an error number of pread, or -1 if the file ends too early; the
    byte of that file; and the part of the sample, or -1 if the file is the loss mask.

Raises
------
IndexError
    As `Section.parts`, or if there is not a descriptor for each part.
)doc");
}

}  // namespace distcache::bindings
