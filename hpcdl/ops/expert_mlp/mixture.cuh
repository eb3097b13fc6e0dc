#pragma once
// What the kernels of expert_mlp share. A choice is one expert of one token: choice c is the c % count-th of token
// c / count. Each choice has a row of hidden values and a row of results.

#include "hpcdl/cuda/lanes.cuh"
#include "hpcdl/ops/expert_mlp/expert_mlp.h"

namespace hpcdl::cuda {

/// One matrix (n, k) of each expert: dense with rows `stride` apart, or in 4 bits (int4_layout.h).
struct ExpertWeights {
  const void* w[ExpertMlp::kMostExperts];
  const bf16* scale[ExpertMlp::kMostExperts];
  const bf16* offset[ExpertMlp::kMostExperts];
  std::int64_t stride;
};

/// The choices of each expert, in their order.
struct Choices {
  const std::int32_t* places;
  int mlps, place_stride;  // experts; of a row of `places`: a number, then the choices

  __device__ int count(int expert) const { return places[std::int64_t{expert} * place_stride]; }
  __device__ const std::int32_t* list(int expert) const { return places + std::int64_t{expert} * place_stride + 1; }
};

/// A product of rows, chosen by experts, with matrices of theirs: with one matrix, of hidden values (down); with two, of
/// x, and then act(first) * second.
struct MixtureProduct : Choices {
  ExpertWeights first, second;
  const void* from;  // rows of x, or of hidden values
  void* to;          // a row per choice, contiguous
  void *gate, *up;   // with two matrices, where the products are kept, like `to`; null: they are not
  const std::int32_t* experts;
  std::int64_t from_stride;
  int choices, of_token;  // in total, of a token
  int expected;           // choices that are probably not negative: they decide which kernels compute
  int n, k;               // columns of `to`, of `from`
  int group;              // inputs per scale
  bool gelu;

  /// The row of `from` that a choice multiplies.
  template <bool kGated> __device__ int row_of(int choice) const { return kGated ? choice / of_token : choice; }
};
static_assert(sizeof(MixtureProduct) < 32 << 10);  // kernel parameters

/// Eight neighbouring weights of 4 bits with their scale and offset.
struct EightWeights {
  unsigned word = 0;
  float scale = 0, offset = 0;
  __device__ Lanes<8> values() const {
    return map<8>([&](int j) {
      return ::fmaf(static_cast<float>(static_cast<int>(word >> (j % 4 * 8 + j / 4 * 4) & 15) - 8), scale, offset);
    });
  }
};

/// A row of a matrix of 4-bit weights.
class PackedRow {
 public:
  __device__ PackedRow(const ExpertWeights& of, const MixtureProduct& p, int expert, int row) : group_(p.group) {
    const int tile = row / 16 * 16;
    rows_ = ::min(16, p.n - tile);
    words_ = static_cast<const std::uint8_t*>(of.w[expert]) + int4::packed_at(tile, p.k) + (row - tile) * 4;
    const std::int64_t at = int4::scale_at(tile, p.k / p.group) + row - tile;
    scale_ = of.scale[expert] + at;
    offset_ = of.offset[expert] ? of.offset[expert] + at : nullptr;
  }
  /// Inputs k to k + 7; k is a multiple of 8.
  __device__ EightWeights at(int k) const {
    const std::uint8_t* const from = words_ + std::int64_t{k / 8} * rows_ * 4;
    const std::int64_t scale = std::int64_t{k / group_} * rows_;
    return {one_access<4>(from) ? *reinterpret_cast<const unsigned*>(from)
                                : from[0] | from[1] << 8 | from[2] << 16 | static_cast<unsigned>(from[3]) << 24,
            widen(scale_[scale]), offset_ ? widen(offset_[scale]) : 0.0f};
  }

 private:
  const std::uint8_t* words_;  // of its first eight inputs
  const bf16 *scale_, *offset_;
  int rows_, group_;  // rows: of its tile
};

/// Fills `places` with the choices of each of `mlps` experts.
void list_choices(Stream& s, const View& experts, int mlps, Tensor places);

// Many choices of each expert, on Hopper (expert_wide.cuh).

inline constexpr int kMostWideExperts = 64;

/// Whether they are worth it for this number of choices. The matrices must be dense, in a 16-bit type, and addressable in
/// pieces of 16 bytes.
bool wide_fits(const Stream& s, int choices, int experts);
/// Copies the rows that choices multiply, expert by expert.
void gather_choices(Stream& s, const MixtureProduct& p, DType type, void* to);
/// The product of p, whose `from` has a row for each choice, expert by expert, as has `to` if it is gated.
void multiply_wide(Stream& s, const MixtureProduct& p, DType type, bool gated);

}  // namespace hpcdl::cuda
