#pragma once
// GGUF files as bytes, good or bad.

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace hpcdl::io {

class GgufImage {
 public:
  struct Tensor {
    std::string name;
    std::vector<std::uint64_t> sizes;  // innermost first
    std::uint32_t type = 0;
    std::uint64_t offset = 0;
  };

  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::vector<std::string> values = {};  // as bytes: value() and list() make them
  std::vector<Tensor> tensors = {};
  std::size_t data_bytes = 0;
  std::uint64_t tensor_count = kAsThere, value_count = kAsThere;

  static constexpr std::uint64_t kAsThere = ~std::uint64_t{0};

  template <class T> static std::string bytes(T v) {
    std::string out(sizeof v, '\0');
    std::memcpy(out.data(), &v, sizeof v);
    return out;
  }
  static std::string text(std::string_view s) { return bytes<std::uint64_t>(s.size()) + std::string(s); }
  static std::string value(std::string_view key, std::uint32_t kind, const std::string& value) {
    return text(key) + bytes(kind) + value;
  }
  static std::string list(std::string_view key, std::uint32_t kind, std::uint64_t count, const std::string& elements) {
    return value(key, 9, bytes(kind) + bytes(count) + elements);
  }
  static std::string texts(std::string_view key, const std::vector<std::string>& all) {
    std::string elements;
    for (const auto& t : all) elements += text(t);
    return list(key, 8, all.size(), elements);
  }
  static std::string number(std::string_view key, std::uint32_t n) { return value(key, 4, bytes(n)); }
  static std::string words(std::string_view key, std::string_view s) { return value(key, 8, text(s)); }

  std::string file() const {
    std::string out = magic + bytes(version) +
                      bytes<std::uint64_t>(tensor_count == kAsThere ? tensors.size() : tensor_count) +
                      bytes<std::uint64_t>(value_count == kAsThere ? values.size() : value_count);
    for (const auto& v : values) out += v;
    for (const auto& t : tensors) {
      out += text(t.name) + bytes(static_cast<std::uint32_t>(t.sizes.size()));
      for (const auto n : t.sizes) out += bytes(n);
      out += bytes(t.type) + bytes(t.offset);
    }
    while (out.size() % 32 != 0) out += '\0';
    return out + std::string(data_bytes, 'd');
  }
};

}  // namespace hpcdl::io
