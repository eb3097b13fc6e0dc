// Random schemas and patterns, with the original libraries as judges: what a random model writes under a schema is
// valid for jsonschema, documents that jsonschema finds valid are accepted, and patterns match what Python's re
// matches.

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/infer/grammar/grammar.h"
#include "hpcdl/infer/grammar/test_vocabulary.h"
#include "hpcdl/io/python_for_tests.h"

namespace hpcdl::infer {
namespace {

using Json = nlohmann::json;

class RandomGrammars : public testing::Test {
 protected:
  void SetUp() override {
    python_ = io::find_python("jsonschema");
    if (!python_) GTEST_SKIP() << "no Python with jsonschema; set HPCDL_PYTHON";
  }

  std::string run(const std::string& args) const {
    bool ok = false;
    const std::string script = io::read_file(std::string(HPCDL_SOURCE_DIR) + "/hpcdl/infer/grammar/random_grammars.py");
    std::string out = io::run_python(*python_, script, args, ok);
    EXPECT_TRUE(ok) << out;
    return out;
  }
  std::vector<Json> lines(const std::string& args) const {
    std::vector<Json> all;
    const std::string out = run(args);
    for (std::size_t begin = 0; begin < out.size();) {
      const std::size_t end = out.find('\n', begin);
      all.push_back(Json::parse(out.substr(begin, end - begin)));
      begin = end + 1;
    }
    return all;
  }

  std::optional<std::string> python_;
};

TEST_F(RandomGrammars, what_a_random_model_writes_is_valid_and_valid_documents_are_accepted) {
  const auto vocabulary = std::make_shared<const Vocabulary>(test_tokens());
  const std::array<std::int32_t, 1> eos = {0};
  std::mt19937 random(7);
  std::string written;
  int documents = 0, schemas = 0;
  for (const Json& line : lines("schemas 1 1000")) {
    const auto schema = line["schema"].get<std::string>();
    SCOPED_TRACE(schema);
    std::shared_ptr<const Grammar> grammar;
    ASSERT_NO_THROW(grammar = Grammar::json_schema(schema));
    ++schemas;
    for (const auto& document : line["documents"]) {
      ++documents;
      EXPECT_TRUE(grammar->accepts(document.get<std::string>())) << document.get<std::string>();
    }
    for (int walk = 0; walk < 2; ++walk) {
      const auto constraint = constrain(grammar, vocabulary, eos);
      const auto text = random_text(*constraint, *vocabulary, random);
      ASSERT_TRUE(text.has_value()) << "the text did not end";
      EXPECT_TRUE(grammar->accepts(*text)) << *text;
      written += Json{{"schema", schema}, {"text", *text}}.dump() + "\n";
    }
  }
  EXPECT_EQ(schemas, 1000);
  EXPECT_GT(documents, 3000);
  const io::TempFolder tmp;
  io::write_file_atomic(tmp / "written.jsonl", written);
  EXPECT_EQ(run("validate " + (tmp / "written.jsonl").string()), "valid 2000\n");
}

TEST_F(RandomGrammars, patterns_match_as_in_python) {
  int accepted = 0;
  for (const Json& line : lines("patterns 1 500")) {
    const auto pattern = line["pattern"].get<std::string>();
    SCOPED_TRACE(pattern);
    std::shared_ptr<const Grammar> grammar;
    ASSERT_NO_THROW(grammar = Grammar::regex(pattern));
    for (const auto& text : line["texts"]) {
      EXPECT_EQ(grammar->accepts(text[0].get<std::string>()), text[1].get<bool>()) << text[0];
      accepted += text[1].get<bool>();
    }
  }
  EXPECT_GT(accepted, 500);
}

}  // namespace
}  // namespace hpcdl::infer
