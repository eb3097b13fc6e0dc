#pragma once
// How a struct declares its configurable fields, once:
//
//   struct TrainConfig {
//     std::int64_t steps = 100;
//     Schedule schedule = Schedule::cosine;
//     void visit(auto&& f) {
//       f("steps", steps, "optimizer steps to take", {.min = 1});
//       f("schedule", schedule, "shape of the learning rate over time");
//     }
//   };
//   struct RunConfig {
//     TrainConfig train;
//     void visit(auto&& f) { f.section("train", train); }
//   };
//
// config_table.h derives from it: defaults, TOML, --train.steps=20, HPCDL_TRAIN_STEPS, help, JSON Schema, the saved
// config. Fields: bool, integers, float, double, std::string, std::filesystem::path, enums with EnumNames, Every,
// std::optional of these, std::vector<std::string>, std::vector<std::int64_t>.

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hpcdl::io {

/// The unit of a plain number, which also determines the suffixes that it may have in text:
/// bytes: 16G, 25MiB (powers of 1024; KB, MB, GB, TB are powers of 1000); seconds: 500ms, 30s, 10m, 2h, 1d.
/// Every number may be written as 1.5e9 or 1_000_000.
enum class Unit { none, bytes, seconds };

/// How often something is done: every so many steps, or every so many seconds. In text 500 is a number of steps, and
/// "10m" (500ms, 30s, 10m, 2h, 1d) a time; 0 is never. The min and max of a field apply to steps.
struct Every {
  std::int64_t steps = 0;
  double seconds = 0;  // 0 if steps are counted

  constexpr Every() = default;
  constexpr Every(std::int64_t every) : steps(every) {}
  static constexpr Every time(double seconds) {
    Every e;
    e.seconds = seconds;
    return e;
  }
  constexpr bool never() const { return steps == 0 && seconds == 0; }
  constexpr bool at(std::int64_t step) const { return steps > 0 && step % steps == 0; }
  bool operator==(const Every&) const = default;
};

struct FieldOptions {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  Unit unit = Unit::none;
  bool per_rank = false;  // the ranks of one run may have different values
  constexpr bool has_min() const { return min > -std::numeric_limits<double>::infinity(); }
  constexpr bool has_max() const { return max < std::numeric_limits<double>::infinity(); }
};

/// Specialise this to give an enum its words:
///   template <> struct EnumNames<Family> {
///     static constexpr std::pair<Family, std::string_view> values[] = {{Family::gpt2, "gpt2"},
///                                                                      {Family::llama, "llama"}};
///   };
template <class E> struct EnumNames;

template <class E> constexpr std::string_view enum_name(E e) {
  for (const auto& [value, name] : EnumNames<E>::values)
    if (value == e) return name;
  return "?";
}
/// The value that a word stands for, if there is one.
template <class E> constexpr std::optional<E> enum_of(std::string_view word) {
  for (const auto& [value, name] : EnumNames<E>::values)
    if (name == word) return value;
  return std::nullopt;
}
/// All words of an enum.
template <class E> std::vector<std::string> enum_words() {
  std::vector<std::string> words;
  for (const auto& [value, name] : EnumNames<E>::values) words.emplace_back(name);
  return words;
}

}  // namespace hpcdl::io
