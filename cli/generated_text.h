#pragma once
// A text that `hpcdl generate` continues, with its decoding, and how it is written in JSON.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/generate.h"
#include "hpcdl/io/tokenizer.h"
#include "hpcdl/serve/stop_text.h"

namespace hpcdl::cli {

class GeneratedText {
 public:
  /// `tokenizer`: null if the model has none; the text is then its ids, separated by commas.
  GeneratedText(const io::Tokenizer* tokenizer, const std::vector<std::string>& stop);

  /// Takes a token and returns what it adds to the text.
  std::string add(const infer::Token& token);
  /// Whether a stop string has occurred.
  bool stopped() const { return stop_.stopped(); }
  /// Returns what was held back. Throws Error if the text has failed.
  std::string finish(const infer::End& end);

  const std::string& text() const { return text_; }
  const std::vector<std::int32_t>& ids() const { return ids_; }
  const std::optional<infer::End>& end() const { return end_; }
  /// "eos", "stop" or "length". Precondition: it has ended.
  std::string_view reason() const;
  /// Adds to `to` the log-probabilities of new tokens and of those of the prompt, each if it was asked for.
  void add_logprobs(const GenerateOptions& o, Json& to) const;

 private:
  std::string take(std::string part);

  std::optional<io::StreamDecoder> decoder_;
  serve::StopText stop_;
  std::string text_;
  std::vector<std::int32_t> ids_;
  std::vector<infer::Token> tokens_;  // with their log-probabilities
  std::optional<infer::End> end_;
};

/// The request of text `index` with this prompt: sampling draws differ by the index.
infer::Request request_of(const Generating& g, std::vector<std::int32_t> prompt, int tokens, std::size_t index);

}  // namespace hpcdl::cli
