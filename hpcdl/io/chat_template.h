#pragma once
// Chat templates of Hugging Face models: the text of a prompt, made from messages by a subset of Jinja
// (jinja/parser.h says which), as transformers renders it: trim_blocks, lstrip_blocks, an immutable sandbox, loop
// controls, {% generation %}, tojson, raise_exception, strftime_now.

#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hpcdl::io {

/// Objects keep the order of their keys, which templates print.
using OrderedJson = nlohmann::ordered_json;

/// JSON from an untrusted source, such as the body of a request, in time that grows with its size. Throws Error on bad
/// syntax, nesting beyond 64, or an object of more than 4096 keys. The last of equal keys counts.
OrderedJson parse_ordered_json(std::string_view text, std::string_view where);

namespace jinja {
class Program;
}

/// Immutable and cheap to copy; safe from many threads.
class ChatTemplate {
 public:
  /// Throws Error that names the construct and its line for what is malformed or not supported; `name` is used in
  /// messages.
  static ChatTemplate parse(std::string_view source, std::string_view name = "chat template");

  /// `variables` is an object: messages, tools, add_generation_prompt and so on. `now` is the time that strftime_now
  /// tells. Steps, depth and size are bounded. Throws Error with the line, also where the template calls
  /// raise_exception.
  std::string render(const OrderedJson& variables, std::time_t now = std::time(nullptr)) const;

  /// Tokens such as bos_token, by name; variables of every rendering that do not set them otherwise.
  const std::vector<std::pair<std::string, std::string>>& special_tokens() const { return special_tokens_; }
  const std::string& source() const { return *source_; }

 private:
  friend std::optional<ChatTemplate> load_chat_template(const std::filesystem::path&, std::string_view);
  std::shared_ptr<const jinja::Program> program_;
  std::shared_ptr<const std::string> source_;
  std::vector<std::pair<std::string, std::string>> special_tokens_;
};

/// The template of a model folder, with its special tokens: chat_template.jinja, or chat_template of
/// tokenizer_config.json (a string, or a list of named templates, from which `name` is chosen); or that of a GGUF file.
/// None if there is none.
/// Throws Error for a name that is not in the list.
std::optional<ChatTemplate> load_chat_template(const std::filesystem::path& folder, std::string_view name = "default");

/// The prompt of a conversation. `messages` is a list of objects; `tools` a list or null; `kwargs` an object of further
/// variables (enable_thinking and so on) or null.
std::string chat_prompt(const ChatTemplate& chat, const OrderedJson& messages, const OrderedJson& tools,
                        bool add_generation_prompt, const OrderedJson& kwargs);

}  // namespace hpcdl::io
