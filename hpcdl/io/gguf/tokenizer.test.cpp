// A tokenizer.json, written into a GGUF file and read from it, gives the same tokens.

#include "hpcdl/io/gguf/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/chat_template.h"
#include "hpcdl/io/gguf/file.h"
#include "hpcdl/io/gguf/image_for_tests.h"
#include "hpcdl/io/gguf/vocabulary.h"
#include "hpcdl/io/gguf/writer.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::io {
namespace {

const fs::path kGolden = fs::path(HPCDL_SOURCE_DIR) / "hpcdl/io/golden";

struct Both {
  TempFolder tmp;
  fs::path folder, file;

  explicit Both(const std::string& golden, std::int64_t vocab = 0) : folder(tmp / "model"), file(tmp / "model.gguf") {
    fs::create_directories(folder);
    fs::copy_file(kGolden / golden, folder / "tokenizer.json");
    write_file_atomic(folder / "chat_template.jinja", "{{ bos_token }}{{ messages[0].content }}");
    GgufValues values;
    add_tokenizer(values, folder, vocab);
    GgufWriter(file, values, {}).commit();
  }
};

TEST(gguf_tokenizer, tokens_are_those_of_tokenizer_json) {
  const auto corpus = read_file(kGolden / "corpus.txt");
  for (const char* golden : {"gpt2.json", "llama3.json", "gpt4o.json", "llama2.json", "gemma.json"}) {
    const Both both(golden);
    const auto ours = Tokenizer::load(both.folder), theirs = Tokenizer::load(both.file);
    ASSERT_EQ(ours.vocab_size(), theirs.vocab_size()) << golden;
    for (std::size_t begin = 0; begin < corpus.size();) {
      const auto end = std::min(corpus.find('\n', begin), corpus.size());
      const auto line = replace_invalid_utf8(std::string_view(corpus).substr(begin, end - begin));
      const auto want = ours.encode(line, true);
      ASSERT_EQ(theirs.encode(line, true), want) << golden << ": " << line;
      ASSERT_EQ(theirs.decode(want), ours.decode(want)) << golden << ": " << line;
      begin = end + 1;
    }
    EXPECT_EQ(theirs.encode(" a<unk>b</s><|end_of_text|> c"), ours.encode(" a<unk>b</s><|end_of_text|> c")) << golden;
    EXPECT_EQ(theirs.end_of_text(), ours.end_of_text()) << golden;
    EXPECT_EQ(theirs.prefix().size(), ours.prefix().size()) << golden;
    for (TokenId id = 0; id < ours.vocab_size(); ++id) {
      ASSERT_EQ(theirs.bytes_of(id), ours.bytes_of(id)) << golden << ": " << id;
      ASSERT_EQ(theirs.is_special(id), ours.is_special(id)) << golden << ": " << id;
    }
  }
}

TEST(gguf_tokenizer, names_fill_the_vocabulary_of_the_model) {
  const Both both("gpt2.json", 1000);
  EXPECT_EQ(Tokenizer::load(both.file).vocab_size(), 1000);
  EXPECT_EQ(Tokenizer::load(both.file).find("[PAD999]"), 999);
}

TEST(gguf_tokenizer, the_chat_template_knows_its_tokens) {
  const Both both("llama2.json");
  const auto chat = load_chat_template(both.file);
  ASSERT_TRUE(chat.has_value());
  EXPECT_EQ(chat->render(OrderedJson::parse(R"({"messages": [{"content": "hi"}]})")), "<s>hi");
  EXPECT_FALSE(load_chat_template(both.file, "other").has_value());
}

std::string error_of(const GgufImage& image) {
  const TempFolder tmp;
  write_file_atomic(tmp / "t.gguf", image.file());
  try {
    Tokenizer::load(tmp / "t.gguf");
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

TEST(gguf_tokenizer, what_is_missing_or_unknown_is_named) {
  const auto model = [](const char* name) { return GgufImage::words("tokenizer.ggml.model", name); };
  const auto pre = [](const char* name) { return GgufImage::words("tokenizer.ggml.pre", name); };
  const auto tokens = GgufImage::texts("tokenizer.ggml.tokens", {"a", "b"});
  const auto merges = GgufImage::texts("tokenizer.ggml.merges", {"a x"});
  const auto id = [](std::uint32_t n) { return GgufImage::number("tokenizer.ggml.eos_token_id", n); };
  const auto expect = [](std::vector<std::string> values, const std::string& part) {
    const auto what = error_of({.values = std::move(values)});
    EXPECT_NE(what.find(part), std::string::npos) << what;
    EXPECT_NE(what.find("t.gguf"), std::string::npos) << what;
  };
  expect({}, "expected a tokenizer in tokenizer.ggml.tokens, found none");
  expect({tokens}, "expected a value of tokenizer.ggml.model");
  expect({tokens, model("t5")}, "expected gpt2 or llama, found \"t5\"");
  expect({tokens, model("gpt2"), pre("new")}, "tokenizer.ggml.pre: expected one of gpt-2, ");
  expect({tokens, model("gpt2"), pre("gpt-2")}, "expected the merges");
  expect({tokens, model("gpt2"), pre("gpt-2"), merges}, "expected two tokens with a space between them, found \"a x\"");
  expect({tokens, model("llama")}, "expected 2 scores, one for each token, found 0");
  expect({tokens, model("llama"), GgufImage::list("tokenizer.ggml.token_type", 5, 1, GgufImage::bytes(1))},
         "expected 2 types, one for each token, found 1");
  const auto good = GgufImage::texts("tokenizer.ggml.merges", {"a b"});
  expect({tokens, model("gpt2"), pre("gpt-2"), good}, "merge 0 gives 'ab', which is not in the vocabulary");
  expect({GgufImage::texts("tokenizer.ggml.tokens", {"a", "b", "ab"}), model("gpt2"), pre("gpt-2"), good, id(3)},
         "eos_token_id: expected the number of one of 3 tokens, found 3");
}

}  // namespace
}  // namespace hpcdl::io
