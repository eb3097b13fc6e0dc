// Exact comparison with the `tokenizers` library: golden/make_tokenizer_golden.py created the expected results.

#include "hpcdl/io/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/io/file.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::io {
namespace {

using json = nlohmann::json;

const fs::path kGolden = fs::path(HPCDL_SOURCE_DIR) / "hpcdl/io/golden";

std::string golden_text(const std::string& name) {
  const fs::path path = name == "corpus" ? kGolden / "corpus.txt" : kGolden / "odd_text" / (name + ".txt");
  return replace_invalid_utf8(read_file(path));
}

class GoldenTokenizer : public testing::TestWithParam<const char*> {
 protected:
  static const json& golden() {
    static const json all = json::parse(read_file(kGolden / "ids.json"));
    return all.at(GetParam());
  }
  static Tokenizer tokenizer() { return Tokenizer::load(kGolden / (std::string(GetParam()) + ".json")); }
};

TEST_P(GoldenTokenizer, encodes_token_for_token) {
  const Tokenizer t = tokenizer();
  for (const auto& [name, want] : golden().items()) {
    std::vector<TokenId> ids = t.encode(golden_text(name));
    if (want.contains("count")) {
      EXPECT_EQ(ids.size(), want["count"].get<std::size_t>()) << name;
      ids.resize(want["ids"].size());
    }
    EXPECT_EQ(ids, want["ids"].get<std::vector<TokenId>>()) << GetParam() << ": " << name;
    if (!want.contains("with_special")) continue;
    EXPECT_EQ(t.encode(golden_text(name), true), want["with_special"].get<std::vector<TokenId>>())
        << GetParam() << ": " << name;
  }
}

TEST_P(GoldenTokenizer, decodes_as_the_library_does) {
  const Tokenizer t = tokenizer();
  for (const auto& [name, want] : golden().items()) {
    if (!want.contains("decoded")) continue;
    const auto ids = want["ids"].get<std::vector<TokenId>>();
    EXPECT_EQ(t.decode(ids), want["decoded"].get<std::string>()) << GetParam() << ": " << name;
    StreamDecoder stream(t, false);
    std::string streamed;
    for (const TokenId id : ids) {
      const std::string part = stream.push(id);
      EXPECT_EQ(find_invalid_utf8(part), std::string::npos);
      streamed += part;
    }
    EXPECT_EQ(streamed + stream.finish(), t.decode(ids)) << GetParam() << ": " << name;
  }
}

TEST_P(GoldenTokenizer, survives_saving) {
  const TempFolder folder;
  const Tokenizer t = tokenizer();
  t.save_folder(folder.path(), 128);
  const Tokenizer back = Tokenizer::load(folder.path());
  EXPECT_EQ(back.vocab_size(), t.vocab_size());
  EXPECT_EQ(back.end_of_text(), t.end_of_text());
  EXPECT_EQ(back.to_json(), t.to_json());
  for (const auto& [name, want] : golden().items())
    EXPECT_EQ(back.encode(golden_text(name), true), t.encode(golden_text(name), true)) << name;
}

INSTANTIATE_TEST_SUITE_P(io, GoldenTokenizer,
                         testing::Values("gpt2", "llama3", "qwen2", "prefix_space", "gpt4o", "llama2", "gemma",
                                         "mistral", "t5", "unigram_bytes", "bert", "bert_cased"),
                         [](const auto& p) { return std::string(p.param); });

TEST(tokenizer, skips_special_tokens_when_asked) {
  const Tokenizer t = Tokenizer::load(kGolden / "gpt2.json");
  const TokenId eot = t.end_of_text().value();
  std::vector<TokenId> ids = t.encode("one");
  ids.push_back(eot);
  EXPECT_EQ(t.decode(ids), "one<|endoftext|>");
  EXPECT_EQ(t.decode(ids, true), "one");
  EXPECT_TRUE(t.is_special(eot));
}

TEST(tokenizer, holds_bytes_back_until_their_run_ends) {
  const Tokenizer t = Tokenizer::load(kGolden / "llama2.json");
  StreamDecoder stream(t);
  const auto byte = [&](int b) { return t.find(fmt::format("<0x{:02X}>", b)).value(); };
  EXPECT_EQ(stream.push(t.find("\u2581the").value()), "the");
  for (const int b : {0xE2, 0x82, 0xAC}) EXPECT_EQ(stream.push(byte(b)), "");
  EXPECT_EQ(stream.push(t.find("\u2581a").value()), "\u20AC a");
  EXPECT_EQ(stream.push(byte(0xE2)), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(t.bytes_of(byte(0xE2)), "\xE2");
  EXPECT_EQ(t.bytes_of(t.find("\u2581the").value()), " the");
  const Tokenizer bert = Tokenizer::load(kGolden / "bert.json");
  EXPECT_EQ(bert.bytes_of(bert.find("the").value()), " the");
  EXPECT_EQ(bert.bytes_of(bert.find("##s").value()), "s");
}

/// A text without words, as Llama 2 has them: the time must not grow with the square of its length.
TEST(tokenizer, encodes_a_long_text_as_one_word) {
  const Tokenizer t = Tokenizer::load(kGolden / "llama2.json");
  std::string text;
  while (text.size() < (1u << 20)) text += golden_text("corpus");
  const auto ids = t.encode(text);
  EXPECT_EQ(t.decode(ids), text);
}

TEST(tokenizer, refuses_models_that_cannot_work) {
  const auto parse = [](const char* file, const std::function<void(json&)>& change) {
    json root = json::parse(read_file(kGolden / file));
    change(root);
    return Tokenizer::parse(root.dump());
  };
  const auto message = [&](const char* file, const std::function<void(json&)>& change) {
    try {
      parse(file, change);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(message("bert.json", [](json& j) { j["model"]["unk_token"] = "nowhere"; }).find("unk_token 'nowhere'"),
            std::string::npos);
  EXPECT_NE(message("bert.json", [](json& j) { j["model"]["max_input_chars_per_word"] = 100000; }).find("up to 1000"),
            std::string::npos);
  EXPECT_NE(message("t5.json", [](json& j) { j["model"]["unk_id"] = 100000; }).find("unk_id 100000"),
            std::string::npos);
  EXPECT_NE(message("t5.json", [](json& j) { j["model"]["vocab"] = json::array(); }).find("empty"), std::string::npos);
  EXPECT_NE(message("t5.json", [](json& j) { j["model"]["vocab"][3] = {"a", "b"}; }).find("[token, score]"),
            std::string::npos);
  const Tokenizer t = parse("t5.json", [](json& j) { j["model"]["unk_id"] = nullptr; });
  EXPECT_THROW(t.encode("\u4E00"), Error);
}

std::string message_of(const auto& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(tokenizer, refuses_what_is_not_text_and_ids_outside) {
  const Tokenizer t = Tokenizer::load(kGolden / "gpt2.json");
  const std::string bad = message_of([&] { t.encode("abc\xff"); });
  EXPECT_NE(bad.find("0xFF at offset 3"), std::string::npos) << bad;
  EXPECT_NE(message_of([&] { t.decode(std::vector<TokenId>{700}); }).find("outside the vocabulary of 700"),
            std::string::npos);
  EXPECT_THROW(t.decode(std::vector<TokenId>{-1}), Error);
}

/// The GPT-2 golden tokenizer with one change.
std::string changed(const auto& change) {
  json root = json::parse(read_file(kGolden / "gpt2.json"));
  change(root);
  return root.dump();
}

TEST(tokenizer, names_the_feature_it_lacks) {
  const std::vector<std::pair<std::string, std::function<void(json&)>>> cases = {
      {"'WordLevel' is not supported", [](json& j) { j["model"]["type"] = "WordLevel"; }},
      {"'WordPiece' with pre_tokenizer ByteLevel", [](json& j) { j["model"]["type"] = "WordPiece"; }},
      {"dropout", [](json& j) { j["model"]["dropout"] = 0.1; }},
      {"byte_fallback", [](json& j) { j["model"]["byte_fallback"] = true; }},
      {"continuing_subword_prefix", [](json& j) { j["model"]["continuing_subword_prefix"] = "##"; }},
      {"'Punctuation' is not supported", [](json& j) { j["pre_tokenizer"] = {{"type", "Punctuation"}}; }},
      {"'Nmt' is not supported", [](json& j) { j["normalizer"] = {{"type", "Nmt"}}; }},
      {"not base64", [](json& j) { j["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "a?"}}; }},
      {"is cut", [](json& j) { j["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "/////w=="}}; }},
      {"decoder ByteLevel is not supported with no ByteLevel", [](json& j) { j["pre_tokenizer"] = nullptr; }},
      {"prepend_scheme 'last'",
       [](json& j) { j["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}}; }},
      {"decoder WordPiece is not supported with a ByteLevel",
       [](json& j) { j["decoder"] = {{"type", "WordPiece"}, {"prefix", "##"}}; }},
      {"'CTC' is not supported", [](json& j) { j["decoder"] = {{"type", "CTC"}}; }},
      {"'stop'", [](json& j) { j["decoder"] = {{"type", "Strip"}, {"content", " "}, {"start", 0}, {"stop", 1}}; }},
      {"MergedWithBoth",
       [](json& j) {
         j["pre_tokenizer"] = {
             {"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "MergedWithBoth"}, {"invert", false}};
       }},
      {"which is not supported",
       [](json& j) {
         j["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "\\bword\\b"}}}, {"behavior", "Isolated"}};
       }},
      {"cannot read the pattern",
       [](json& j) {
         j["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}, {"behavior", "Isolated"}};
       }},
  };
  for (const auto& [want, change] : cases) {
    const std::string text = changed(change);
    EXPECT_NE(message_of([&] { Tokenizer::parse(text); }).find(want), std::string::npos) << want;
  }
}

TEST(tokenizer, refuses_inconsistent_files) {
  const std::vector<std::pair<std::string, std::function<void(json&)>>> cases = {
      {"share the id", [](json& j) { j["model"]["vocab"]["zzz"] = 5; }},
      {"far beyond", [](json& j) { j["model"]["vocab"]["zzz"] = 2000000000; }},
      {"whole number", [](json& j) { j["model"]["vocab"]["zzz"] = -1; }},
      {"whole number", [](json& j) { j["model"]["vocab"]["zzz"] = 1.5; }},
      {"whole number", [](json& j) { j["model"]["vocab"]["zzz"] = 1e30; }},
      {"names 'qqqq'", [](json& j) { j["model"]["merges"].push_back("qqqq b"); }},
      {"not two tokens", [](json& j) { j["model"]["merges"].push_back("a b c"); }},
      {"neither", [](json& j) { j["model"]["merges"].push_back(7); }},
      {"gives 'ZQ'", [](json& j) { j["model"]["merges"].push_back({"Z", "Q"}); }},
      {"has no 'model'", [](json& j) { j.erase("model"); }},
      {"model is not an object", [](json& j) { j["model"] = 3; }},
      {"model is not an object", [](json& j) { j["model"] = nullptr; }},
      {"has no 'vocab'", [](json& j) { j["model"].erase("vocab"); }},
      {"far beyond", [](json& j) { j["added_tokens"][0] = {{"content", "<x>"}, {"id", 99999999}}; }},
      {"gives it 700: write 700", [](json& j) { j["added_tokens"][0] = {{"content", "<x>"}, {"id", 702}}; }},
      {"outside the vocabulary",
       [](json& j) { j["post_processor"] = {{"type", "BertProcessing"}, {"sep", {"x", 800}}, {"cls", {"y", 1}}}; }},
  };
  for (const auto& [want, change] : cases) {
    const std::string text = changed(change);
    const std::string message = message_of([&] { Tokenizer::parse(text); });
    EXPECT_NE(message.find(want), std::string::npos) << want << " in " << message;
  }
  const std::string whole = changed([](json&) {});
  for (std::size_t cut = 0; cut < whole.size(); cut += 997)
    EXPECT_THROW(Tokenizer::parse(whole.substr(0, cut)), Error) << cut;
  EXPECT_NE(message_of([] { Tokenizer::parse("[1", "x/t.json"); }).find("x/t.json: not JSON"), std::string::npos);
  EXPECT_THROW(Tokenizer::load("no/such/tokenizer.json"), Error);
}

}  // namespace
}  // namespace hpcdl::io
