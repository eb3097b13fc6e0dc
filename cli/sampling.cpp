#include "cli/sampling.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "cli/verb.h"

namespace hpcdl::cli {

const infer::SamplingOptions& SamplingWords::checked(const std::string& verb) {
  for (const auto& word : bias) {
    const auto* const end = word.data() + word.size();
    std::int32_t id = -1;
    float value = 0;
    const auto [colon, error] = std::from_chars(word.data(), end, id);
    const bool pair = error == std::errc() && id >= 0 && colon != end && *colon == ':';
    const auto [last, wrong] =
        pair ? std::from_chars(colon + 1, end, value) : std::from_chars_result{end, std::errc::invalid_argument};
    if (wrong != std::errc() || last != end)
      fail_usage(verb, "--logit-bias: expected ID:NUMBER such as 12:-3.5, found \"{}\"", word);
    options.logit_bias[id] = value;
  }
  if (!stop_ids.empty()) options.stop_ids = parse_ids(stop_ids);
  if (!banned_ids.empty()) options.banned_ids = parse_ids(banned_ids);
  if (!allowed_ids.empty()) options.allowed_ids = parse_ids(allowed_ids);
  for (const auto& s : stop)
    if (s.empty()) fail_usage(verb, "--stop: expected a text, found an empty one");
  options.check();
  return options;
}

void SamplingWords::complete(const Command& verb, const infer::GenerationConfig& config) {
  const auto option = [](std::string_view key) {
    auto name = fmt::format("--{}", key);
    std::ranges::replace(name, '_', '-');
    return name;
  };
  config.complete(options, [&](auto key) { return verb.given(option(key)); });
  infer::each_rule(
      [&](std::string_view key, const auto& value, const auto& of_model) {
        origins += fmt::format("{} = {}  # {}\n", key, value,
                               verb.given(option(key)) ? option(key)
                               : of_model              ? config.file
                                                       : "default");
      },
      options, config);
}

std::string SamplingWords::text() const {
  const auto& o = options;
  return fmt::format(
      "temperature {}, top-k {}, top-p {}, min-p {}, typical-p {}, penalties {} {} {}, at least {} tokens, "
      "bias [{}], stop [{}] [{}], only [{}], without [{}], seed {}, end of text {}",
      o.temperature, o.top_k, o.top_p, o.min_p, o.typical_p, o.repetition_penalty, o.presence_penalty,
      o.frequency_penalty, o.min_tokens, fmt::join(bias, " "), fmt::join(stop, "|"), stop_ids, allowed_ids, banned_ids,
      o.seed, o.ignore_eos ? "ignored" : "heeded");
}

void add_sampling_options(const Command& sub, SamplingWords& o) {
  auto& s = o.options;
  sub.option("--temperature", s.temperature, "0: always the most likely token").shows_default();
  sub.option("--top-k", s.top_k, "Keep the k most likely tokens; 0: all").shows_default();
  sub.option("--top-p", s.top_p, "Keep the smallest set of tokens with this probability").shows_default();
  sub.option("--min-p", s.min_p, "Keep tokens with this share of the probability of the most likely one")
      .shows_default();
  sub.option("--typical-p", s.typical_p, "Keep the most typical tokens, up to this probability").shows_default();
  sub.option("--repetition-penalty", s.repetition_penalty, "Makes tokens of the text less likely; 1: none")
      .shows_default();
  sub.option("--presence-penalty", s.presence_penalty, "Is subtracted from the logits of new tokens of the text")
      .shows_default();
  sub.option("--frequency-penalty", s.frequency_penalty, "The same for each time that they occur").shows_default();
  sub.option("--logit-bias", o.bias, "Is added to the logit of a token; may be given several times")
      .one_each()
      .kind("ID:NUMBER");
  sub.option("--ban-ids", o.banned_ids, "Tokens that are never taken: 1,2,3");
  sub.option("--allow-ids", o.allowed_ids, "No other tokens are taken: 1,2,3; default: all");
  sub.option("--stop", o.stop, "Text before which the result ends; may be given several times").one_each();
  sub.option("--stop-ids", o.stop_ids, "Tokens that end the text, beside those of the model: 1,2,3");
  sub.option("--min-tokens", s.min_tokens, "New tokens before which the text does not end").shows_default();
  sub.option("--seed", s.seed, "Seed of the sampling; the same seed gives the same text").shows_default();
  sub.flag("--ignore-eos", s.ignore_eos, "Continue after the end-of-text token");
}

void add_spec_option(const Command& sub, std::string& word) {
  sub.option(
         "--spec", word,
         "Several tokens are proposed and checked together, with the same result: none; ngram proposes from earlier "
         "parts of the text; a model folder proposes with a smaller model of the same vocabulary")
      .kind("WORD|DIR")
      .shows_default();
}

}  // namespace hpcdl::cli
