#pragma once
// How the matrix of a compressed linear layer is written as a product of smaller ones; nn/structured.h has the layer.

#include <cstdint>
#include <string_view>
#include <utility>

namespace hpcdl::nn {

enum class Method : std::uint8_t { svd, monarch, blast };
inline constexpr std::pair<Method, std::string_view> kMethodNames[] = {
    {Method::svd, "svd"}, {Method::monarch, "monarch"}, {Method::blast, "blast"}};
constexpr std::string_view method_name(Method m) { return kMethodNames[static_cast<int>(m)].second; }

/// svd: W = U V of rank `rank`. monarch: W is divided into blocks x blocks parts, each of rank `rank`. blast: all parts
/// share bases of `rank` vectors: those of a row of parts for their outputs, those of a column for their inputs.
struct Structure {
  Method method = Method::svd;
  std::int64_t rank = 1, blocks = 1;
  bool strided = false;  // monarch: row i of W belongs to row i % blocks of parts, and else to row i / (rows / blocks)
  bool operator==(const Structure&) const = default;
};

/// Numbers that the factors of a matrix (out, in) have for each unit of rank.
constexpr std::int64_t numbers_per_rank(Method m, std::int64_t out, std::int64_t in, std::int64_t blocks) {
  return m == Method::svd ? out + in : m == Method::monarch ? blocks * (out + in) : out + in + blocks * blocks;
}

}  // namespace hpcdl::nn
