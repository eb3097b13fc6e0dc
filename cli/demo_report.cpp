#include "cli/demo_report.h"

#include <fmt/format.h>

#include "hpcdl/core/units.h"

namespace hpcdl::cli {

namespace {

std::string bytes(std::int64_t n) { return format_bytes(static_cast<double>(n)); }
std::string times(double x) { return fmt::format("{:.2f}x", x); }

double smaller(const DemoReport& r) {
  return static_cast<double>(r.before.file_bytes) / static_cast<double>(r.after.file_bytes);
}

lab::Table comparison(const DemoReport& r) {
  const auto &a = r.before, &b = r.after;
  return {
      .columns = {"", "as trained", "INT4", ""},
      .rows = {{"weights on disk", bytes(a.file_bytes), bytes(b.file_bytes), times(smaller(r)) + " smaller"},
               {"bits per weight of the matrices", fmt::format("{:.0f}", a.bits_per_weight),
                fmt::format("{:.3f}", b.bits_per_weight)},
               {"held-out perplexity", fmt::format("{:.2f}", a.perplexity), fmt::format("{:.2f}", b.perplexity),
                fmt::format("{:+.2f} %", 100 * (b.perplexity / a.perplexity - 1))},
               {"tokens per second", fmt::format("{:.0f}", a.tokens_per_second),
                fmt::format("{:.0f}", b.tokens_per_second), times(b.tokens_per_second / a.tokens_per_second)},
               {"first token", fmt::format("{:.1f} ms", a.first_token_ms), fmt::format("{:.1f} ms", b.first_token_ms)},
               {"peak memory while generating", bytes(a.peak_rss_bytes), bytes(b.peak_rss_bytes)}}};
}

/// Explains why the page shows two perplexities of one model.
std::string why_perplexities_differ(const DemoReport& r) {
  return fmt::format(
      "The perplexity was measured on {} tokens that were held out before training. The dots of the loss curve end at "
      "a perplexity of {:.2f}; they were measured on other text, the last 2 % of the training text. Both samples are "
      "small, and a model finds some documents easier than others.",
      r.held_out_tokens, r.validation_perplexity);
}

}  // namespace

lab::Page demo_page(const DemoReport& r) {
  lab::Page page{.title = r.title,
                 .subtitle = r.date,
                 .tiles = {},
                 .cards = {},
                 .footer =
                     "Made by `hpcdl demo`: text of this machine, a tokenizer and a transformer trained on it, a "
                     "checkpoint, 4-bit weights, "
                     "and generation from the memory-mapped files."};
  page.tiles = {{"held-out perplexity as trained", fmt::format("{:.2f}", r.before.perplexity)},
                {"held-out perplexity in INT4", fmt::format("{:.2f}", r.after.perplexity)},
                {"smaller on disk in INT4", fmt::format("{:.1f}x", smaller(r))},
                {"tokens per second, INT4, mapped", fmt::format("{:.0f}", r.after.tokens_per_second)}};
  using Form = lab::Series::Form;
  page.cards.push_back({"Loss", lab::LineChart{.x = "step",
                                               .y = "loss",
                                               .series = {{"training (faint: every step)", r.curve, Form::smooth},
                                                          {"validation text", r.evaluation, Form::dots}}}});
  page.cards.push_back(
      {.title = "Before and after INT4", .content = comparison(r), .note = why_perplexities_differ(r)});
  std::vector<lab::Pair> pairs;
  for (const auto& s : r.samples) pairs.push_back({"as trained", "INT4", s.prompt, s.before, s.after});
  page.cards.push_back({"What it writes", std::move(pairs)});
  page.cards.push_back({.title = "Training", .content = r.training, .half = true});
  page.cards.push_back({.title = "Model", .content = r.model, .half = true});
  page.cards.push_back({.title = "Text", .content = r.text, .half = true});
  page.cards.push_back({.title = "Machine", .content = r.machine, .half = true});
  page.cards.push_back({"Where the time went", r.stages});
  return page;
}

}  // namespace hpcdl::cli
