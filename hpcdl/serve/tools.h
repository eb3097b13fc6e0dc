#pragma once
// The tools of a chat: how the model may call them, and what it is made to write.

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "hpcdl/infer/grammar/grammar.h"
#include "hpcdl/serve/fields.h"
#include "hpcdl/serve/served_model.h"
#include "hpcdl/serve/tool_calls.h"

namespace hpcdl::serve {

struct ToolUse {
  Json tools = {};                                    // for the template; null: none
  ToolFormat format = ToolFormat::none;               // of the calls in answers
  bool parallel = true;                               // more than one call
  std::string begins = {};                            // what stands after the prompt: the answer goes on from it
  std::shared_ptr<const infer::Grammar> forced = {};  // the answer is a call; null: it may be

  /// Whether answers are searched for calls.
  bool any() const { return format != ToolFormat::none || forced; }
};

/// Reads "tools", "tool_choice" and "parallel_tool_calls". Throws Refusal, or Error for parameters whose schema cannot be
/// enforced although a call is required.
ToolUse read_tools(Fields& fields, const ModelFacts& model);
/// A JSON schema of calls of one of `tools`, whose arguments satisfy its parameters; of a list of calls for Mistral.
Json schema_of_calls(const Json& tools, ToolFormat format, bool parallel);
/// The arguments of calls in earlier messages are texts; templates expect objects.
void parse_arguments(Json& message);

}  // namespace hpcdl::serve
