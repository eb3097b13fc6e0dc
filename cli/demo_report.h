#pragma once
// The results of the demo as a page.

#include <cstdint>
#include <string>
#include <vector>

#include "tools/page/page.h"

namespace hpcdl::cli {

/// One side of a comparison: the model as trained, or in 4 bits.
struct ModelFacts {
  std::int64_t file_bytes = 0;
  double bits_per_weight = 32;
  double loss = 0, perplexity = 0;
  double tokens_per_second = 0, first_token_ms = 0;
  std::int64_t peak_rss_bytes = 0, mapped_bytes = 0;
};

struct Sample {
  std::string prompt, before, after;
};

struct DemoReport {
  std::string title, date;
  std::vector<lab::Fact> machine, text, model, training, stages;
  std::vector<std::pair<double, double>> curve, evaluation;  // step, loss
  double validation_perplexity = 0;                          // where `evaluation` ends
  std::int64_t held_out_tokens = 0;                          // that `before` and `after` are about
  ModelFacts before, after;
  std::vector<Sample> samples;
};

lab::Page demo_page(const DemoReport& report);

}  // namespace hpcdl::cli
