#include "hpcdl/serve/tool_calls.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "hpcdl/infer/grammar/grammar.h"
#include "hpcdl/serve/running_for_tests.h"

namespace hpcdl::serve {
namespace {

using nlohmann::json;

/// "content|name(arguments)|..." of a text that arrives in parts of `step` bytes.
std::string taken(ToolFormat format, const std::string& text, std::size_t step, bool forced = false) {
  ToolText tools(format, forced);
  std::string content, calls;
  const auto add = [&](const ToolText::Part& part) {
    content += part.content;
    for (const auto& c : part.calls) calls += "|" + c.name + "(" + c.arguments + ")";
  };
  for (std::size_t i = 0; i < text.size(); i += step) add(tools.push(std::string_view(text).substr(i, step)));
  add(tools.finish());
  return content + calls;
}

void expect_taken(ToolFormat format, const std::string& text, const std::string& want, bool forced = false) {
  for (const std::size_t step : {1, 2, 3, 7, 1000})
    EXPECT_EQ(taken(format, text, step, forced), want) << text << " by " << step;
}

TEST(tool_calls, hermes) {
  const auto expect = [](const std::string& text, const std::string& want) {
    expect_taken(ToolFormat::hermes, text, want);
  };
  expect("Hello, world! ", "Hello, world! ");
  expect("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1, \"a\": \"x\"}}\n</tool_call>",
         "|f({\"b\":1,\"a\":\"x\"})");
  expect(
      "Let me see.\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n<tool_call>\n{\"name\": \"g\", "
      "\"arguments\": {\"t\": \"</tool\"}}</tool_call>\n",
      "Let me see.|f({})|g({\"t\":\"</tool\"})");
  expect("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "|f({\"a\":1})");
  expect("a <tool_cal b", "a <tool_cal b");
  expect("<tool_call>not json</tool_call> c", "<tool_call>not json</tool_call> c");
  expect("<tool_call>{\"name\": \"f\", \"argu", "<tool_call>{\"name\": \"f\", \"argu");
  expect("<tool_call>{\"name\": 3, \"arguments\": {}}</tool_call>",
         "<tool_call>{\"name\": 3, \"arguments\": {}}</tool_call>");
  expect("<tool_call>{\"name\": \"f\"}</tool_call>", "|f({})");
  expect("<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>", "|f({\"a\": 1})");
}

TEST(tool_calls, mistral) {
  const auto expect = [](const std::string& text, const std::string& want) {
    expect_taken(ToolFormat::mistral, text, want);
  };
  expect("[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": [1, 2]}}, {\"name\": \"g\", \"arguments\": {}}]",
         "|f({\"a\":[1,2]})|g({})");
  expect("Yes. [TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}]", "Yes.|f({})");
  expect("[TOOL] [1]", "[TOOL] [1]");
  expect("[TOOL_CALLS][1]", "[TOOL_CALLS][1]");
}

TEST(tool_calls, llama) {
  const auto expect = [](const std::string& text, const std::string& want) {
    expect_taken(ToolFormat::llama, text, want);
  };
  expect("{\"name\": \"f\", \"parameters\": {\"a\": \"}\"}}", "|f({\"a\":\"}\"})");
  expect(" <|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {}}", "|f({})|g({})");
  expect("{\"a\": 1}", "{\"a\": 1}");
  expect("{ no json", "{ no json");
  expect("Use {\"name\": \"f\", \"parameters\": {}}", "Use {\"name\": \"f\", \"parameters\": {}}");
  expect("<|pyt", "<|pyt");
  expect("  \n", "  \n");
}

TEST(tool_calls, forced_texts_are_calls_without_a_marker) {
  for (const auto format : {ToolFormat::none, ToolFormat::hermes, ToolFormat::llama, ToolFormat::mistral}) {
    expect_taken(format, "{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "|f({\"a\":1})", true);
    expect_taken(format, "[{\"name\": \"f\", \"arguments\": {}}]", "|f({})", true);
    expect_taken(format, "{\"name\": \"f\", \"ar", "{\"name\": \"f\", \"ar", true);
  }
  expect_taken(ToolFormat::none, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
               "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>");
}

TEST(tool_calls, templates_show_their_format) {
  EXPECT_EQ(tool_format("... <tool_call></tool_call> ..."), ToolFormat::hermes);
  EXPECT_EQ(tool_format("{{ '[TOOL_CALLS][' }}"), ToolFormat::mistral);
  EXPECT_EQ(tool_format("[TOOL_CALLS]f[ARGS]{}"), ToolFormat::none);
  EXPECT_EQ(tool_format("{{ '<|python_tag|>' }}"), ToolFormat::llama);
  EXPECT_EQ(tool_format("{%- set role = 'ipython' %}"), ToolFormat::llama);
  EXPECT_EQ(tool_format(kTestTemplate), ToolFormat::none);
}

json tool(const std::string& name, json parameters) {
  return {{"type", "function"}, {"function", {{"name", name}, {"parameters", std::move(parameters)}}}};
}

Json ordered(const json& j) { return io::parse_ordered_json(j.dump(), "a test"); }

TEST(tool_calls, schemas_hold_the_parameters_of_each_tool) {
  const json digit{{"$defs", {{"d", {{"type", "integer"}, {"minimum", 0}, {"maximum", 9}}}}},
                   {"type", "object"},
                   {"properties", {{"a", {{"$ref", "#/$defs/d"}}}}},
                   {"required", {"a"}},
                   {"additionalProperties", false}};
  const auto tools = ordered(json::array({tool("f", digit), tool("g", {{"type", "object"}})}));
  const auto accepts = [&](ToolFormat format, const std::string& text, bool parallel = true) {
    return infer::Grammar::json_schema(schema_of_calls(tools, format, parallel).dump())->accepts(text);
  };
  const auto hermes = ToolFormat::hermes, mistral = ToolFormat::mistral;
  EXPECT_TRUE(accepts(hermes, R"({"name": "f", "arguments": {"a": 7}})"));
  EXPECT_FALSE(accepts(hermes, R"({"name": "f", "arguments": {"a": 17}})"));
  EXPECT_FALSE(accepts(hermes, R"({"name": "f", "arguments": {}})"));
  EXPECT_TRUE(accepts(hermes, R"({"name": "g", "arguments": {"z": [1]}})"));
  EXPECT_FALSE(accepts(hermes, R"({"name": "h", "arguments": {}})"));
  EXPECT_TRUE(accepts(ToolFormat::llama, R"({"name": "f", "parameters": {"a": 7}})"));
  const std::string one = R"({"name": "f", "arguments": {"a": 7}})";
  EXPECT_TRUE(accepts(mistral, "[" + one + ", " + one + "]"));
  EXPECT_FALSE(accepts(mistral, "[" + one + ", " + one + "]", false));
  EXPECT_FALSE(accepts(mistral, "[]"));
}

/// Models whose templates show the formats. Random weights never call a tool by themselves: "regex" makes them.
class ToolServer : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    write_test_model(folder_ / "tiny");
    io::write_file_atomic(folder_ / "tiny/chat_template.jinja",
                          std::string(kTestTemplate) + "{# " + GetParam() + " #}");
    auto c = RunningServer::config();
    c.engine.model = (folder_ / "tiny").string();
    server_.emplace(c);
  }
  static json body(const json& more) {
    json b{{"messages", {{{"role", "user"}, {"content", "q"}}}},
           {"tools",
            {tool("f", {{"type", "object"},
                        {"properties", {{"n", {{"enum", {1, 2, 3}}}}}},
                        {"required", {"n"}},
                        {"additionalProperties", false}})}}};
    b.update(more);
    return b;
  }
  json post(const json& b, int status = 200) const {
    const auto r = server_->ask("POST", "/v1/chat/completions", b.dump());
    EXPECT_EQ(r.status, status) << r.body;
    return r.json();
  }
  /// The choice that the events of a stream make together.
  json streamed(json b) const {
    b["stream"] = true;
    json message{{"content", ""}, {"tool_calls", json::array()}}, choice;
    for (const auto& e : events_of(server_->ask("POST", "/v1/chat/completions", b.dump()).body)) {
      const auto& delta = e["choices"][0]["delta"];
      message["content"] = message["content"].get<std::string>() + delta.value("content", "");
      for (auto call : delta.value("tool_calls", json::array())) {
        EXPECT_EQ(call["index"], message["tool_calls"].size());
        call.erase("index");
        message["tool_calls"].push_back(call);
      }
      choice["finish_reason"] = e["choices"][0]["finish_reason"];
    }
    choice["message"] = message;
    return choice;
  }
  static void expect_call(const json& choice, const std::string& content) {
    ASSERT_EQ(choice["finish_reason"], "tool_calls") << choice;
    const auto& message = choice["message"];
    EXPECT_EQ(message["content"].is_null() ? "" : message["content"], content);
    ASSERT_EQ(message["tool_calls"].size(), 1u) << choice;
    const auto& call = message["tool_calls"][0];
    EXPECT_EQ(call["type"], "function");
    EXPECT_EQ(call["id"].get<std::string>().size(), 9u);
    EXPECT_EQ(call["function"]["name"], "f");
    const auto arguments = json::parse(call["function"]["arguments"].get<std::string>());
    EXPECT_TRUE(arguments["n"] == 1 || arguments["n"] == 2 || arguments["n"] == 3) << arguments;
  }
  io::TempFolder folder_;
  std::optional<RunningServer> server_;
};

TEST_P(ToolServer, required_and_named_tools_are_called) {
  for (const auto& choice : {json("required"), json{{"type", "function"}, {"function", {{"name", "f"}}}}}) {
    const auto b = body({{"tool_choice", choice}});
    expect_call(post(b)["choices"][0], "");
    expect_call(streamed(b), "");
  }
}

TEST_P(ToolServer, calls_of_free_answers_are_found) {
  const std::string format = GetParam(), name = "\\{\"name\": \"f\", ";
  const std::string call = format == "ipython" ? name + "\"parameters\": \\{\"n\": [1-3]\\}\\}"
                                               : name + "\"arguments\": \\{\"n\": [1-3]\\}\\}";
  const auto pattern = format == "<tool_call>"    ? "(I see\\. )<tool_call>" + call + "</tool_call>"
                       : format == "[TOOL_CALLS]" ? "(I see\\. )\\[TOOL_CALLS\\]\\[" + call + "\\]"
                                                  : call;
  const auto b = body({{"regex", pattern}});
  const std::string content = format == "ipython" ? "" : "I see.";
  expect_call(post(b)["choices"][0], content);
  expect_call(streamed(b), content);
  const auto none = post(body({{"regex", pattern}, {"tool_choice", "none"}}))["choices"][0];
  EXPECT_EQ(none["finish_reason"], "stop");
  EXPECT_FALSE(none["message"].contains("tool_calls"));
  const auto text = post(body({{"regex", "Nothing to call: [0-9]"}}))["choices"][0];
  EXPECT_EQ(text["message"]["content"].get<std::string>().substr(0, 17), "Nothing to call: ");
  EXPECT_EQ(text["finish_reason"], "stop");
}

TEST_P(ToolServer, mistakes_are_named) {
  const auto error = [&](const json& more) -> std::string { return post(body(more), 400)["error"]["message"]; };
  EXPECT_NE(error({{"tool_choice", "any"}}).find("\"none\", \"auto\", \"required\", or"), std::string::npos);
  EXPECT_NE(
      error({{"tool_choice", {{"type", "function"}, {"function", {{"name", "g"}}}}}}).find("there is no tool \"g\""),
      std::string::npos);
  EXPECT_NE(error({{"tool_choice", "required"}, {"tools", json::array()}}).find("needs \"tools\""), std::string::npos);
  EXPECT_NE(error({{"tools", {{{"name", "f"}}}}}).find("\"type\": \"function\""), std::string::npos);
  EXPECT_NE(error({{"tool_choice", "required"}, {"regex", "a"}}).find("form of its own"), std::string::npos);
  EXPECT_NE(error({{"tool_choice", "required"}, {"tools", {tool("f", {{"type", "text"}})}}}).find("type"),
            std::string::npos);
}

TEST_P(ToolServer, arguments_of_earlier_calls_are_objects_for_the_template) {
  io::write_file_atomic(
      folder_ / "tiny/chat_template.jinja",
      "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments.n }};{% endfor "
      "%}{% endfor %}");
  auto c = RunningServer::config();
  c.engine.model = (folder_ / "tiny").string();
  const RunningServer server(c);
  const json calls =
      json::array({{{"id", "1"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{\"n\": 42}"}}}}});
  const json b{{"messages", {{{"role", "assistant"}, {"content", nullptr}, {"tool_calls", calls}}}}};
  const auto r = server.ask("POST", "/tokenize", b.dump());
  EXPECT_EQ(server.ask("POST", "/detokenize", json{{"tokens", r.json()["tokens"]}}.dump()).json()["prompt"], "42;")
      << r.body;
}

INSTANTIATE_TEST_SUITE_P(all, ToolServer, testing::Values("<tool_call>", "[TOOL_CALLS]", "ipython"), [](const auto& i) {
  return std::string(i.index == 0 ? "hermes" : i.index == 1 ? "mistral" : "llama");
});

TEST(tool_calls, required_works_without_a_format) {
  const RunningServer server;
  const json b{{"messages", {{{"role", "user"}, {"content", "q"}}}},
               {"tools", {tool("f", {{"type", "object"}, {"additionalProperties", false}})}},
               {"tool_choice", "required"}};
  const auto choice = server.ask("POST", "/v1/chat/completions", b.dump()).json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls") << choice;
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{}") << choice;
}

}  // namespace
}  // namespace hpcdl::serve
