#pragma once
// A language model small enough to be trained in a test, and tokens for it.

#include <cstdint>
#include <vector>

#include "hpcdl/io/model_config.h"
#include "hpcdl/models/family.h"

namespace hpcdl::models {

/// Every family of language models.
inline std::vector<io::Family> all_text_families() {
#define HPCDL_VALUE(name) io::Family::name,
  return {HPCDL_TEXT_FAMILIES(HPCDL_VALUE)};
#undef HPCDL_VALUE
}

/// Those whose layers ranks can share in every scheme: all but mixtures of experts.
inline std::vector<io::Family> text_families() {
  auto list = all_text_families();
  std::erase_if(list, [](auto family) { return row_of(family).mixture; });
  return list;
}

inline io::ModelConfig tiny(io::Family family) {
  io::ModelConfig c;
  c.family = family;
  c.layers = 2, c.heads = 2, c.width = 32, c.context = 16, c.vocab = 50;
  c.tied = family == io::Family::gpt2;
  if (row_of(family).mixture) c.experts = 4, c.chosen_experts = 2;
  resolve(c);
  return c;
}

/// 32 tokens below the vocabulary of tiny().
inline std::vector<std::int32_t> tiny_ids(std::uint32_t seed) {
  std::vector<std::int32_t> list(32);
  for (auto& id : list) id = static_cast<std::int32_t>((seed = seed * 1664525u + 1013904223u) >> 16) % 50;
  return list;
}

}  // namespace hpcdl::models
