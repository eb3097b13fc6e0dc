#include "hpcdl/io/gguf/types.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "hpcdl/core/error.h"

namespace hpcdl::io {
namespace {

constexpr GgufTypeInfo kGgufTypes[] = {
    {GgufType::f32, "F32", 1, 4},       {GgufType::f16, "F16", 1, 2},       {GgufType::bf16, "BF16", 1, 2},
    {GgufType::q8_0, "Q8_0", 32, 34},   {GgufType::q4_0, "Q4_0", 32, 18},   {GgufType::q4_1, "Q4_1", 32, 20},
    {GgufType::q5_0, "Q5_0", 32, 22},   {GgufType::q5_1, "Q5_1", 32, 24},   {GgufType::q2_k, "Q2_K", 256, 84},
    {GgufType::q3_k, "Q3_K", 256, 110}, {GgufType::q4_k, "Q4_K", 256, 144}, {GgufType::q5_k, "Q5_K", 256, 176},
    {GgufType::q6_k, "Q6_K", 256, 210}, {GgufType::mxfp4, "MXFP4", 32, 17},
};

/// Types that llama.cpp has and that cannot be read here, for messages.
constexpr std::pair<std::uint32_t, std::string_view> kOtherGgufTypes[] = {
    {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"},
    {21, "IQ3_S"}, {22, "IQ2_S"}, {23, "IQ4_XS"},  {24, "I8"},     {25, "I16"},     {26, "I32"},   {27, "I64"},
    {28, "F64"},   {29, "IQ1_M"}, {34, "TQ1_0"},   {35, "TQ2_0"},  {40, "NVFP4"},   {41, "Q1_0"},  {42, "Q2_0"},
};

}  // namespace

const GgufTypeInfo* find_gguf_type(std::uint32_t number) {
  const auto* row = std::ranges::find(kGgufTypes, static_cast<GgufType>(number), &GgufTypeInfo::type);
  return row == std::end(kGgufTypes) ? nullptr : row;
}

const GgufTypeInfo* find_gguf_type(std::string_view name) {
  const auto* row = std::ranges::find(kGgufTypes, name, &GgufTypeInfo::name);
  return row == std::end(kGgufTypes) ? nullptr : row;
}

const GgufTypeInfo& info_of(GgufType type) {
  const auto* row = find_gguf_type(static_cast<std::uint32_t>(type));
  require(row != nullptr, "io", "there is no GGUF type {}", static_cast<std::uint32_t>(type));
  return *row;
}

std::string describe_gguf_type(std::uint32_t number) {
  if (const auto* row = find_gguf_type(number)) return std::string(row->name);
  const auto* other = std::ranges::find(kOtherGgufTypes, number, &std::pair<std::uint32_t, std::string_view>::first);
  return other == std::end(kOtherGgufTypes) ? fmt::format("number {}, which is no known type", number)
                                            : fmt::format("{}, which is not supported", other->second);
}

std::string known_gguf_types() {
  std::string names;
  for (const auto& t : kGgufTypes) names += fmt::format("{}{}", names.empty() ? "" : ", ", t.name);
  return names;
}

}  // namespace hpcdl::io
