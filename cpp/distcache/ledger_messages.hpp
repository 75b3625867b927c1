#pragma once

// What is wrong with arrays that the ledger reads; private to its files.
namespace distcache::ledger {

inline constexpr const char* outside_shuffle = "a sample is not in the shuffle index";
inline constexpr const char* outside_rows = "a sample is not in the sample index";
inline constexpr const char* outside_documents =
    "a sample index leads outside of the document index";
inline constexpr const char* outside_sequence = "a sample index leads outside of a sequence";

}  // namespace distcache::ledger
