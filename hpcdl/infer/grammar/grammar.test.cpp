// What each kind of grammar accepts and refuses, text by text.

#include "hpcdl/infer/grammar/grammar.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hpcdl/core/error.h"

namespace hpcdl::infer {
namespace {

using Texts = std::vector<std::string>;

void expect(const std::shared_ptr<const Grammar>& grammar, const Texts& accepted, const Texts& refused) {
  for (const auto& text : accepted) EXPECT_TRUE(grammar->accepts(text)) << text;
  for (const auto& text : refused) EXPECT_FALSE(grammar->accepts(text)) << text;
}

void expect_schema(const std::string& schema, const Texts& accepted, const Texts& refused) {
  SCOPED_TRACE(schema);
  expect(Grammar::json_schema(schema), accepted, refused);
}

/// The schema is refused, with this in the message.
template <class F> void expect_error(F&& make, const std::string& part, const std::string& what) {
  try {
    make();
    ADD_FAILURE() << what << " was accepted; expected an error with: " << part;
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << what << "\n  " << e.what() << "\n  " << part;
  }
}
void expect_refused(const std::string& schema, const std::string& part) {
  expect_error([&] { Grammar::json_schema(schema); }, part, schema);
}

TEST(json_object, is_any_object) {
  expect(Grammar::json_object(),
         {R"({})", R"({ })", R"({"a":1})", R"({"a": [1, 2.5e-3, -0, "x\n\u00e9\ud83d\ude00", null, true, {}]})",
          "{\n  \"a\": {\n    \"b\": []\n  }\n}", R"({"":""})", "{\"é\": \"日本\xF0\x9F\x98\x80\"}"},
         {"",
          "1",
          "[]",
          "{",
          "{}}",
          R"({"a"})",
          R"({"a":})",
          R"({"a":1,})",
          R"({,})",
          R"({a:1})",
          R"({"a":01})",
          R"({"a":1.})",
          R"({"a":.5})",
          R"({"a":+1})",
          "{\"a\":\"\n\"}",
          R"({"a":"\x"})",
          R"({"a":"\ud83d"})",
          R"({"a":"\ude00"})",
          "{\"a\":\"\xFF\"}",
          "{\"a\":\"\xED\xA0\x80\"}",
          R"({  })",
          " {}",
          "{} "});
  std::string deep, closing;
  for (int i = 0; i < 100; ++i) deep += "{\"a\":", closing += "}";
  EXPECT_TRUE(Grammar::json_object()->accepts(deep + "1" + closing));
  for (int i = 0; i < 20; ++i) deep += "{\"a\":", closing += "}";
  EXPECT_FALSE(Grammar::json_object()->accepts(deep + "1" + closing));
}

TEST(json_schema, types) {
  expect_schema(R"({"type":"null"})", {"null"}, {"", "nul", "0", "nulll"});
  expect_schema(R"({"type":"boolean"})", {"true", "false"}, {"null", "truefalse"});
  expect_schema(R"({"type":"integer"})", {"0", "-0", "7", "-12", "123456789012345678"},
                {"", "-", "01", "1.0", "1e3", "1234567890123456789"});
  expect_schema(R"({"type":"number"})", {"0", "1.5", "-0.25", "1e9", "1.5E-3", "2e+07"},
                {"1.", ".5", "1e", "1e100", "--1"});
  expect_schema(R"({"type":["string","null"]})", {"\"\"", "null", "\"a\""}, {"1", "\"a", "a\""});
  expect_schema(R"({"type":"array"})", {"[]", "[ ]", "[1,\"a\",[{}]]", "[1, 2]"}, {"[1,]", "[,1]", "[1 2]", "[1 , 2]"});
  expect_schema("true", {"1", "{}", "[null]"}, {"", "x"});
  expect_schema("{}", {"1", "{}", "[null]"}, {"", "x"});
}

TEST(json_schema, enum_and_const) {
  expect_schema(R"({"enum":["red","green",3,null,{"a":[1,2]},"re"]})",
                {"\"red\"", "\"green\"", "3", "null", "{\"a\":[1,2]}", "{\"a\": [1, 2]}", "\"re\""},
                {"\"blue\"", "\"r\"", "4", "{\"a\":[1]}"});
  expect_schema(R"({"const":"a\"b\\c\n\u0001é"})", {"\"a\\\"b\\\\c\\n\\u0001é\""}, {"\"abc\""});
  expect_schema(R"({"type":"string","enum":["a",1,"bcd"],"maxLength":2})", {"\"a\""}, {"1", "\"bcd\""});
}

TEST(json_schema, objects) {
  const std::string schema =
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"boolean"},"c":{"type":"null"}},
          "required":["b"],"additionalProperties":false})";
  expect_schema(schema,
                {R"({"a":1,"b":true,"c":null})", R"({"b":true})", R"({"a":1,"b":true})", R"({"b":true,"c":null})",
                 "{\n\t\"b\": true\n}"},
                {R"({})", R"({"a":1})", R"({"b":true,"a":1})", R"({"b":true,"d":1})", R"({"b":true,})", R"({"b":1})",
                 R"({"b":true,"b":true})"});
  expect_schema(
      R"({"type":"object","properties":{"ab":{"type":"integer"},"a":{}},"additionalProperties":{"type":"string"}})",
      {R"({})", R"({"ab":1})", R"({"x":"y"})", R"({"ab":1,"abc":"x","é":"x","":"x","b\n":"q"})", R"({"a":"s"})"},
      {R"({"x":1})", R"({"ab":"x"})", R"({"a\u0062":"x"})", R"({"x":"y","ab":1})", R"({"x":"y",})", R"({,"x":"y"})"});
  expect_schema(R"({"type":"object","required":["z"]})", {R"({"z":1})", R"({"z":{},"y":2})"}, {R"({})", R"({"y":2})"});
  expect_schema(R"({"type":"object","additionalProperties":false})", {"{}"}, {R"({"a":1})"});
  expect_schema(R"({"properties":{"a":false,"b":{"type":"null"}}})", {"{}", R"({"b":null})", R"({"c":1})"},
                {R"({"a":1})"});
}

TEST(json_schema, arrays) {
  expect_schema(R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3})", {"[1,2]", "[1, 2, 3]"},
                {"[]", "[1]", "[1,2,3,4]", "[1,\"a\"]"});
  expect_schema(R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}],"items":false})",
                {"[]", "[1]", "[1,\"a\"]"}, {"[\"a\"]", "[1,\"a\",1]"});
  expect_schema(R"({"type":"array","prefixItems":[{"type":"integer"}],"items":{"type":"null"},"minItems":3})",
                {"[1,null,null]", "[1,null,null,null]"}, {"[1,null]", "[1,1,null]"});
  std::string forty = "[0", more;
  for (int i = 1; i < 40; ++i) forty += ",0";
  expect_schema(R"({"type":"array","items":{"const":0},"minItems":40,"maxItems":50})", {forty + "]", forty + ",0]"},
                {forty.substr(0, forty.size() - 2) + "]", forty + forty.substr(2) + "]"});
}

TEST(json_schema, integer_bounds_are_exact) {
  expect_schema(R"({"type":"integer","minimum":-15,"maximum":123})", {"-15", "-1", "0", "9", "99", "123"},
                {"-16", "-0", "124", "200", "1000", "00"});
  for (const auto& [low, high] :
       std::vector<std::pair<int, int>>{{0, 0}, {-120, -7}, {95, 1005}, {-1, 1}, {10, 99}, {-2000, 31}}) {
    const auto grammar = Grammar::json_schema("{\"type\":\"integer\",\"minimum\":" + std::to_string(low) +
                                              ",\"exclusiveMaximum\":" + std::to_string(high + 1) + "}");
    for (int i = -2500; i <= 2500; ++i)
      EXPECT_EQ(grammar->accepts(std::to_string(i)), low <= i && i <= high) << i << " in " << low << ".." << high;
  }
  expect_schema(R"({"type":"integer","minimum":0.5,"maximum":2.5})", {"1", "2"}, {"0", "3"});
}

TEST(json_schema, number_bounds_are_exact) {
  const auto grammar = Grammar::json_schema(R"({"type":"number","minimum":-1.25,"exclusiveMaximum":10.5})");
  for (int i = -2000; i <= 2000; ++i) {
    const bool negative = i < 0;
    const int n = negative ? -i : i;
    std::string text = (negative ? "-" : "") + std::to_string(n / 100);
    const std::string fraction = std::to_string(n % 100);
    text += "." + std::string(2 - fraction.size(), '0') + fraction;
    EXPECT_EQ(grammar->accepts(text), -125 <= i && i < 1050) << text;
  }
  expect(grammar, {"0", "-1", "10", "10.49999", "-0.5", "-1.2500"},
         {"-2", "11", "10.5", "10.50", "-1.2501", "-0", "1e0"});
  expect_schema(R"({"type":"number","exclusiveMinimum":0})", {"0.1", "0.00001", "1", "300"}, {"0", "0.0", "-1"});
  expect_schema(R"({"type":"number","minimum":1e-7,"maximum":0.001})", {"0.0000001", "0.001"},
                {"0.00000009", "0.0011", "0"});
}

TEST(json_schema, strings) {
  expect_schema(R"({"type":"string","minLength":2,"maxLength":3})",
                {"\"ab\"", "\"a\\u00e9c\"", "\"日本語\"", "\"\\ud83d\\ude00x\""}, {"\"a\"", "\"abcd\"", "\"日本語x\""});
  const std::string text(300, 'x');
  expect_schema(R"({"type":"string","minLength":299,"maxLength":300})",
                {"\"" + text + "\"", "\"" + text.substr(1) + "\""},
                {"\"" + text.substr(2) + "\"", "\"" + text + "x\""});
  expect_schema(R"({"type":"string","pattern":"^[a-z]+-\\d{2}$"})", {"\"ab-12\""},
                {"\"ab-1\"", "\"-12\"", "\"ab-123\""});
  expect_schema(R"({"type":"string","pattern":"b"})", {"\"b\"", "\"abc\"", "\"\\\"b\""}, {"\"ac\""});
  expect_schema(R"({"type":"string","pattern":"^(a|\"|\\n)*$","maxLength":3})", {"\"\"", "\"a\\\"\\n\""},
                {"\"aaaa\"", "\"b\""});
  expect_schema(R"({"type":"string","pattern":"^a+$","minLength":3})", {"\"aaa\"", "\"aaaaaa\""}, {"\"aa\""});
  expect_schema(R"({"type":"string","format":"date"})", {"\"2024-02-29\"", "\"2023-12-31\"", "\"2000-02-29\""},
                {"\"2023-02-29\"", "\"1900-02-29\"", "\"2023-04-31\"", "\"0000-01-01\"", "\"2023-1-1\""});
  expect_schema(R"({"type":"string","format":"date-time"})",
                {"\"2024-02-29T23:59:59Z\"", "\"2024-02-29T00:00:00.25+01:30\""},
                {"\"2024-02-29\"", "\"2024-02-29T24:00:00Z\""});
  expect_schema(R"({"type":"string","format":"uuid"})", {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123e4567\""});
}

TEST(json_schema, combinations) {
  expect_schema(R"({"anyOf":[{"type":"integer"},{"type":"string","maxLength":1}]})", {"1", "\"a\""},
                {"\"ab\"", "null"});
  expect_schema(R"({"oneOf":[{"type":"integer"},{"type":"null"}]})", {"1", "null"}, {"\"ab\""});
  expect_schema(
      R"({"oneOf":[{"type":"object","properties":{"t":{"const":"a"},"x":{"type":"null"}},"required":["t","x"],"additionalProperties":false},
                             {"type":"object","properties":{"t":{"const":"b"}},"required":["t"],"additionalProperties":false}]})",
      {R"({"t":"a","x":null})", R"({"t":"b"})"}, {R"({"t":"a"})", R"({"t":"b","x":null})"});
  expect_schema(R"({"allOf":[{"$ref":"#/$defs/p"}],"description":"x","$defs":{"p":{"type":"integer","minimum":3}}})",
                {"3"}, {"2"});
  expect_schema(R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}},"additionalProperties":false,
                    "anyOf":[{"required":["a"]},{"required":["b"]}]})",
                {R"({"a":null})", R"({"b":null})", R"({"a":null,"b":null})"}, {"{}"});
  expect_schema(R"({"$ref":"#/$defs/n","maximum":9,"$defs":{"n":{"type":"integer","minimum":3}}})", {"3", "9"},
                {"2", "10"});
}

TEST(json_schema, recursion) {
  expect_schema(R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},
                    "next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v","next"],"additionalProperties":false}}})",
                {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":null}})"},
                {R"({"v":1})", R"({"v":1,"next":{}})"});
  expect_schema(R"({"type":"array","items":{"$ref":"#"}})", {"[]", "[[],[[]]]"}, {"[1]", "["});
  expect_refused(R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})", "no text matches");
  expect_refused(R"({"$ref":"#"})", "begin with itself");
  expect_refused(R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", "begin with itself");
}

TEST(json_schema, refuses_what_cannot_be_met) {
  expect_refused("false", "no text matches");
  expect_refused(R"({"enum":[]})", "#/enum: expected at least one value");
  expect_refused(R"({"type":[]})", "#/type: expected at least one type");
  expect_refused(R"({"type":"array","minItems":3,"maxItems":2})", "#/minItems: no array");
  expect_refused(R"({"type":"array","items":false,"minItems":1})", "#/minItems: no array");
  expect_refused(R"({"properties":{"a":{"type":"string","minLength":3,"maxLength":2}}})",
                 "#/properties/a/minLength: no string");
  expect_refused(R"({"type":"object","required":["a"],"additionalProperties":false})", "#/required: \"a\" is required");
  expect_refused(R"({"type":"integer","minimum":3,"maximum":2})", "#/minimum: no number");
  expect_refused(R"({"type":"integer","exclusiveMinimum":3,"exclusiveMaximum":4})", "no number");
  expect_refused(R"({"type":"string","enum":[1,2]})", "#/enum: no value");
  expect_refused(R"({"type":"string","pattern":"^a$","minLength":5})", "no text matches");
}

TEST(json_schema, refuses_what_cannot_be_enforced_with_its_pointer) {
  expect_refused(R"({"type":"object","properties":{"a/b":{"not":{}}}})",
                 "#/properties/a~1b/not: this keyword cannot be enforced");
  expect_refused(R"({"type":"string","maxlength":3})", "#/maxlength: unknown keyword; did you mean \"maxLength\"?");
  expect_refused(R"({"type":"array","uniqueItems":true})", "#/uniqueItems");
  expect_refused(R"({"type":"number","multipleOf":3})", "#/multipleOf");
  expect_refused(R"({"$ref":"other.json"})", "#/$ref: expected a pointer into this document");
  expect_refused(R"({"$ref":"#/$defs/x"})", "#/$ref: \"#/$defs/x\" does not exist");
  expect_refused(R"({"type":"string","format":"email"})", "#/format: the format \"email\" cannot be enforced");
  expect_refused(R"s({"type":"string","pattern":"(?=a)"})s", "schema, #/pattern, line 1, column 3: look-around");
  expect_refused(R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "#/oneOf: alternatives 0 and 1 may overlap");
  expect_refused(R"({"type":"object","minProperties":1})", "#/minProperties");
  expect_refused(R"({"type":"text"})", "#/type: expected null, boolean");
  expect_refused(R"({"type":"array","items":[{}]})", "#/items: expected a schema, found a list");
  expect_refused(R"({"type":"string","minLength":-1})", "#/minLength: expected a whole number");
  expect_refused(R"({"a":1,"a":2})", "appears twice");
  expect_refused(R"({)", "expected JSON");
  expect_refused(R"([])", "expected a schema");
  expect_refused(R"({"anyOf":[]})", "#/anyOf: expected a list of at least one");
  expect_refused(R"({"anyOf":[{"type":"integer"},3]})", "#/anyOf/1: expected a schema");
}

TEST(regex, matches_whole_texts) {
  const auto texts = [](const std::string& pattern, const Texts& accepted, const Texts& refused) {
    SCOPED_TRACE(pattern);
    expect(Grammar::regex(pattern), accepted, refused);
  };
  texts("a|b*c?", {"a", "", "bbb", "bc", "c"}, {"ac", "cc"});
  texts("^(foo|bar){2,3}$", {"foobar", "barbarfoo"}, {"foo", "foobarfoobar"});
  texts(R"([^\d\s]+\.[[:upper:]]{2})", {"é.AB"}, {"1.AB", ".AB", "a.Ab"});
  texts(".", {"a", "é", "\xF0\x9F\x98\x80"}, {"", "\n", "ab", "\xC3", "\x80"});
  texts("[]a-]+", {"]a-"}, {"b"});
  texts(R"(\p{Lu}\p{L}*)", {"Été", "A"}, {"été", "1"});
  texts("[a-z]{1000}", {std::string(1000, 'q')}, {std::string(999, 'q'), std::string(1001, 'q')});
  texts("(a|aa){20,30}b", {std::string(20, 'a') + "b", std::string(60, 'a') + "b"},
        {std::string(19, 'a') + "b", std::string(61, 'a') + "b"});
  texts("(a*)*", {"", "aaa"}, {"b"});
  texts("((a?){3}b?){2}", {"", "aaabaaab", "b"}, {"aaaaaaa"});
  texts("a{2}{3", {"aa{3"}, {"aaaaaa"});
}

TEST(regex, refuses_with_the_place) {
  const auto refused = [](const std::string& pattern, const std::string& part) {
    expect_error([&] { Grammar::regex(pattern); }, part, pattern);
  };
  refused("a(?=b)", "column 4: look-around");
  refused(R"((a)\1)", "back-references");
  refused(R"(\bword)", "word boundaries");
  refused("(a", "expected \")\"");
  refused("a)", "without \"(\"");
  refused("[a", "expected \"]\"");
  refused("*a", "expected something to repeat");
  refused("a**", "two in a row");
  refused("[z-a]", "from a lower to a higher");
  refused("a^b", "\"^\" and \"$\"");
  refused("(?i)a", "flags");
  refused("a{1000000}", "at most 100000");
  refused("(((a{1000}){1000}){1000}b?)", "at most 200000 states");
  refused("[^\\x{0}-\\x{10ffff}]", "no text matches");
  refused("\xFF", "expected UTF-8");
}

TEST(gbnf, follows_its_notation) {
  const auto texts = [](const std::string& grammar, const Texts& accepted, const Texts& refused) {
    SCOPED_TRACE(grammar);
    expect(Grammar::gbnf(grammar), accepted, refused);
  };
  texts("root ::= \"yes\" | \"no\"", {"yes", "no"}, {"", "yesno"});
  texts(R"(# moves of chess
root ::= (
    # it must start with "1. "
    "1. " move " " move "\n"
    ([1-9] [0-9]? ". " move " " move "\n")+
)
move ::= (pawn | nonpawn | castle) [+#]?
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn    ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle  ::= "O-O" "-O"?
)",
        {"1. e4 e5\n2. Nf3 Nc6\n", "1. e4 O-O-O+\n12. axb8=Q# Kd1\n"}, {"1. e4 e5\n", "1. e9 e5\n2. Nf3 Nc6\n"});
  texts("root ::= expr\nexpr ::= term ([-+*/] term)*\nterm ::= num | \"(\" expr \")\"\nnum ::= [0-9]+\n",
        {"1+2*(3-4)", "((7))"}, {"1+", "()", "(1"});
  texts("root ::= item{2,3} [^\\n]{,2} .\nitem ::= \"ab\"", {"ababx", "abababxyz"}, {"ab", "abababxyzz"});
  texts("root ::= \"a\" root | \"b\"", {"b", "aaab", std::string(500, 'a') + "b"}, {"a", ""});
  texts("root ::= [\\x41-\\u00e9]* \"\\\"\\\\\"", {"Aé\"\\"}, {"!\"\\"});
  texts("root ::= a |\n  b\na ::= \"a\"\nb ::=\n  \"b\"", {"a", "b"}, {"c"});
  texts("root ::= \"\" | x*\nx ::= \"\" | \"y\"", {"", "yy"}, {"z"});
}

TEST(gbnf, refuses_with_the_place) {
  const auto refused = [](const std::string& grammar, const std::string& part) {
    expect_error([&] { Grammar::gbnf(grammar); }, part, grammar);
  };
  refused("a ::= \"x\"", "expected a rule \"root\"");
  refused("root ::= b", "line 1, column 10: expected a definition of the rule b");
  refused("root ::= root \"x\" | \"y\"", "the rule root can begin with itself");
  refused("root ::= a root \"x\" | \"y\"\na ::= \"a\"?", "can begin with itself");
  refused("root ::= \"a\" root", "no text matches");
  refused("root ::= \"a\nb\"", "line 1, column 12: expected a quote");
  refused("root := \"a\"", "expected \"::=\"");
  refused("root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: expected one definition");
  refused("root ::= (\"a\"", "expected \")\"");
  refused("root ::= <think>", "tokens of a vocabulary");
  refused("root ::= \"a\"{1000000}", "at most 100000");
  refused("root ::= \"\\q\"", "escapes");
}

}  // namespace
}  // namespace hpcdl::infer
