#include "hpcdl/data/shards.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "hpcdl/core/error.h"
#include "hpcdl/io/temp_folder.h"

namespace hpcdl::data {
namespace {

using io::TempFolder;

std::vector<TokenId> counting(std::size_t n) {
  std::vector<TokenId> tokens(n);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

std::vector<TokenId> all_of(const TokenFile& f) {
  std::vector<TokenId> out(static_cast<std::size_t>(f.size()));
  f.read(0, out);
  return out;
}

std::string message_of(const auto& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(shards, the_bytes_are_those_of_llmc) {
  const TempFolder tmp;
  ShardWriter w(tmp / "a.bin", ShardLayout::llmc, 50257);
  w.append(std::vector<TokenId>{1, 258});
  w.append(std::vector<TokenId>{50256});
  w.finish();
  const std::string bytes = io::read_file(tmp / "a.bin");
  ASSERT_EQ(bytes.size(), 1024u + 6);
  std::int32_t head[4];
  std::memcpy(head, bytes.data(), sizeof head);
  EXPECT_EQ(head[0], 20240520);
  EXPECT_EQ(head[1], 1);
  EXPECT_EQ(head[2], 3);
  EXPECT_EQ(head[3], 0);
  EXPECT_EQ(bytes.substr(16, 1008), std::string(1008, '\0'));
  EXPECT_EQ(bytes.substr(1024), std::string("\x01\x00\x02\x01\x50\xC4", 6));
}

TEST(shards, wide_vocabularies_take_the_layout_of_llama3) {
  const TempFolder tmp;
  ShardWriter w(tmp / "a.bin", ShardLayout::llmc, 128256);
  w.append(std::vector<TokenId>{128255, 7});
  w.finish();
  const std::string bytes = io::read_file(tmp / "a.bin");
  ASSERT_EQ(bytes.size(), 1024u + 8);
  std::int32_t head[2];
  std::memcpy(head, bytes.data(), sizeof head);
  EXPECT_EQ(head[0], 20240801);
  EXPECT_EQ(head[1], 7);
  EXPECT_EQ(all_of(TokenFile::open(tmp / "a.bin")), (std::vector<TokenId>{128255, 7}));
}

TEST(shards, nanogpt_has_no_header) {
  const TempFolder tmp;
  ShardWriter w(tmp / "train.bin", ShardLayout::nanogpt, 65536);
  w.append(counting(3000));
  w.finish();
  EXPECT_EQ(fs::file_size(tmp / "train.bin"), 6000u);
  EXPECT_EQ(all_of(TokenFile::open(tmp / "train.bin")), counting(3000));
  EXPECT_THROW(ShardWriter(tmp / "wide.bin", ShardLayout::nanogpt, 65537), Error);
  EXPECT_THROW(parse_shard_layout("x"), UsageError);
}

TEST(shards, an_unfinished_file_does_not_appear) {
  const TempFolder tmp;
  {
    ShardWriter w(tmp / "a.bin", ShardLayout::llmc, 10);
    w.append(counting(5));
  }
  EXPECT_FALSE(fs::exists(tmp / "a.bin"));
}

TEST(shards, tokens_outside_the_vocabulary_are_refused_both_ways) {
  const TempFolder tmp;
  ShardWriter w(tmp / "a.bin", ShardLayout::llmc, 100);
  EXPECT_THROW(w.append(std::vector<TokenId>{100}), Error);
  EXPECT_THROW(w.append(std::vector<TokenId>{-1}), Error);
  w.append(counting(100));
  w.finish();
  const TokenFile f = TokenFile::open(tmp / "a.bin");
  f.check_below(100);
  EXPECT_NE(message_of([&] { f.check_below(50); }).find("token 50 at position 50 is outside the vocabulary of 50"),
            std::string::npos);
}

TEST(shards, headers_that_lie_are_refused) {
  const TempFolder tmp;
  ShardWriter w(tmp / "a.bin", ShardLayout::llmc, 100);
  w.append(counting(100));
  w.finish();
  const std::string good = io::read_file(tmp / "a.bin");
  const auto open_changed = [&](std::size_t word, std::int32_t value) {
    std::string bytes = good;
    std::memcpy(bytes.data() + 4 * word, &value, 4);
    io::write_file_atomic(tmp / "b.bin", bytes);
    return message_of([&] { TokenFile::open(tmp / "b.bin"); });
  };
  EXPECT_NE(open_changed(2, 99).find("the header says 99 tokens"), std::string::npos);
  EXPECT_NE(open_changed(2, -1).find("4294967295 tokens"), std::string::npos);
  EXPECT_NE(open_changed(3, -1).find("truncated?"), std::string::npos);
  EXPECT_NE(open_changed(1, 2).find("shard version 2, expected 1"), std::string::npos);
  EXPECT_NE(open_changed(0, 20240522).find("multiple-choice"), std::string::npos);
  for (std::size_t keep = 1024; keep < good.size(); keep += 13) {
    io::write_file_atomic(tmp / "c.bin", good.substr(0, keep));
    EXPECT_THROW(TokenFile::open(tmp / "c.bin"), Error) << keep;
  }
  io::write_file_atomic(tmp / "odd.bin", "abc");
  EXPECT_THROW(TokenFile::open(tmp / "odd.bin"), Error);
  io::write_file_atomic(tmp / "empty.bin", "");
  EXPECT_THROW(TokenFile::open(tmp / "empty.bin"), Error);
  EXPECT_THROW(TokenFile::open(tmp / "none.bin"), Error);
}

TEST(shards, reading_past_the_end_is_refused) {
  const TokenFile f = TokenFile::from_tokens(counting(10));
  std::vector<TokenId> out(4);
  f.read(6, out);
  EXPECT_EQ(out.back(), 9);
  EXPECT_THROW(f.read(7, out), Error);
  EXPECT_THROW(f.read(-1, out), Error);
}

TEST(shards, a_folder_is_its_files_in_order) {
  const TempFolder tmp;
  for (const char* name : {"train_1.bin", "train_0.bin", "val_0.bin"}) {
    ShardWriter w(tmp / name, ShardLayout::llmc, 10);
    w.append(counting(3));
    w.finish();
  }
  const fs::path folder[] = {tmp.path()};
  const auto files = open_token_files(folder, "train");
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].name(), (tmp / "train_0.bin").string());
  EXPECT_THROW(open_token_files(folder, "test"), Error);
}

}  // namespace
}  // namespace hpcdl::data
