// Bad safetensors files: each kind gives an Error that names what is wrong, and no mutation of a good file crashes.

#include <gtest/gtest.h>

#include <cstring>

#include "hpcdl/core/error.h"
#include "hpcdl/io/atomic_file.h"
#include "hpcdl/io/safetensors.h"
#include "hpcdl/io/temp_folder.h"
#include "hpcdl/rng.h"

namespace hpcdl::io {
namespace {

std::string image(const std::string& json, std::size_t data_bytes) {
  std::string out(8, '\0');
  const std::uint64_t n = json.size();
  std::memcpy(out.data(), &n, 8);
  return out + json + std::string(data_bytes, 'd');
}

SafeTensorsHeader parse(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file)), "bad.safetensors");
}

void expect_error(const std::string& file, const std::string& part) {
  try {
    parse(file);
    ADD_FAILURE() << "accepted; expected an error with: " << part;
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << "expected: " << part << "\nfound: " << e.what();
    EXPECT_NE(std::string(e.what()).find("bad.safetensors"), std::string::npos) << e.what();
    EXPECT_LT(std::strlen(e.what()), 600u);
  }
}

std::string entry(const std::string& shape, const std::string& offsets, const std::string& dtype = "F32") {
  return "{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}
std::string one(const std::string& shape, const std::string& offsets, const std::string& dtype = "F32") {
  return "{\"a\":" + entry(shape, offsets, dtype) + "}";
}

TEST(hostile_safetensors, good_images_pass) {
  EXPECT_EQ(parse(image("{}", 0)).tensors.size(), 0u);
  EXPECT_EQ(parse(image("{}      ", 0)).tensors.size(), 0u);
  EXPECT_EQ(parse(image(one("[2,3]", "[0,24]") + "   ", 24)).tensors[0].spec.size(), 6);
  EXPECT_EQ(parse(image(one("[]", "[0,4]"), 4)).tensors[0].spec.size(), 1);
  EXPECT_EQ(parse(image(one("[0,9223372036854775807]", "[0,0]"), 0)).tensors[0].spec.size(), 0);
  EXPECT_EQ(parse(image("{\"a\":" + entry("[0]", "[0,0]") + ",\"b\":" + entry("[1]", "[0,4]") + "}", 4)).tensors.size(),
            2u);
}

TEST(hostile_safetensors, frames) {
  expect_error("", "at least 8 bytes, found 0");
  expect_error("1234567", "at least 8 bytes, found 7");
  expect_error(std::string(8, '\xff'), "at most 100000000 are allowed");
  expect_error(image("{}", 0).substr(0, 9), "truncated");
  std::string huge(8, '\0');
  const std::uint64_t n = 100'000'000;
  std::memcpy(huge.data(), &n, 8);
  expect_error(huge + "{}", "header says 100000000 bytes at 8, file ends at 10");
  expect_error(image("", 0), "starts with '{'");
  expect_error(image(" {}", 0), "starts with '{'");
  expect_error(image("[]", 0), "starts with '{'");
}

TEST(hostile_safetensors, json) {
  for (const char* bad :
       {"{", "{\"a\"", "{\"a\":}", "{}x", "{\"a\":{\"dtype\":\"F32\"", "{\"\xff\":1}", "{}}", "{\"a\":01}"})
    expect_error(image(bad, 0), "");
  expect_error(image("{\"a\":3}", 0), "expected an object, found the number 3");
  expect_error(image("{\"a\":[]}", 0), "expected an object, found an array");
  expect_error(image("{\"a\":null}", 0), "expected an object, found null");
  expect_error(image("{\"__metadata__\":{\"a\":1}}", 0), "expected a string");
  expect_error(image("{\"__metadata__\":{\"a\":{}}}", 0), "expected a string, found an object");
  expect_error(image("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0), "appears twice");
  expect_error(image("{\"__metadata__\":[]}", 0), "expected an object");
  const std::string deep(1'000'000, '[');
  expect_error(image("{\"a\":{\"shape\":" + deep, 0), "shape: expected an array of numbers");
  expect_error(image("{\"" + std::string(100'000, 'n') + "\":3}", 0), "(100000 bytes)");
}

TEST(hostile_safetensors, entries) {
  expect_error(image("{\"a\":{}}", 0), "some are missing");
  expect_error(image("{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 0), "some are missing");
  expect_error(image("{\"a\":{\"extra\":1}}", 0), "unknown key \"extra\"");
  expect_error(image("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 0), "appears twice");
  expect_error(image("{\"a\":{\"shape\":[],\"shape\":[]}}", 0), "appears twice");
  expect_error(image("{\"a\":{\"data_offsets\":[0,0],\"data_offsets\":[0,0]}}", 0), "appears twice");
  expect_error(image("{\"a\":" + entry("[1]", "[0,4]") + ",\"a\":" + entry("[1]", "[0,4]") + "}", 4),
               "\"a\" appears twice");
  expect_error(image(one("[1]", "[0,4]", "F33"), 4), "unknown dtype \"F33\"");
  expect_error(image(one("[-1]", "[0,4]"), 4), "negative number -1");
  expect_error(image(one("[1.5]", "[0,4]"), 4), "shape: expected an array of numbers >= 0");
  expect_error(image(one("[\"1\"]", "[0,4]"), 4), "shape: expected an array of numbers >= 0");
  expect_error(image(one("[1,1,1,1,1,1,1]", "[0,4]"), 4), "at most 6 dimensions");
  expect_error(image(one("[18446744073709551615]", "[0,4]"), 4), "impossibly large");
  expect_error(image(one("[99999999999999999999]", "[0,4]"), 4), "expected an array of numbers");
  expect_error(image(one("[4294967296,4294967296,4]", "[0,4]"), 4), "larger than any file");
  expect_error(image(one("[4611686018427387904]", "[0,0]"), 0), "larger than any file");
  expect_error(image(one("[1]", "[0]"), 4), "some are missing");
  expect_error(image(one("[1]", "[0,2,4]"), 4), "expected two numbers, found more");
  expect_error(image(one("[1]", "[-4,0]"), 4), "negative");
}

TEST(hostile_safetensors, layout) {
  expect_error(image(one("[2]", "[0,8]"), 4), "lie outside the 4 bytes of data: truncated");
  expect_error(image(one("[2]", "[8,0]"), 8), "lie outside");
  expect_error(image(one("[2]", "[18446744073709551608,18446744073709551615]"), 8), "lie outside");
  expect_error(image(one("[2]", "[0,4]"), 4), "needs 8 bytes");
  expect_error(image(one("[1]", "[0,4]"), 5), "1 bytes belong to no tensor");
  expect_error(image(one("[1]", "[4,8]"), 8), "a hole of 4 bytes");
  const std::string overlap = "{\"a\":" + entry("[2]", "[0,8]") + ",\"b\":" + entry("[2]", "[4,12]") + "}";
  expect_error(image(overlap, 12), "\"b\": begins at 4 inside the tensor before it, which ends at 8");
}

TEST(hostile_safetensors, mutations_never_crash) {
  const std::string good = image("{\"__metadata__\":{\"format\":\"pt\"},\"a\":" + entry("[2,3]", "[0,24]") +
                                     ",\"b\":" + entry("[4]", "[24,32]", "BF16") + "}",
                                 32);
  ASSERT_EQ(parse(good).tensors.size(), 2u);
  const Rng rng{7, 0};
  const std::string alphabet = "{}[]\",:0123456789eE-.\\utrnafls \xff\x80";
  int rejected = 0;
  for (std::uint64_t round = 0; round < 20'000; ++round) {
    std::string bad = good;
    for (std::uint64_t k = 0; k <= rng.below(round * 16, 4); ++k) {
      const std::uint64_t at = round * 16 + 4 * k + 1;
      const std::size_t where = rng.below(at, bad.size());
      switch (rng.below(at + 1, 4)) {
        case 0: bad[where] = alphabet[rng.below(at + 2, alphabet.size())]; break;
        case 1: bad[where] = static_cast<char>(rng.bits(at + 2)); break;
        case 2: bad.erase(where, 1 + rng.below(at + 2, 8)); break;
        default: bad.insert(where, bad.substr(rng.below(at + 2, bad.size()), 6));
      }
      if (bad.empty()) break;
    }
    try {
      for (const auto& t : parse(bad).tensors)
        ASSERT_LE(t.offset + t.spec.bytes(), static_cast<std::int64_t>(bad.size()));
    } catch (const Error&) {
      ++rejected;
    }
  }
  EXPECT_GT(rejected, 15'000);
}

TEST(hostile_safetensors, every_truncation_is_an_error) {
  const std::string good = image(one("[2,3]", "[0,24]"), 24);
  const TempFolder tmp;
  for (std::size_t n = 0; n < good.size(); ++n) {
    EXPECT_THROW(parse(good.substr(0, n)), Error) << n;
    if (n % 16 == 0) {
      write_file_atomic(tmp / "t", good.substr(0, n));
      EXPECT_THROW(SafeTensors::open(tmp / "t"), Error);
    }
  }
}

}  // namespace
}  // namespace hpcdl::io
