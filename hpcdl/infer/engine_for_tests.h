#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "hpcdl/infer/engine.h"
#include "hpcdl/models/tiny_for_tests.h"

namespace hpcdl::infer {

/// A tiny model whose weights are larger than fresh ones, so that the logits differ clearly.
inline models::LanguageModel with_clear_logits(io::Family family, std::vector<std::int64_t> eos = {},
                                               std::uint64_t seed = 3) {
  auto config = models::tiny(family);
  config.context = 160, config.eos = std::move(eos);
  models::resolve(config);
  auto model = models::LanguageModel::create(config, seed, false);
  for (auto& p : model.parameters())
    for (std::int64_t i = 0; p.param->decay && i < p.memory.size(); ++i) p.memory.ptr<float>()[i] *= 6;
  return model;
}

/// No text holds a page.
inline void expect_all_pages(const Engine& engine) {
  const auto s = engine.state();
  EXPECT_EQ(s.free_pages + s.cached_pages, s.pages);
  EXPECT_EQ(s.free_window_pages, s.window_pages);
}

/// What happens to a request, and its end.
struct Heard {
  std::vector<std::int32_t> ids;
  std::vector<float> logprobs;
  End end;
  int ends = 0;
};
inline RequestId submit(Engine& engine, Request r, Heard& heard) {
  r.on_token = [&heard](const Token& t) {
    return heard.ids.push_back(t.id), heard.logprobs.push_back(t.logprob), true;
  };
  r.on_end = [&heard](const End& e) { heard.end = e, ++heard.ends; };
  return engine.submit(std::move(r));
}

inline std::vector<std::int32_t> ids_from(int first, int count) {
  std::vector<std::int32_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back((first + 7 * i) % 50);
  return ids;
}

}  // namespace hpcdl::infer
