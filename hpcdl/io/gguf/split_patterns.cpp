#include "hpcdl/io/gguf/split_patterns.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "hpcdl/core/error.h"
#include "hpcdl/io/json.h"

namespace hpcdl::io {
namespace {

using Names = const std::string_view[];

// The patterns are those of the tokenizers' own tokenizer.json.
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDigit = R"(\p{N})";

constexpr Names kGpt2Names = {"gpt-2", "phi-2", "mpt", "olmo"};
constexpr Names kLlama3Names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2"};
constexpr Names kDbrxNames = {"dbrx", "smaug-bpe"};
constexpr Names kQwen2Names = {"qwen2", "deepseek-r1-qwen", "stablelm2"};
constexpr Names kDigitNames = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"};
constexpr Names kGpt4oNames = {"gpt-4o", "llama4"};
constexpr Names kTekkenNames = {"tekken"};

constexpr SplitPattern kPatterns[] = {
    {.names = kGpt2Names, .as_gpt2 = true},
    {.names = kLlama3Names, .patterns = {kLlama3}, .whole_words = true, .begins = true},
    {.names = kDbrxNames, .patterns = {kLlama3}},
    {.names = kQwen2Names, .patterns = {kQwen2}},
    {.names = kDigitNames, .patterns = {kDigit}, .as_gpt2 = true},
    {.names = kGpt4oNames, .patterns = {kGpt4o}},
    {.names = kTekkenNames, .patterns = {kTekken}, .whole_words = true, .begins = true},
};

}  // namespace

std::span<const SplitPattern> split_patterns() { return kPatterns; }

const SplitPattern& split_pattern(std::string_view name, std::string_view where) {
  std::string known;
  for (const auto& row : kPatterns)
    for (const auto n : row.names) {
      if (n == name) return row;
      known += fmt::format("{}{}", known.empty() ? "" : ", ", n);
    }
  fail(
      "io",
      "{}: tokenizer.ggml.pre: expected one of {}, found {}: the file does not hold the pattern itself, so text cannot "
      "be cut as the model was trained; --prompt-ids works without it",
      where, known, shown(name));
}

}  // namespace hpcdl::io
