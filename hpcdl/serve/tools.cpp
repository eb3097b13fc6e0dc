#include "hpcdl/serve/tools.h"

#include "hpcdl/serve/openai.h"

namespace hpcdl::serve {

namespace {

/// "#/..." refers to the schema that the tool came with, which is now a part of another.
void move_references(Json& schema, const std::string& to) {
  if (schema.is_object())
    for (auto& [key, value] : schema.items()) {
      if (key == "$ref" && value.is_string() && value.get_ref<const std::string&>().starts_with('#'))
        value = to + value.get<std::string>().substr(1);
      else move_references(value, to);
    }
  else if (schema.is_array())
    for (auto& value : schema) move_references(value, to);
}

std::string name_of(const Json& tool) { return tool["function"]["name"]; }

void check_tools(Fields& fields, const Json& tools) {
  constexpr const char* kExpected = "a list of {\"type\": \"function\", \"function\": {\"name\": ...}}";
  if (!tools.is_array()) fields.wrong("tools", kExpected, tools);
  for (const auto& tool : tools) {
    const bool good = tool.is_object() && tool.value("type", Json()) == "function" && tool.contains("function") &&
                      tool["function"].is_object() && tool["function"].value("name", Json()).is_string();
    if (!good) fields.wrong("tools", kExpected, tool);
  }
}

/// The name in {"type": "function", "function": {"name": ...}}.
std::string named_in(Fields& fields, const Json& choice) {
  constexpr const char* kExpected =
      "\"none\", \"auto\", \"required\", or {\"type\": \"function\", \"function\": {\"name\": ...}}";
  const bool good = choice.is_object() && choice.value("type", Json()) == "function" && choice.contains("function") &&
                    choice["function"].is_object() && choice["function"].value("name", Json()).is_string();
  if (!good) fields.wrong("tool_choice", kExpected, choice);
  return name_of(choice);
}

}  // namespace

Json schema_of_calls(const Json& tools, ToolFormat format, bool parallel) {
  const char* const arguments = format == ToolFormat::llama ? "parameters" : "arguments";
  Json calls = Json::array(), definitions = Json::object();
  for (std::size_t i = 0; i < tools.size(); ++i) {
    const auto& function = tools[i]["function"];
    const auto place = fmt::format("tool_{}", i), pointer = "#/$defs/" + place;
    auto parameters = function.value("parameters", Json());
    if (parameters.is_null()) parameters = {{"type", "object"}};
    move_references(parameters, pointer);
    definitions[place] = std::move(parameters);
    calls.push_back({{"type", "object"},
                     {"properties", {{"name", {{"const", function["name"]}}}, {arguments, {{"$ref", pointer}}}}},
                     {"required", {"name", arguments}},
                     {"additionalProperties", false}});
  }
  Json schema = calls.size() == 1 ? calls[0] : Json{{"anyOf", calls}};
  if (format == ToolFormat::mistral) {
    schema = {{"type", "array"}, {"items", schema}, {"minItems", 1}};
    if (!parallel) schema["maxItems"] = 1;
  }
  schema["$defs"] = std::move(definitions);
  return schema;
}

ToolUse read_tools(Fields& fields, const ModelFacts& model) {
  ToolUse use;
  use.parallel = fields.flag("parallel_tool_calls", true);
  const auto *tools = fields.find("tools"), *choice = fields.find("tool_choice");
  if (tools) check_tools(fields, *tools);
  const bool some = tools && !tools->empty();
  if (choice && *choice == "none") return use;
  if (some) use.tools = *tools, use.format = model.tools;
  if (!choice || *choice == "auto") return use;
  auto callable = some ? *tools : Json::array();
  if (*choice != "required") {
    const auto name = named_in(fields, *choice);
    auto named = Json::array();
    for (const auto& tool : callable)
      if (name_of(tool) == name) named.push_back(tool);
    callable = std::move(named);
    if (callable.empty()) throw Refusal(400, fmt::format("\"tool_choice\": there is no tool {}", io::shown(name)));
  }
  if (callable.empty()) throw Refusal(400, "\"tool_choice\" needs \"tools\"");
  use.begins = tool_marker(use.format);
  use.forced =
      model.constraints->grammar(Form::json_schema, schema_of_calls(callable, use.format, use.parallel).dump());
  return use;
}

void parse_arguments(Json& message) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array()) return;
  for (auto& call : *calls) {
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
    auto& function = call["function"];
    const auto arguments = function.find("arguments");
    if (arguments == function.end() || !arguments->is_string()) continue;
    auto parsed = io::parse_ordered_json(arguments->get_ref<const std::string&>(), "the arguments of a tool call");
    if (parsed.is_object()) *arguments = std::move(parsed);
  }
}

}  // namespace hpcdl::serve
