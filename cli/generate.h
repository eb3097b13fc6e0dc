#pragma once
// What `hpcdl generate` shares between one text and many.

#include <cstdint>
#include <string>
#include <vector>

#include "cli/dtype_option.h"
#include "cli/kv_option.h"
#include "cli/load_option.h"
#include "cli/model_ranks.h"
#include "cli/sampling.h"
#include "cli/threads_option.h"
#include "cli/tune_option.h"
#include "hpcdl/infer/engine.h"
#include "hpcdl/io/chat_template.h"
#include "hpcdl/serve/constraints.h"

namespace hpcdl::cli {

struct GenerateOptions {
  std::string model, prompt, prompt_file, ids, device = "cpu";
  std::string prompts, out;            // many texts
  std::string schema, regex, grammar;  // the form of the text: files, and a pattern
  std::string spec = "none";
  int tokens = 0;  // 0: not given
  int batch = 0;   // 0: not given
  int n = 1;       // texts of each prompt
  int prompt_logprobs = -1;
  int unsaid_tokens = 100;  // without --tokens, if they fit into the context
  SamplingWords sampling;
  bool json = false, invariant = false, chat = false, print_config = false;
  KvOption kv;
  infer::KvWindow kv_window;
  TuneOption tune;
  ThreadsOption threads;
  DtypeOption dtype;
  LoadOption load;

  bool has_form() const { return !schema.empty() || !regex.empty() || !grammar.empty(); }
};

/// A model, and its tokenizer if it has one.
struct Generating {
  const GenerateOptions& options;
  infer::RankLink* ranks;  // that share the model; null: there are no others
  Pool& pool;
  const models::LanguageModel& model;
  const io::Tokenizer* tokenizer;
  const io::ChatTemplate* chat;  // null: prompts are texts to continue
  serve::Constraints* constraints;
  std::shared_ptr<const infer::Grammar> form;  // of the texts; null: any
  infer::EngineOptions::Speculation speculation = {};

  /// The number of ids that have a text; 0: not known.
  std::int64_t vocab() const { return tokenizer ? tokenizer->vocab_size() : 0; }
  /// The constraint of one text; null: there is none.
  std::shared_ptr<infer::TokenConstraint> constraint() const;
  /// The tokens of a prompt; with --chat, of a conversation that it begins. Never empty.
  std::vector<std::int32_t> encode(const std::string& prompt) const;
  /// The ways of an engine's programs; `prompt` is the number of tokens to measure with.
  void choose_ways(infer::Engine& engine, std::int64_t prompt) const;
};

/// The number of tokens to add: the one that was asked for, or what fits into the context of `otherwise`; 0: not given.
int new_tokens(int asked, int otherwise, std::int64_t prompt, std::int64_t context);

/// Continues the prompts of a file of JSON lines, several at a time.
int generate_many(const Generating& g);

}  // namespace hpcdl::cli
