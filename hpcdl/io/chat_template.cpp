#include "hpcdl/io/chat_template.h"

#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/io/file.h"
#include "hpcdl/io/gguf/file.h"
#include "hpcdl/io/gguf/tokenizer.h"
#include "hpcdl/io/jinja/parser.h"
#include "hpcdl/io/json.h"

namespace hpcdl::io {

OrderedJson parse_ordered_json(std::string_view text, std::string_view where) {
  // An ordered object finds its keys by looking at all of them.
  constexpr std::size_t kMaxKeys = 4096;
  constexpr int kMaxDepth = 64;
  std::vector<std::size_t> keys;  // of every open object
  const auto watch = [&](int depth, OrderedJson::parse_event_t event, OrderedJson&) {
    using Event = OrderedJson::parse_event_t;
    require(depth <= kMaxDepth, "io", "{}: expected JSON nested at most {} deep, found more", where, kMaxDepth);
    if (event == Event::object_start) keys.push_back(0);
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key)
      require(++keys.back() <= kMaxKeys, "io", "{}: expected at most {} keys in one object, found more", where,
              kMaxKeys);
    return true;
  };
  try {
    return OrderedJson::parse(text.begin(), text.end(), watch);
  } catch (const OrderedJson::parse_error& e) {
    fail("io", "{}: expected JSON, found {}", where, json_mistake(text, e.byte));
  } catch (const OrderedJson::exception&) {
    fail("io", "{}: expected JSON, found a number that is too large", where);
  }
}

namespace {

/// The template in tokenizer_config.json; none if there is none.
std::optional<std::string> template_of(const Json& config, std::string_view name, const std::string& where) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  require(found->is_array(), "io", "{}: chat_template is a {}; expected a string or a list", where, json_kind(*found));
  std::string names;
  for (const Json& entry : *found) {
    const JsonObject one(entry, where + ": chat_template");
    if (one.need<std::string>("name") == name) return one.need<std::string>("template");
    names += (names.empty() ? "" : ", ") + one.need<std::string>("name");
  }
  fail("io", "{}: it has no chat template '{}' (it has {})", where, name, names);
}

/// Tokens by their names: each is a string, or an object with its content.
std::vector<std::pair<std::string, std::string>> special_tokens_of(const Json& config) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token")) continue;
    const Json* text = &value;
    if (value.is_object() && value.contains("content")) text = &value["content"];
    if (text->is_string()) out.emplace_back(key, text->get<std::string>());
  }
  return out;
}

}  // namespace

ChatTemplate ChatTemplate::parse(std::string_view source, std::string_view name) {
  ChatTemplate out;
  out.program_ = std::make_shared<const jinja::Program>(source, name);
  out.source_ = std::make_shared<const std::string>(source);
  return out;
}

std::string ChatTemplate::render(const OrderedJson& variables, std::time_t now) const {
  return program_->render(variables, special_tokens_, now);
}

std::optional<ChatTemplate> load_chat_template(const fs::path& folder, std::string_view name) {
  if (is_gguf(folder)) {
    const auto file = GgufFile::open(folder);
    auto found = chat_template_of(file.metadata(), name);
    if (!found) return std::nullopt;
    auto chat = ChatTemplate::parse(found->source, "chat template of " + folder.string());
    chat.special_tokens_ = std::move(found->special_tokens);
    return chat;
  }
  const fs::path own = folder / "chat_template.jinja", config_file = folder / "tokenizer_config.json";
  const Json config = fs::exists(config_file) ? read_json(config_file) : Json::object();
  require(config.is_object(), "io", "{}: expected a JSON object, found {}", config_file.string(), json_kind(config));
  std::optional<ChatTemplate> out;
  if (fs::exists(own)) {
    out = ChatTemplate::parse(read_file(own), own.string());
  } else if (const auto source = template_of(config, name, config_file.string())) {
    out = ChatTemplate::parse(*source, "chat_template of " + config_file.string());
  }
  if (out) out->special_tokens_ = special_tokens_of(config);
  return out;
}

std::string chat_prompt(const ChatTemplate& chat, const OrderedJson& messages, const OrderedJson& tools,
                        bool add_generation_prompt, const OrderedJson& kwargs) {
  require(messages.is_array(), "io", "messages: expected a list, found {}", messages.type_name());
  require(tools.is_null() || tools.is_array(), "io", "tools: expected a list or null, found {}", tools.type_name());
  require(kwargs.is_null() || kwargs.is_object(), "io", "variables of the chat template: expected an object, found {}",
          kwargs.type_name());
  OrderedJson variables = {{"messages", messages},
                           {"tools", tools},
                           {"documents", nullptr},
                           {"add_generation_prompt", add_generation_prompt}};
  for (const auto& [key, value] : kwargs.items()) variables[key] = value;
  return chat.render(variables);
}

}  // namespace hpcdl::io
