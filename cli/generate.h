#pragma once
// What `hpcdl generate` shares between one text and many.

#include <cstdint>
#include <string>
#include <vector>

#include "cli/threads_option.h"
#include "cli/tune_option.h"
#include "cli/world.h"
#include "hpcdl/infer/engine.h"

namespace hpcdl::cli {

struct GenerateOptions {
  std::string model, prompt, prompt_file, ids, device = "cpu";
  std::string prompts, out;  // many texts
  int tokens = 0;            // 0: not given
  int batch = 0;             // 0: not given
  infer::SamplingOptions sampling;
  bool json = false, invariant = false;
  TuneOption tune;
  ThreadsOption threads;
};

/// The model of this rank, and its tokenizer if it has one.
struct Generating {
  const GenerateOptions& options;
  const comm::Joined& ranks;
  Pool& pool;
  const models::LanguageModel& model;
  const io::Tokenizer* tokenizer;

  bool shared() const { return ranks.place().world > 1; }
  bool speaks() const { return ranks.place().rank == 0; }
  /// The number of ids that have a text; 0: not known.
  std::int64_t vocab() const { return tokenizer ? tokenizer->vocab_size() : 0; }
  /// The ways of an engine's programs; `prompt` is the number of tokens to measure with.
  void choose_ways(infer::Engine& engine, std::int64_t prompt) const;
};

/// Never empty: a text without tokens begins with the token that begins one.
std::vector<std::int32_t> encode_prompt(const io::Tokenizer& tokenizer, const std::string& text);
/// The number of tokens to add: the one that was asked for, or a default that fits into the context; 0: not given.
int new_tokens(int asked, std::int64_t prompt, std::int64_t context);

/// Continues the prompts of a file of JSON lines, several at a time.
int generate_many(const Generating& g);

}  // namespace hpcdl::cli
