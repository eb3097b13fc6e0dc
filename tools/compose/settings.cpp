#include "tools/compose/settings.h"

#include <fmt/format.h>

#include <map>

#include "hpcdl/core/error.h"
#include "hpcdl/train/check_config.h"

namespace hpcdl::lab {
namespace {

using train::RunConfig;

constexpr std::int64_t kRows = 8;  // of a micro-batch of all ranks

void make_mixture(RunConfig& c) {
  c.model.family = io::Family::mixtral;
  c.model.experts = 4, c.model.chosen_experts = 2, c.model.expert_ffn = 24;
}

}  // namespace

const std::vector<Setting>& settings() {
  static const std::vector<Setting> list{
      {"model.family = \"gpt2\"", "family", [](RunConfig& c) { c.model.family = io::Family::gpt2; }},
      {"model.family = \"mixtral\"", "family", make_mixture},
      {"parallel.ep = 2", "family", [](RunConfig& c) { make_mixture(c), c.parallel.ep = 2, c.parallel.dp *= 2; }},
      {"model.capacity = 1", "family",
       [](RunConfig& c) {
         make_mixture(c), c.parallel.ep = 2, c.parallel.dp *= 2, c.capacity = c.model.chosen_experts = 1;
       }},
      {"parallel.dp = 2", "dp", [](RunConfig& c) { c.parallel.dp *= 2; }},
      {"parallel.tp = 2", "tp", [](RunConfig& c) { c.parallel.tp = 2; }},
      {"parallel.sequence = true", "tp", [](RunConfig& c) { c.parallel.tp = 2, c.parallel.sequence = true; }},
      {"parallel.pp = 2", "pp", [](RunConfig& c) { c.parallel.pp = 2; }},
      {"parallel.schedule = \"zero_bubble\"", "pp",
       [](RunConfig& c) { c.parallel.pp = 2, c.parallel.schedule = "zero_bubble"; }},
      {"parallel.chunks = 2", "pp",
       [](RunConfig& c) { c.parallel.pp = 2, c.parallel.schedule = "interleaved", c.parallel.chunks = 2; }},
      {"parallel.vocabulary = \"pipeline\"", "pp",
       [](RunConfig& c) { c.parallel.pp = 2, c.parallel.vocabulary = VocabularyPlace::pipeline; }},
      {"parallel.barriers = 1", "pp",
       [](RunConfig& c) {
         c.parallel.pp = 2, c.parallel.vocabulary = VocabularyPlace::pipeline, c.parallel.barriers = 1;
       }},
      {"parallel.cp = 2", "cp", [](RunConfig& c) { c.parallel.cp = 2; }},
      {"parallel.cp_mode = \"ulysses\"", "cp",
       [](RunConfig& c) { c.parallel.cp = 2, c.parallel.cp_mode = nn::ContextShare::ulysses; }},
      {"parallel.cp_mode = \"zigzag\"", "cp",
       [](RunConfig& c) { c.parallel.cp = 2, c.parallel.cp_mode = nn::ContextShare::zigzag; }},
      {"parallel.cp_mode = \"ring\"", "cp",
       [](RunConfig& c) { c.parallel.cp = 2, c.parallel.cp_mode = nn::ContextShare::ring; }},
      {"parallel.zero = 1", "zero", [](RunConfig& c) { c.parallel.zero = 1, c.parallel.dp *= 2; }},
      {"parallel.zero = 2", "zero", [](RunConfig& c) { c.parallel.zero = 2, c.parallel.dp *= 2; }},
      {"parallel.zero = 3", "zero", [](RunConfig& c) { c.parallel.zero = 3, c.parallel.dp *= 2; }},
      {"parallel.invariant = true", "sums", [](RunConfig& c) { c.parallel.invariant = true; }},
      {"train.dtype = \"bf16\"", "dtype", [](RunConfig& c) { c.train.dtype = Compute::bf16; }},
      {"train.dtype = \"fp8-emu\"", "dtype",
       [](RunConfig& c) { c.train.dtype = Compute::fp8_emu, c.train.fp8_first = c.train.fp8_last = 0; }},
      {"train.dropout > 0", "dropout", [](RunConfig& c) { c.train.dropout = 0.1; }},
      {"train.recompute = true", "recompute", [](RunConfig& c) { c.train.recompute = true; }},
      {"train.accumulate = 4", "accumulate", [](RunConfig& c) { c.train.accumulate = 4; }},
      {"train.optimizer = \"sgd\"", "optimizer",
       [](RunConfig& c) { c.train.optimizer = OptimizerKind::sgd, c.train.momentum = 0.9; }},
      {"train.moments = \"8bit\"", "optimizer",
       [](RunConfig& c) {
         c.train.moments = Moments::eight_bit;
         c.model.width = 512;  // of which two ranks have whole blocks
         if (c.model.experts == 0) c.model.ffn = 512;
       }},
      {"offload.optimizer = \"host\"", "offload", [](RunConfig& c) { c.offload.optimizer = Tier::host; }},
  };
  return list;
}

std::string SettingPair::name() const {
  return second ? fmt::format("{}, {}", first->name, second->name) : std::string(first->name);
}

std::vector<SettingPair> setting_pairs() {
  std::vector<SettingPair> pairs;
  const auto& all = settings();
  for (const auto& s : all) pairs.push_back({&s, nullptr});
  for (auto a = all.begin(); a != all.end(); ++a)
    for (auto b = a + 1; b != all.end(); ++b)
      if (a->choice != b->choice) pairs.push_back({&*a, &*b});
  return pairs;
}

void configure(RunConfig& c, const SettingPair& pair) {
  c.model.family = io::Family::llama;
  c.model.layers = 2, c.model.heads = 4, c.model.width = 32, c.model.context = 16;
  c.train.steps = 3, c.train.lr = 1e-3, c.train.warmup = 12, c.train.accumulate = 2, c.train.threads = 1;
  c.train.eval_every = 3, c.train.eval_batches = 1;
  c.parallel.dp = 1;
  for (const auto* s : {pair.first, pair.second})
    if (s) s->apply(c);
  c.train.batch = kRows / c.parallel.dp;
}

void configure_alone(RunConfig& c, const SettingPair& pair) {
  configure(c, pair);
  c.parallel = {}, c.offload = {}, c.capacity = 0, c.train.recompute = false;
  c.train.batch = kRows;
}

int ranks_of(const SettingPair& pair) {
  RunConfig c;
  configure(c, pair);
  const auto& p = c.parallel;
  return static_cast<int>(p.pp * p.dp * p.cp * p.tp);
}

std::string refusal(const SettingPair& pair) try {
  RunConfig c;
  configure(c, pair);
  train::check_config(c);
  return {};
} catch (const UsageError& e) {
  return e.what();
}

std::string composition_table() {
  std::map<const Setting*, std::string> with;
  const auto add = [&](const Setting& to, const Setting& other) {
    auto& list = with[&to];
    list += fmt::format("{}`{}`", list.empty() ? "" : ", ", other.name);
  };
  for (const auto& [first, second] : setting_pairs())
    if (second && !refusal({first, second}).empty()) add(*first, *second), add(*second, *first);
  std::string text = "| setting | is refused with |\n|---|---|\n";
  for (const auto& s : settings())
    text += fmt::format("| `{}` | {} |\n", s.name, with.contains(&s) ? with.at(&s) : "nothing");
  return text;
}

}  // namespace hpcdl::lab
