#pragma once
// A model that is loaded to be served: its weights, its tokenizer and its engine.

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/infer/engine.h"
#include "hpcdl/io/chat_template.h"
#include "hpcdl/io/tokenizer.h"
#include "hpcdl/models/language_model.h"
#include "hpcdl/pool.h"
#include "hpcdl/serve/constraints.h"
#include "hpcdl/serve/draft.h"
#include "hpcdl/serve/options.h"
#include "hpcdl/serve/tool_calls.h"

namespace hpcdl::serve {

/// What requests refer to; it does not change once the model is loaded.
struct ModelFacts {
  /// Tokens of a text at most, its prompt included.
  std::int64_t longest() const { return endless ? std::numeric_limits<std::int32_t>::max() : context; }

  /// As clients call the model with one of its adapters; -1: none of them.
  const std::string& name_with(std::int32_t adapter) const {
    return adapter < 0 ? name : adapters[static_cast<std::size_t>(adapter)];
  }

  std::string name;
  io::Tokenizer tokenizer;
  std::vector<std::string> adapters = {};  // their names: a request may name one
  std::optional<io::ChatTemplate> chat = {};
  std::string no_chat = {};                      // why there is no template
  ToolFormat tools = ToolFormat::none;           // of calls, as the template shows it
  std::optional<std::int32_t> tool_marker = {};  // the token that begins a call, if it is a special one
  std::int64_t context = 0, vocab = 0;
  bool endless = false;           // texts may be longer than the context
  std::size_t longest_token = 1;  // bytes
  std::int64_t created = 0;       // Unix seconds
  SamplingSection sampling = {};
  std::shared_ptr<Constraints> constraints = {};
};

class ServedModel {
 public:
  /// Loads the model. Throws Error if it cannot be served with these options. `ranks`: those that share it, of which
  /// this is the first; null: there are no others.
  explicit ServedModel(const ServerConfig& config, infer::RankLink* ranks = nullptr);

  const ModelFacts& facts() const { return *facts_; }
  std::int64_t pages() const { return options_.pages; }
  infer::EngineOptions engine_options() const { return options_; }
  const models::LanguageModel& model() const { return model_; }
  Pool& pool() { return pool_; }

 private:
  Pool pool_;
  models::LanguageModel model_;
  std::optional<ModelFacts> facts_;
  std::optional<Draft> draft_;
  infer::EngineOptions options_;
};

/// The weights of a model, or what this rank has of them, on their device.
models::LanguageModel open_model(const EngineSection& options, infer::RankLink* ranks, Pool& pool);

/// What is known of a model before its weights are loaded: name, tokenizer and template.
ModelFacts facts_of(const ServerConfig& config, const std::filesystem::path& folder);
/// The ids that end a text of a model, as far as the tokenizer knows them.
std::vector<std::int32_t> end_ids(const models::LanguageModel& model, const io::Tokenizer& tokenizer);
/// Never empty: a text without tokens begins with the token that begins one. Throws Error if there is none.
std::vector<std::int32_t> encode_prompt(const io::Tokenizer& tokenizer, std::string_view text);

}  // namespace hpcdl::serve
