#include "hpcdl/serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace hpcdl::serve {

namespace {

template <class T> void print_value(std::string& to, const char* type, const char* name, const char* help, T value) {
  fmt::format_to(std::back_inserter(to), "# HELP hpcdl_{0} {1}\n# TYPE hpcdl_{0} {2}\nhpcdl_{0} {3}\n", name, help,
                 type, value);
}

}  // namespace

void Histogram::add(double seconds) {
  ++counts_[static_cast<std::size_t>(std::lower_bound(kLimits.begin(), kLimits.end(), seconds) - kLimits.begin())];
  sum_ += seconds;
}

void Histogram::print(std::string& to, const char* name, const char* help) const {
  const auto out = std::back_inserter(to);
  fmt::format_to(out, "# HELP hpcdl_{0} {1}\n# TYPE hpcdl_{0} histogram\n", name, help);
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i];
    const auto limit = i < kLimits.size() ? fmt::format("{}", kLimits[i]) : "+Inf";
    fmt::format_to(out, "hpcdl_{}_bucket{{le=\"{}\"}} {}\n", name, limit, below);
  }
  fmt::format_to(out, "hpcdl_{0}_sum {1}\nhpcdl_{0}_count {2}\n", name, sum_, below);
}

void Metrics::add(const infer::End& end) {
  using Reason = infer::End::Reason;
  ++texts;
  cancelled += end.reason == Reason::cancelled, failed += end.reason == Reason::failed;
  prefix_hits += end.stats.cached_tokens > 0;
}

std::string Metrics::text(std::size_t waiting, std::size_t running, std::size_t connections,
                          const infer::EngineState& engine) const {
  std::string to;
  const auto gauge = [&](const char* name, const char* help, auto value) {
    print_value(to, "gauge", name, help, value);
  };
  const auto count = [&](const char* name, const char* help, auto value) {
    print_value(to, "counter", name, help, value);
  };
  gauge("texts_waiting", "Texts without a token yet", waiting);
  gauge("texts_running", "Texts that have tokens and continue", running);
  gauge("connections", "Open connections", connections);
  gauge("kv_pages", "Pages of 64 tokens for keys and values", engine.pages);
  gauge("kv_pages_free", "Pages that hold nothing", engine.free_pages);
  gauge("kv_pages_cached", "Pages of texts that have ended, kept for prompts that begin alike", engine.cached_pages);
  gauge("kv_pages_used", "Pages of texts that have not ended", engine.pages - engine.free_pages - engine.cached_pages);
  gauge("kv_window_pages", "Pages of layers with a window, if they have pages of their own", engine.window_pages);
  gauge("kv_window_pages_free", "Pages of these that no text needs", engine.free_window_pages);
  count("kv_window_pages_left_total", "Pages that the windows of texts have left", engine.left_pages);
  count("texts_total", "Texts that have ended", texts);
  count("cancelled_total", "Texts whose client left, or that a stop string ended", cancelled);
  count("failed_total", "Texts that ended with an error", failed);
  count("refused_total", "Requests that were answered with an error", refused);
  count("preemptions_total", "Times that a text lost its pages to others", engine.preemptions);
  count("prefix_hits_total", "Texts whose prompt began like an earlier one", prefix_hits);
  count("prompt_tokens_total", "Tokens of prompts", engine.prompt_tokens);
  count("cached_tokens_total", "Tokens of prompts whose keys and values were there", engine.cached_tokens);
  count("new_tokens_total", "Generated tokens", new_tokens);
  count("proposed_tokens_total", "Tokens that speculation proposed", engine.proposed_tokens);
  count("accepted_tokens_total", "Proposed tokens that came true", engine.accepted_tokens);
  count("programs_total", "Programs that were recorded", engine.programs);
  first_token.print(to, "time_to_first_token_seconds", "From the request to its first token");
  between_tokens.print(to, "time_between_tokens_seconds", "Between two tokens of a text");
  return to;
}

}  // namespace hpcdl::serve
