#include "hpcdl/io/gguf/metadata.h"

#include <fmt/format.h>

#include <cstring>
#include <type_traits>

namespace hpcdl::io {
namespace {

template <class T> T bits_at(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

struct GgufKindRow {
  std::string_view name;
  std::int64_t bytes;
};
constexpr GgufKindRow kGgufKinds[] = {{"u8", 1},  {"i8", 1},  {"u16", 2},  {"i16", 2},  {"u32", 4},
                                      {"i32", 4}, {"f32", 4}, {"bool", 1}, {"text", 0}, {"list", 0},
                                      {"u64", 8}, {"i64", 8}, {"f64", 8}};

/// f(number) for a value of a numeric kind; false for others.
bool visit_number(GgufKind kind, const std::byte* p, auto&& f) {
  switch (kind) {
    case GgufKind::u8: return f(bits_at<std::uint8_t>(p)), true;
    case GgufKind::i8: return f(bits_at<std::int8_t>(p)), true;
    case GgufKind::u16: return f(bits_at<std::uint16_t>(p)), true;
    case GgufKind::i16: return f(bits_at<std::int16_t>(p)), true;
    case GgufKind::u32: return f(bits_at<std::uint32_t>(p)), true;
    case GgufKind::i32: return f(bits_at<std::int32_t>(p)), true;
    case GgufKind::u64: return f(bits_at<std::uint64_t>(p)), true;
    case GgufKind::i64: return f(bits_at<std::int64_t>(p)), true;
    case GgufKind::f32: return f(bits_at<float>(p)), true;
    case GgufKind::f64: return f(bits_at<double>(p)), true;
    case GgufKind::boolean:
    case GgufKind::text:
    case GgufKind::list: break;
  }
  return false;
}

/// Reads one element and moves `p` behind it. False if the kind cannot be a T.
template <class T> bool read_element(GgufKind kind, const std::byte*& p, T& out) {
  if constexpr (std::is_same_v<T, std::string_view>) {
    if (kind != GgufKind::text) return false;
    const auto size = bits_at<std::uint64_t>(p);
    out = {reinterpret_cast<const char*>(p) + 8, static_cast<std::size_t>(size)};
    p += 8 + size;
    return true;
  } else if constexpr (std::is_same_v<T, bool>) {
    if (kind != GgufKind::boolean) return false;
    out = bits_at<std::uint8_t>(p++) != 0;
    return true;
  } else {
    bool fits = true;
    const bool number = visit_number(kind, p, [&]<class N>(N v) {
      if constexpr (std::is_integral_v<T>) {
        fits = std::is_integral_v<N>;
        if constexpr (std::is_same_v<N, std::uint64_t>) fits = v <= static_cast<std::uint64_t>(INT64_MAX);
      }
      if (fits) out = static_cast<T>(v);
    });
    p += bytes_of(kind);
    return number && fits;
  }
}

template <class T> constexpr std::string_view wanted() {
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  else if constexpr (std::is_same_v<T, std::int64_t>) return "a whole number";
  else if constexpr (std::is_same_v<T, double>) return "a number";
  else return "a text";
}

}  // namespace

std::int64_t bytes_of(GgufKind kind) { return kGgufKinds[static_cast<std::size_t>(kind)].bytes; }
std::string_view name_of(GgufKind kind) { return kGgufKinds[static_cast<std::size_t>(kind)].name; }

void GgufMetadata::add(std::string_view key, const GgufValue& value) {
  require(index_.emplace(key, entries_.size()).second, "io", "{}: expected every key once, found {} twice", where_,
          shown(key));
  entries_.push_back({key, value});
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto it = index_.find(key);
  return it == index_.end() ? nullptr : &entries_[it->second].value;
}

template <class T> std::optional<T> GgufMetadata::get(std::string_view key) const {
  const GgufValue* v = find(key);
  if (!v) return std::nullopt;
  T out{};
  const std::byte* p = v->bytes.data();
  require(!v->list && read_element(v->kind, p, out), "io", "{}: {}: expected {}, found {}", where_, key, wanted<T>(),
          describe(*v));
  return out;
}

template <class T> std::optional<std::vector<T>> GgufMetadata::list(std::string_view key) const {
  const GgufValue* v = find(key);
  if (!v) return std::nullopt;
  std::vector<T> out;
  out.reserve(static_cast<std::size_t>(v->count));
  const std::byte* p = v->bytes.data();
  bool good = v->list;
  for (std::int64_t i = 0; good && i < v->count; ++i) {
    T one{};
    good = read_element(v->kind, p, one);
    out.push_back(one);
  }
  require(good, "io", "{}: {}: expected a list, each {}; found {}", where_, key, wanted<T>(), describe(*v));
  return out;
}

#define HPCDL_INSTANTIATE(T)                                           \
  template std::optional<T> GgufMetadata::get(std::string_view) const; \
  template std::optional<std::vector<T>> GgufMetadata::list(std::string_view) const;
HPCDL_INSTANTIATE(bool)
HPCDL_INSTANTIATE(std::int64_t)
HPCDL_INSTANTIATE(double)
HPCDL_INSTANTIATE(std::string_view)
#undef HPCDL_INSTANTIATE

void GgufMetadata::missing(std::string_view key) const {
  fail("io", "{}: expected a value of {}, found none", where_, key);
}

std::string GgufMetadata::describe(const GgufValue& v) {
  if (v.list) return fmt::format("a list of {} x {}", v.count, name_of(v.kind));
  const std::byte* p = v.bytes.data();
  std::string_view text;
  if (read_element(v.kind, p, text)) return shown(text);
  bool flag = false;
  if (read_element(v.kind, p, flag)) return flag ? "true" : "false";
  std::string number;
  visit_number(v.kind, p, [&](auto n) { number = fmt::format("{}", n); });
  return number;
}

}  // namespace hpcdl::io
