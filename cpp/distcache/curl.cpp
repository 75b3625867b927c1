#include "distcache/curl.hpp"

#include <dlfcn.h>

#include <stdexcept>

namespace distcache {
namespace {

template <class Function>
void load(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library, name));
    if (function == nullptr) {
        throw std::runtime_error(std::string("libcurl has no ") + name);
    }
}

}  // namespace

Curl::Curl(const std::vector<std::string>& libraries) {
    void* library = nullptr;  // which stays loaded until the process ends
    for (const std::string& name : libraries) {
        if (library == nullptr) {
            library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
        }
    }
    if (library == nullptr) {
        throw std::runtime_error("there is no libcurl");
    }
    int (*global_init)(long) = nullptr;
    load(library, "curl_global_init", global_init);
    load(library, "curl_easy_init", easy_init);
    load(library, "curl_easy_cleanup", easy_cleanup);
    load(library, "curl_easy_setopt", easy_setopt);
    load(library, "curl_easy_getinfo", easy_getinfo);
    load(library, "curl_easy_send", easy_send);
    load(library, "curl_easy_recv", easy_recv);
    load(library, "curl_multi_init", multi_init);
    load(library, "curl_multi_cleanup", multi_cleanup);
    load(library, "curl_multi_add_handle", multi_add_handle);
    load(library, "curl_multi_remove_handle", multi_remove_handle);
    load(library, "curl_multi_perform", multi_perform);
    load(library, "curl_multi_info_read", multi_info_read);
    constexpr long everything = 3;
    if (global_init(everything) != 0) {
        throw std::runtime_error("libcurl cannot start");
    }
}

}  // namespace distcache
