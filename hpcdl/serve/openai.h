#pragma once
// The requests of OpenAI's API, with the fields that other servers have added to it. Reading them is strict: a field
// that is not known, or cannot be honoured, is an error unless it is null.

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/infer/request.h"
#include "hpcdl/serve/fields.h"
#include "hpcdl/serve/served_model.h"
#include "hpcdl/serve/tools.h"

namespace hpcdl::serve {

/// A request that is answered with an error.
struct Refusal : std::runtime_error {
  Refusal(int http_status, const std::string& message, std::string its_code = "")
      : runtime_error(message), status(http_status), code(std::move(its_code)) {}
  int status;
  std::string code;  // a word for programs, or ""
};
/// The body of an answer with this error.
std::string error_body(int status, std::string_view message, std::string_view code = "");

struct Prompt {
  std::vector<std::int32_t> ids;
  std::string text;  // to echo
};

/// A request for texts: `n` continuations of each prompt, which are its choices.
struct Call {
  bool chat = false, stream = false, include_usage = false, echo = false;
  std::int64_t n = 1;
  std::vector<Prompt> prompts;
  infer::Request request;  // what all choices have in common
  std::vector<std::string> stop;
  std::function<std::shared_ptr<infer::TokenConstraint>()> constraint;  // makes that of one text; null: none
  ToolUse tools;

  std::size_t choices() const { return prompts.size() * static_cast<std::size_t>(n); }
  /// The request of a choice, without its callbacks. The choices of a prompt have different seeds.
  infer::Request of_choice(std::size_t index) const;
};

// What the readers of requests share.

/// The adapter of this name; -1: none, the name is that of the model. Refuses another name.
std::int32_t adapter_called(std::string_view name, const ModelFacts& model);
/// The one that the field "model" names; without it -1.
std::int32_t adapter_of(Fields& fields, const ModelFacts& model);
/// Refuses a field unless its value is a list of ids below `vocab`.
std::vector<std::int32_t> token_ids(Fields& fields, const char* name, const Json& list, std::int64_t vocab);

// All of them throw Refusal, or Error for what the tokenizer or the template refuses.
Call read_completion(std::string_view body, const ModelFacts& model);
Call read_chat(std::string_view body, const ModelFacts& model);
/// The answers to /tokenize and /detokenize.
Json tokenize(std::string_view body, const ModelFacts& model);
Json detokenize(std::string_view body, const ModelFacts& model);

}  // namespace hpcdl::serve
