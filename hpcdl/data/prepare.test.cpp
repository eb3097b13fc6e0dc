#include "hpcdl/data/prepare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "hpcdl/core/error.h"
#include "hpcdl/io/bpe_train.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::data {
namespace {

using io::TempFolder;

const fs::path kCorpus = fs::path(HPCDL_SOURCE_DIR) / "hpcdl/io/golden/corpus.txt";

std::vector<TokenId> all_of(const fs::path& path) {
  const TokenFile f = TokenFile::open(path);
  std::vector<TokenId> out(static_cast<std::size_t>(f.size()));
  f.read(0, out);
  return out;
}

const auto& merges_of(const io::Tokenizer& t) { return dynamic_cast<const io::BpeModel&>(t.model()).merges(); }

TEST(train_tokenizer, equals_the_library_for_any_number_of_threads) {
  const auto want = io::Tokenizer::load(kCorpus.parent_path() / "gpt2.json");
  for (const int threads : {1, 3}) {
    Pool pool(threads);
    const auto got = train_tokenizer({kCorpus}, {}, 700, pool);
    EXPECT_EQ(merges_of(got), merges_of(want));
  }
}

TEST(train_tokenizer, reports_both_stages) {
  std::vector<std::string> stages;
  Pool pool(1);
  train_tokenizer({kCorpus}, {}, 300, pool, [&](const TokenizeProgress& p) {
    EXPECT_LE(p.done, p.total);
    if (stages.empty() || stages.back() != p.stage) stages.emplace_back(p.stage);
  });
  EXPECT_EQ(stages, (std::vector<std::string>{"read", "merge"}));
}

TEST(train_tokenizer, separators_in_the_text_teach_nothing) {
  const TempFolder tmp;
  std::string text;
  for (int i = 0; i < 50; ++i) text += "some words<|endoftext|>";
  io::write_file_atomic(tmp / "t.txt", text);
  Pool pool(1);
  const auto t = train_tokenizer({tmp / "t.txt"}, {}, 400, pool);
  EXPECT_EQ(t.find("<|endoftext|>"), 0);
  EXPECT_FALSE(t.find("<|"));
  EXPECT_EQ(t.encode("some words<|endoftext|>").size(), 3u);
}

TEST(encode_files, documents_follow_separators) {
  const TempFolder tmp;
  io::write_file_atomic(tmp / "a.txt", "first text");
  io::write_file_atomic(tmp / "b.jsonl", "{\"text\": \"second\"}\n{\"text\": \"third one\"}\n");
  Pool pool(2);
  const auto t = io::Tokenizer::load(kCorpus.parent_path() / "gpt2.json");
  const TokenCounts counts =
      write_shard({tmp / "a.txt", tmp / "b.jsonl"}, {}, t, pool, tmp / "s.bin", ShardLayout::nanogpt);
  EXPECT_EQ(counts.documents, 3);
  const auto tokens = all_of(tmp / "s.bin");
  EXPECT_EQ(static_cast<std::int64_t>(tokens.size()), counts.tokens);
  EXPECT_EQ(t.decode(tokens), "<|endoftext|>first text<|endoftext|>second<|endoftext|>third one");
}

class Blocks : public testing::TestWithParam<const char*> {};

TEST_P(Blocks, change_nothing) {
  const TempFolder tmp;
  io::write_file_atomic(tmp / "b.jsonl", "{\"text\": \"second\"}\n{\"text\": \"third one\"}\n");
  Pool pool(2);
  const auto t = io::Tokenizer::load(kCorpus.parent_path() / GetParam());
  std::vector<TokenId> want;
  for (const std::string& text :
       {io::read_file(kCorpus), std::string("second"), std::string("third one"), io::read_file(kCorpus)}) {
    want.push_back(t.end_of_text().value());
    const auto ids = t.encode(text);
    want.insert(want.end(), ids.begin(), ids.end());
  }
  for (const std::size_t block : {std::size_t{100}, std::size_t{5000}, std::size_t{60000}, std::size_t{1} << 20}) {
    std::vector<TokenId> got;
    encode_files({kCorpus, tmp / "b.jsonl", kCorpus}, {.block_bytes = block}, t, pool,
                 [&](std::span<const TokenId> ids) { got.insert(got.end(), ids.begin(), ids.end()); });
    EXPECT_TRUE(got == want) << block << ": " << got.size() << " tokens, not " << want.size();
  }
}

INSTANTIATE_TEST_SUITE_P(encode_files, Blocks, testing::Values("gpt2.json", "prefix_space.json"));

TEST(encode_files, no_block_takes_an_added_token_apart) {
  const TempFolder tmp;
  std::string text;
  for (int i = 0; i < 60; ++i)
    text += "some words end of it  and more stop " + std::string(static_cast<std::size_t>(i % 7), 'x');
  io::write_file_atomic(tmp / "a.txt", text);
  Pool pool(2);
  io::BpeTraining training{.vocab_size = 259, .special = {"end of it", "stop", std::string(io::kEndOfText)}};
  const auto t = io::Tokenizer::from_bpe(io::train_bpe({}, training), {{.content = "end of it", .id = 0},
                                                                       {.content = "stop", .id = 1, .rstrip = true},
                                                                       {.content = training.special[2], .id = 2}});
  std::vector<TokenId> want = {2};
  const auto ids = t.encode(text);
  want.insert(want.end(), ids.begin(), ids.end());
  for (std::size_t block = 40; block < 160; ++block) {
    std::vector<TokenId> got;
    encode_files({tmp / "a.txt"}, {.block_bytes = block}, t, pool,
                 [&](std::span<const TokenId> some) { got.insert(got.end(), some.begin(), some.end()); });
    EXPECT_TRUE(got == want) << block << ": " << got.size() << " tokens, not " << want.size();
  }
}

TEST(encode_files, no_text_is_an_error) {
  const TempFolder tmp;
  io::write_file_atomic(tmp / "a.txt", "");
  Pool pool(1);
  const auto t = io::Tokenizer::load(kCorpus.parent_path() / "gpt2.json");
  EXPECT_THROW(write_shard({tmp / "a.txt"}, {}, t, pool, tmp / "s.bin", ShardLayout::llmc), Error);
  EXPECT_FALSE(fs::exists(tmp / "s.bin"));
  EXPECT_THROW(train_tokenizer({tmp / "a.txt"}, {}, 300, pool), Error);
  EXPECT_THROW(train_tokenizer({kCorpus}, {}, 256, pool), Error);
}

class Prepare : public testing::Test {
 protected:
  PrepareOptions options() const {
    return {.text = {text_}, .cache = tmp_ / "cache", .vocab = 500, .tokenizer = {}, .options = {}};
  }
  TempFolder tmp_;
  fs::path text_ = copy_corpus();
  Pool pool_{2};

 private:
  fs::path copy_corpus() const {
    fs::copy_file(kCorpus, tmp_ / "corpus.txt");
    return tmp_ / "corpus.txt";
  }
};

TEST_F(Prepare, makes_once_and_finds_again) {
  const PreparedText made = prepare_text(options(), pool_);
  EXPECT_FALSE(made.cached);
  EXPECT_EQ(made.tokenizer.vocab_size(), 500);
  EXPECT_NEAR(static_cast<double>(made.val_tokens) / static_cast<double>(made.train_tokens + made.val_tokens), 0.05,
              0.001);
  auto tokens = all_of(made.train);
  const auto val = all_of(made.val);
  tokens.insert(tokens.end(), val.begin(), val.end());
  EXPECT_EQ(made.tokenizer.decode(tokens), "<|endoftext|>" + io::read_file(text_));

  const PreparedText again = prepare_text(options(), pool_);
  EXPECT_TRUE(again.cached);
  EXPECT_EQ(again.folder, made.folder);
  EXPECT_EQ(again.train_tokens, made.train_tokens);

  PrepareOptions other = options();
  other.vocab = 400;
  EXPECT_NE(prepare_text(other, pool_).folder, made.folder);
  other = options();
  other.tokenizer = made.folder;
  const PreparedText given = prepare_text(other, pool_);
  EXPECT_NE(given.folder, made.folder);
  EXPECT_EQ(given.train_tokens, made.train_tokens);

  io::write_file_atomic(text_, io::read_file(text_) + "more");
  EXPECT_FALSE(prepare_text(options(), pool_).cached);
}

TEST_F(Prepare, two_callers_do_the_work_once) {
  int cached = 0;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      Pool pool(1);
      const bool found = prepare_text(options(), pool).cached;
      const std::scoped_lock lock(mutex);
      cached += found;
    });
  for (auto& t : threads) t.join();
  EXPECT_EQ(cached, 2);
}

TEST_F(Prepare, validation_begins_with_a_document_when_one_is_near) {
  std::string lines;
  for (int i = 0; i < 400; ++i) lines += fmt::format("{{\"text\": \"document number {} with some words\"}}\n", i);
  io::write_file_atomic(tmp_ / "d.jsonl", lines);
  PrepareOptions o = options();
  o.text = {tmp_ / "d.jsonl"};
  o.val_fraction = 0.1;
  const PreparedText p = prepare_text(o, pool_);
  EXPECT_EQ(all_of(p.val).front(), p.tokenizer.end_of_text());
  EXPECT_NEAR(static_cast<double>(p.val_tokens) / static_cast<double>(p.train_tokens + p.val_tokens), 0.1, 0.01);
}

TEST_F(Prepare, all_of_the_text_may_be_trained_on) {
  PrepareOptions o = options();
  const PreparedText some = prepare_text(o, pool_);
  o.val_fraction = 0;
  const PreparedText all = prepare_text(o, pool_);
  EXPECT_EQ(all.val_tokens, 0);
  EXPECT_EQ(all.train_tokens, some.train_tokens + some.val_tokens);
}

// The end-of-text token of tokenizer_config.json separates the documents, so a model trained on them must be configured
// to stop at it; and a different end gives different tokens for the same text and tokenizer.json.
TEST_F(Prepare, documents_end_with_the_token_of_the_tokenizers_folder) {
  PrepareOptions o = options();
  o.tokenizer = tmp_ / "tokenizer";
  io::make_folder(o.tokenizer);
  fs::copy_file(fs::path(HPCDL_SOURCE_DIR) / "hpcdl/io/golden/gpt2.json", o.tokenizer / "tokenizer.json");
  for (const std::string end : {"~", "^"}) {
    io::write_file_atomic(o.tokenizer / "tokenizer_config.json", fmt::format("{{\"eos_token\": \"{}\"}}", end));
    const PreparedText p = prepare_text(o, pool_);
    EXPECT_FALSE(p.cached);
    EXPECT_EQ(all_of(p.train).front(), io::Tokenizer::load(o.tokenizer).find(end));
    EXPECT_EQ(p.tokenizer.end_of_text(), p.tokenizer.find(end));
    EXPECT_EQ(prepare_text(o, pool_).tokenizer.end_of_text(), p.tokenizer.find(end));
  }
}

TEST_F(Prepare, leaves_nothing_behind_when_it_fails) {
  io::write_file_atomic(text_, "bad \xff text");
  EXPECT_THROW(prepare_text(options(), pool_), Error);
  io::write_file_atomic(text_, "a");
  EXPECT_THROW(prepare_text(options(), pool_), Error);
  for (const auto& entry : fs::directory_iterator(tmp_ / "cache"))
    EXPECT_TRUE(entry.path().extension() == ".lock") << entry.path();
  PrepareOptions o = options();
  o.val_fraction = 0.95;
  EXPECT_THROW(prepare_text(o, pool_), Error);
}

TEST_F(Prepare, repairs_a_cache_without_its_marker) {
  const PreparedText made = prepare_text(options(), pool_);
  fs::remove(made.folder / "made_from");
  EXPECT_FALSE(prepare_text(options(), pool_).cached);
  EXPECT_TRUE(prepare_text(options(), pool_).cached);
}

}  // namespace
}  // namespace hpcdl::data
