#include "hpcdl/io/tokenizer_encoder.h"

#include <gtest/gtest.h>

#include "hpcdl/core/error.h"
#include "hpcdl/io/file.h"

namespace hpcdl::io {
namespace {

const fs::path kGolden = fs::path(HPCDL_SOURCE_DIR) / "hpcdl/io/golden";

/// A few megabytes of the golden texts, so that there are many tasks.
std::string large_text() {
  std::string text;
  for (int i = 0; i < 8; ++i) {
    text += read_file(kGolden / "corpus.txt");
    for (const auto& entry : fs::directory_iterator(kGolden / "odd_text"))
      text += replace_invalid_utf8(read_file(entry.path()));
  }
  return text;
}

class EncoderOf : public testing::TestWithParam<const char*> {};

TEST_P(EncoderOf, threads_change_nothing) {
  const Tokenizer t = Tokenizer::load(kGolden / (std::string(GetParam()) + ".json"));
  const std::string text = large_text();
  const std::vector<TokenId> want = t.encode(text);
  for (const int threads : {1, 2, 5}) {
    Pool pool(threads);
    Encoder encoder(t, pool);
    for (int repeat = 0; repeat < 2; ++repeat) {
      std::vector<TokenId> got;
      encoder.encode(text, got);
      ASSERT_TRUE(got == want) << threads << " threads";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(io, EncoderOf, testing::Values("gpt2", "llama3", "qwen2", "prefix_space", "gpt4o"));

TEST(encoder, separates_documents_and_keeps_empty_ones) {
  const Tokenizer t = Tokenizer::load(kGolden / "gpt2.json");
  const TokenId eot = t.end_of_text().value();
  Pool pool(2);
  Encoder encoder(t, pool);
  const std::string_view documents[] = {"one", "", "two words"};
  std::vector<TokenId> got, want;
  encoder.encode(documents, eot, got);
  for (const auto d : documents) {
    want.push_back(eot);
    for (const TokenId id : t.encode(d)) want.push_back(id);
  }
  EXPECT_EQ(got, want);
}

TEST(encoder, hands_errors_on) {
  const Tokenizer t = Tokenizer::load(kGolden / "gpt2.json");
  Pool pool(2);
  Encoder encoder(t, pool);
  std::vector<TokenId> out;
  EXPECT_THROW(encoder.encode(std::string_view("bad \xff"), out), Error);
  encoder.encode(std::string_view("good"), out);
  EXPECT_EQ(out, t.encode("good"));
}

}  // namespace
}  // namespace hpcdl::io
