#include "hpcdl/infer/generation_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/io/json.h"

namespace hpcdl::infer {

namespace {

constexpr std::int64_t kMostBytes = 16 << 20;  // bytes

constexpr std::string_view kKeysRead[] = {
    "do_sample", "temperature",        "top_k",          "top_p",          "min_p",
    "typical_p", "repetition_penalty", "min_new_tokens", "max_new_tokens", "eos_token_id"};
/// Say where the file comes from, what results contain beside the text, or how fast it is made.
constexpr std::string_view kHarmless[] = {"_from_model_config",
                                          "assistant_confidence_threshold",
                                          "assistant_early_exit",
                                          "assistant_lookbehind",
                                          "bos_token_id",
                                          "cache_config",
                                          "cache_implementation",
                                          "compile_config",
                                          "disable_compile",
                                          "early_stopping",  // of beams, as the next one
                                          "length_penalty",
                                          "low_memory",
                                          "max_matching_ngram_size",
                                          "num_assistant_tokens",
                                          "num_assistant_tokens_schedule",
                                          "num_return_sequences",
                                          "output_attentions",
                                          "output_hidden_states",
                                          "output_logits",
                                          "output_scores",
                                          "pad_token_id",
                                          "prefill_chunk_size",
                                          "prompt_lookup_num_tokens",
                                          "return_dict_in_generate",
                                          "return_legacy_cache",
                                          "target_lookbehind",
                                          "transformers_version",
                                          "use_cache"};
constexpr std::string_view kNeutralAtOne[] = {"encoder_repetition_penalty", "guidance_scale", "num_beam_groups",
                                              "num_beams"};

bool changes_texts(const std::string& key, const io::Json& value) {
  const auto among = [&](const auto& keys) { return std::ranges::find(keys, key) != std::end(keys); };
  if (among(kKeysRead) || among(kHarmless)) return false;
  const bool off = value.is_null() || value == false || value == 0 || (value.is_structured() && value.empty());
  return !off && !(among(kNeutralAtOne) && value == 1);
}

std::optional<float> number(const io::JsonObject& o, const char* key) {
  const auto found = o.get<double>(key);
  return found ? std::optional(static_cast<float>(*found)) : std::nullopt;
}

std::optional<int> count(const io::JsonObject& o, const char* key, int least) {
  const auto found = o.get<std::int64_t>(key);
  if (!found) return {};
  require(*found >= least && *found <= 1 << 30, "io", "{}: {}: expected {} to {}, found {}", o.where(), key, least,
          1 << 30, *found);
  return static_cast<int>(*found);
}

}  // namespace

void GenerationConfig::complete(SamplingOptions& o, const std::function<bool(std::string_view)>& said) const {
  each_rule(
      [&](std::string_view key, auto& to, const auto& value) {
        if (value && !said(key)) to = *value;
      },
      o, *this);
}

std::string GenerationConfig::warning() const {
  if (unused.empty()) return "";
  return fmt::format("{}: {} {} not supported and changes nothing here", file, fmt::join(unused, ", "),
                     unused.size() == 1 ? "is" : "are");
}

GenerationConfig read_generation_config(const std::filesystem::path& folder) {
  GenerationConfig c;
  const auto path = folder / "generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return c;
  c.file = path.string();
  const io::Json json = io::read_json(path, kMostBytes);
  const io::JsonObject o(json, c.file);
  for (const auto& [key, value] : json.items())
    if (changes_texts(key, value)) c.unused.push_back(key);
  c.repetition_penalty = number(o, "repetition_penalty");
  c.min_tokens = count(o, "min_new_tokens", 0), c.max_tokens = count(o, "max_new_tokens", 1);
  const auto samples = o.get<bool>("do_sample");
  if (samples == false) {
    c.temperature = 0;
  } else {
    c.temperature = number(o, "temperature");
    if (samples && !c.temperature) c.temperature = 1;
    c.top_k = count(o, "top_k", 0);
    c.top_p = number(o, "top_p"), c.min_p = number(o, "min_p"), c.typical_p = number(o, "typical_p");
  }
  SamplingOptions all;
  c.complete(all, [](auto) { return false; });
  try {
    all.check();
  } catch (const UsageError& e) {
    fail("io", "{}: {}", c.file, e.what());
  }
  return c;
}

}  // namespace hpcdl::infer
