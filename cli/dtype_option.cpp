#include "cli/dtype_option.h"

#include <algorithm>

#include "cli/verb.h"
#include "hpcdl/core/units.h"

namespace hpcdl::cli {

namespace {
constexpr auto& kChoices = io::EnumNames<models::ComputeChoice>::values;
}

models::ComputeChoice DtypeOption::choice() const {
  return std::ranges::find(kChoices, word, [](const auto& c) { return c.second; })->first;
}

void add_dtype_option(const Command& sub, DtypeOption& o) {
  std::vector<std::string> words;
  for (const auto& [_, name] : kChoices) words.emplace_back(name);
  sub.option("--dtype", o.word,
             "Type of weights, activations, keys and values; auto: weights as in the files, and the rest f32 on a CPU, "
             "like the weights on a GPU")
      .one_of(words)
      .shows_default();
}

void say_converted(DType type, std::int64_t bytes) {
  if (bytes > 0)
    say("{}", dim(fmt::format("weights converted to {}: {} of memory", dtype_name(type),
                              format_bytes(static_cast<double>(bytes)))));
}

}  // namespace hpcdl::cli
