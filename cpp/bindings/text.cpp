#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "arrays.hpp"
#include "distcache/text_scanner.hpp"

namespace distcache::bindings {
namespace {

/// The UTF-8 of a string, which it keeps; false if it has a lone surrogate, so that there is none.
bool utf8_of(const py::handle& text, std::string_view& found) {
    Py_ssize_t size = 0;
    const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
    if (data == nullptr) {
        if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError) == 0) {
            throw py::error_already_set();
        }
        PyErr_Clear();
        return false;
    }
    found = {data, static_cast<std::size_t>(size)};
    return true;
}

TextScanner make_scanner(std::vector<std::string> words) {
    if (std::any_of(words.begin(), words.end(), [](const auto& word) { return word.empty(); })) {
        throw py::value_error("words must not be empty");
    }
    return TextScanner(std::move(words));
}

py::tuple scan(const TextScanner& scanner, const py::list& texts, const py::array& known) {
    const auto states = input<std::uint8_t>(known, "known");
    if (states.size() != kCodePoints) {
        throw py::value_error("known must have an element for each code point");
    }
    const py::tuple held(texts);  // whatever happens to the list meanwhile
    py::array_t<bool> left(static_cast<py::ssize_t>(held.size()));
    std::vector<std::string_view> encoded(held.size());
    bool* out = left.mutable_data();
    for (std::size_t i = 0; i < held.size(); ++i) {
        out[i] = !utf8_of(held[i], encoded[i]);
    }
    std::vector<std::uint32_t> unknown;
    {
        const py::gil_scoped_release release;
        for (std::size_t i = 0; i < encoded.size(); ++i) {
            out[i] = out[i] || !scanner.is_plain(encoded[i], states, unknown);
        }
        std::sort(unknown.begin(), unknown.end());
        unknown.erase(std::unique(unknown.begin(), unknown.end()), unknown.end());
    }
    return py::make_tuple(
        left, py::array_t<std::uint32_t>(static_cast<py::ssize_t>(unknown.size()), unknown.data()));
}

}  // namespace

void register_text(py::module_& module) {
    py::class_<TextScanner> scanner(module, "TextScanner", R"doc(
Tells texts with certain words or code points in them from plain ones.

Parameters
----------
words : list of str
    None is empty.
)doc");
    scanner.attr("UNKNOWN") = static_cast<int>(Known::kUnknown);
    scanner.attr("PLAIN") = static_cast<int>(Known::kPlain);
    scanner.attr("OTHER") = static_cast<int>(Known::kOther);
    scanner.def(py::init(&make_scanner), py::arg("words"))
        .def("scan", &scan, py::arg("texts"), py::arg("known"), R"doc(
Look at texts.

Parameters
----------
texts : list of str
    Of any length.
known : ndarray of uint8, shape (0x110000,)
    `UNKNOWN`, `PLAIN` or `OTHER` for each code point; ASCII is plain. Other threads may write it.

Returns
-------
left : ndarray of bool, shape (texts,)
    Whether a text has a word, a code point that is not plain, or a lone surrogate.
unknown : ndarray of uint32
    The code points of the others of which nothing is known, ascending.
)doc");
}

}  // namespace distcache::bindings
