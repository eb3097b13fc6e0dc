#pragma once
// How the frozen matrices of a model are held while an adapter is trained: [model] quantize and double of a run.

#include <string>
#include <utility>

#include "hpcdl/io/config_visitor.h"

namespace hpcdl::models {

enum class BaseFormat { none, nf4, fp4, int8 };

struct BaseOptions {
  BaseFormat format = BaseFormat::none;
  bool nested = false;

  bool given() const { return format != BaseFormat::none; }
  /// Of io::EnumNames and "double"; empty if nothing is quantised.
  std::string words() const;

  void visit(auto&& f) {
    f("quantize", format,
      "with an adapter: hold the matrices of the blocks of model.init in few bits (QLoRA): nf4, fp4, int8; or none");
    f("double", nested, "nf4, fp4: quantise the scales, too, which saves 0.37 bits per weight");
  }
  bool operator==(const BaseOptions&) const = default;
};

}  // namespace hpcdl::models

template <> struct hpcdl::io::EnumNames<hpcdl::models::BaseFormat> {
  using Format = models::BaseFormat;
  static constexpr std::pair<Format, std::string_view> values[] = {
      {Format::none, "none"}, {Format::nf4, "nf4"}, {Format::fp4, "fp4"}, {Format::int8, "int8"}};
};

inline std::string hpcdl::models::BaseOptions::words() const {
  if (!given()) return {};
  return std::string(io::enum_name(format)) + (nested ? " double" : "");
}
