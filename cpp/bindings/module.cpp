#include "arrays.hpp"

PYBIND11_MODULE(_kernels, module) {
    module.doc() = "The C++ kernels of distcache; distcache.kernels is their documented face.";
    distcache::bindings::register_random(module);
    distcache::bindings::register_links(module);
    distcache::bindings::register_indices(module);
    distcache::bindings::register_corpus(module);
    distcache::bindings::register_packing(module);
    distcache::bindings::register_prefetch(module);
    distcache::bindings::register_samples(module);
    distcache::bindings::register_ledger(module);
    distcache::bindings::register_text(module);
    distcache::bindings::register_tokens(module);
}
