#pragma once
// What the demo found, and the two forms it is told in: a table on the terminal and one HTML page that needs nothing else.

#include <cstdint>
#include <string>
#include <vector>

namespace hpcdl::cli {

struct Fact {
  std::string name, value;
};

struct CurvePoint {
  double step = 0, loss = 0;
};

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
  std::vector<Fact> machine, text, model, training, stages;
  std::vector<CurvePoint> curve, evaluation;
  ModelFacts before, after;
  std::vector<Sample> samples;
};

std::string report_text(const DemoReport& report);
std::string report_html(const DemoReport& report);

}  // namespace hpcdl::cli
