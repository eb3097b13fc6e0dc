// Bad GGUF files: each kind gives an Error that names what is wrong, and no mutation of a good file crashes.

#include <gtest/gtest.h>

#include <cstring>

#include "hpcdl/core/error.h"
#include "hpcdl/io/gguf/decode.h"
#include "hpcdl/io/gguf/header.h"
#include "hpcdl/io/gguf/image_for_tests.h"
#include "hpcdl/io/gguf/tokenizer.h"
#include "hpcdl/rng.h"

namespace hpcdl::io {
namespace {

constexpr std::uint64_t kHuge = std::uint64_t{1} << 63;

GgufHeader parse(const std::string& file) { return parse_gguf_header(std::as_bytes(std::span(file)), "bad.gguf"); }

void expect_error(const std::string& file, const std::string& part) {
  try {
    parse(file);
    ADD_FAILURE() << "accepted; expected an error with: " << part;
  } catch (const Error& e) {
    const std::string what = e.what();
    EXPECT_NE(what.find(part), std::string::npos) << "expected: " << part << "\nfound: " << what;
    EXPECT_NE(what.find("bad.gguf"), std::string::npos) << what;
    EXPECT_LT(what.size(), 600u);
  }
}

GgufImage one_tensor(std::vector<std::uint64_t> sizes, std::uint32_t type = 0, std::uint64_t offset = 0) {
  return {.tensors = {{"a", std::move(sizes), type, offset}}, .data_bytes = 64};
}

TEST(hostile_gguf, good_images_pass) {
  EXPECT_EQ(parse(GgufImage{}.file()).tensors.size(), 0u);
  EXPECT_EQ(parse(one_tensor({4, 2}).file()).tensors[0].shape, (Shape{2, 4}));
  EXPECT_EQ(parse(one_tensor({0, 1000000}).file()).tensors[0].bytes, 0);
  GgufImage wide = one_tensor({4});
  wide.values = {GgufImage::number("general.alignment", 64)};
  EXPECT_EQ(parse(wide.file() + std::string(64, 'd')).tensors[0].offset % 64, 0);
}

TEST(hostile_gguf, frames) {
  expect_error("", "at least 24 bytes, found 0");
  expect_error(std::string(24, 'x'), "begins with \"GGUF\"");
  expect_error(GgufImage{.version = 1}.file(), "version 2 or 3, found 1");
  expect_error(GgufImage{.version = 4}.file(), "version 2 or 3, found 4");
  expect_error(GgufImage{.version = 0x03000000}.file(), "big-endian");
  expect_error(GgufImage{.tensor_count = kHuge}.file(), "the number of tensors");
  expect_error(GgufImage{.value_count = kHuge}.file(), "the number of values");
  expect_error(GgufImage{.value_count = 1}.file(), "at most 0");
}

TEST(hostile_gguf, values) {
  const auto with = [](std::string value) { return GgufImage{.values = {std::move(value)}}.file(); };
  expect_error(with(GgufImage::bytes(kHuge) + std::string(40, 'k')), "a key needs 9223372036854775808 bytes");
  expect_error(with(GgufImage::value("k", 13, std::string(40, '\0'))), "\"k\": expected a kind of value from 0 to 12");
  expect_error(with(GgufImage::value("k", 8, GgufImage::bytes(kHuge) + std::string(40, '\0'))), "the value of \"k\"");
  expect_error(with(GgufImage::list("k", 8, kHuge, std::string(40, '\0'))), "the value of \"k\": expected at most");
  expect_error(with(GgufImage::list("k", 10, kHuge / 8, std::string(40, '\0'))),
               "the value of \"k\": expected at most");
  expect_error(with(GgufImage::list("k", 9, 1, std::string(40, '\0'))), "a list of lists");
  expect_error(GgufImage{.values = {GgufImage::number("k", 1), GgufImage::number("k", 2)}}.file(), "every key once");
  for (const std::uint32_t alignment : {0u, 3u, 1u << 21})
    expect_error(with(GgufImage::number("general.alignment", alignment)), "a power of two");
  expect_error(with(GgufImage::words("general.alignment", "32")), "expected a whole number");
}

TEST(hostile_gguf, tensors) {
  expect_error(one_tensor({}).file(), "1 to 4 dimensions, found 0");
  expect_error(one_tensor({1, 1, 1, 1, 1}).file(), "1 to 4 dimensions, found 5");
  expect_error(one_tensor({4}, 21).file(), "IQ3_S, which is not supported");
  expect_error(one_tensor({4}, 4000).file(), "number 4000, which is no known type");
  expect_error(one_tensor({33}, 8).file(), "blocks of 32 elements, found rows of 33");
  expect_error(one_tensor({kHuge, 2}).file(), "which need more");
  expect_error(one_tensor({std::uint64_t{1} << 32, std::uint64_t{1} << 31, 2}).file(), "which need more");
  expect_error(one_tensor({0, kHuge}).file(), "which need more");
  expect_error(one_tensor({4}, 0, kHuge).file(), "would begin at 9223372036854775808");
  expect_error(one_tensor({4}, 0, 8).file(), "at a multiple of 32");
  expect_error(one_tensor({16}, 0, 32).file(), "truncated");
  expect_error(one_tensor({17}).file(), "truncated");
  GgufImage image{.tensors = {{"a", {16}, 0, 0}, {"b", {8}, 0, 32}}, .data_bytes = 64};
  expect_error(image.file(), "\"b\": begins at");
  image.tensors[1] = {"a", {8}, 0, 0};
  expect_error(image.file(), "every tensor once");
  const auto good = one_tensor({16}).file();
  for (std::size_t n = 0; n < good.size(); ++n) EXPECT_THROW(parse(good.substr(0, n)), Error) << n;
}

GgufImage with_tokenizer() {
  const auto number = [](std::int32_t n) { return GgufImage::bytes(n); };
  return {.values = {GgufImage::words("general.architecture", "llama"),
                     GgufImage::words("tokenizer.ggml.model", "gpt2"), GgufImage::words("tokenizer.ggml.pre", "gpt-2"),
                     GgufImage::texts("tokenizer.ggml.tokens", {"a", "b", "ab", "<|end|>"}),
                     GgufImage::list("tokenizer.ggml.token_type", 5, 4, number(1) + number(1) + number(1) + number(3)),
                     GgufImage::texts("tokenizer.ggml.merges", {"a b"}),
                     GgufImage::number("tokenizer.ggml.eos_token_id", 3)},
          .tensors = {{"a", {32}, 8, 0}, {"b", {4, 2}, 1, 64}},
          .data_bytes = 96};
}

void use(const GgufHeader& header, const std::string& file) {
  for (const auto& t : header.tensors) {
    ASSERT_LE(static_cast<std::size_t>(t.offset + t.bytes), file.size());
    std::vector<float> out(static_cast<std::size_t>(info_of(t.type).elements));
    if (t.bytes > 0) decode_blocks(t.type, reinterpret_cast<const std::byte*>(file.data()) + t.offset, 1, out.data());
  }
  tokenizer_of(header.metadata).encode("abba<|end|>");
  end_tokens_of(header.metadata);
  chat_template_of(header.metadata, "default");
}

TEST(hostile_gguf, mutations_give_a_result_or_an_error) {
  const auto good = with_tokenizer().file();
  use(parse(good), good);
  const Rng rng{7, 1};
  std::uint64_t at = 0;
  for (int round = 0; round < 20'000; ++round) {
    auto bad = good;
    for (int i = 0; i < 1 + round % 4; ++i) {
      const auto place = rng.below(at++, bad.size());
      bad[place] = static_cast<char>(rng.below(at++, round % 3 == 0 ? 256 : 16));
    }
    try {
      use(parse(bad), bad);
    } catch (const Error&) {}
  }
}

}  // namespace
}  // namespace hpcdl::io
