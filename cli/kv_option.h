#pragma once
// --kv TYPE, for the verbs that keep keys and values in pages.

#include <string>
#include <vector>

#include "cli/verb.h"
#include "hpcdl/infer/kv_pool.h"
#include "hpcdl/infer/kv_window.h"

namespace hpcdl::cli {

struct KvOption {
  std::string word = "auto";
  DType type() const { return infer::kv_type("kv", word); }
};

inline void add_kv_option(const Command& sub, KvOption& o) {
  sub.option("--kv", o.word, "Type of keys and values; i8 and f8: 8 bits with scales; auto: that of activations")
      .one_of(std::vector<std::string>(infer::kKvWords.begin(), infer::kKvWords.end()))
      .shows_default();
}

inline void add_kv_window_options(const Command& sub, infer::KvWindow& w) {
  sub.option("--kv-window", w.tokens,
             "Keep the keys and values of the last so many tokens only; a text then may be longer than the context")
      .kind("TOKENS");
  sub.option("--kv-sink", w.sink, "With --kv-window: keep those of the first so many tokens, too").kind("TOKENS");
}

}  // namespace hpcdl::cli
