#pragma once
// The keys and values at the beginning of a GGUF file. Texts and lists are views into the file.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hpcdl/core/error.h"
#include "hpcdl/io/json.h"

namespace hpcdl::io {

/// The numbers in files.
enum class GgufKind : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, text, list, u64, i64, f64 };

/// Bytes of a value; 0 for texts and lists, whose size is in the file.
std::int64_t bytes_of(GgufKind kind);
std::string_view name_of(GgufKind kind);

struct GgufValue {
  GgufKind kind = GgufKind::u8;           // never list
  bool list = false;                      // of elements of `kind`
  std::int64_t count = 1;                 // of elements
  std::span<const std::byte> bytes = {};  // of the elements, each text with its length before it
};

/// Typed access, with Errors that name the file and the key.
class GgufMetadata {
 public:
  explicit GgufMetadata(std::string where = {}) : where_(std::move(where)) {}

  /// Throws Error for a key that is there already.
  void add(std::string_view key, const GgufValue& value);

  struct Entry {
    std::string_view key;
    GgufValue value;
  };
  /// In file order.
  const std::vector<Entry>& entries() const { return entries_; }
  const GgufValue* find(std::string_view key) const;
  bool has(std::string_view key) const { return find(key) != nullptr; }

  /// T: bool, std::int64_t (any whole number), double (any number), std::string_view.
  template <class T> std::optional<T> get(std::string_view key) const;
  template <class T> T get_or(std::string_view key, T fallback) const { return get<T>(key).value_or(fallback); }
  template <class T> T need(std::string_view key) const {
    const auto value = get<T>(key);
    if (!value) missing(key);
    return *value;
  }
  /// Elements of a list; none if the key is not there.
  template <class T> std::optional<std::vector<T>> list(std::string_view key) const;

  /// "llama", from general.architecture.
  std::string architecture() const { return std::string(need<std::string_view>("general.architecture")); }
  const std::string& where() const { return where_; }
  /// For people: a number, a text, "list of 32000 texts".
  static std::string describe(const GgufValue& value);

 private:
  [[noreturn]] void missing(std::string_view key) const;

  std::string where_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, std::size_t> index_;
};

}  // namespace hpcdl::io
