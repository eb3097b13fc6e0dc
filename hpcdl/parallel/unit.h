#pragma once
// Which tensors ranks exchange together, and where these lie in a flat block of memory. All pure functions of names and
// sizes, so every rank computes the same.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hpcdl/box.h"

namespace hpcdl::parallel {

/// Consecutive tensors: one range of the block.
struct Unit {
  std::string name;           // of its exchanges, in programs and reports
  std::string owner;          // the part of the model that its tensors belong to; empty for buckets
  std::int64_t offset = 0;    // elements of the block
  std::int64_t elements = 0;  // with the padding
  int begin = 0, end = 0;     // tensors
};

struct UnitPlan {
  std::vector<std::int64_t> offset;  // of each tensor, in elements of the block
  std::vector<Unit> units;           // one after the other without gaps
  std::int64_t elements = 0;
  int ranks = 1;  // that divide every unit into equal shares, if plan_units() has made it

  /// Elements of a block that holds the shares of one rank, unit by unit.
  std::int64_t share_elements() const { return elements / ranks; }
  /// The share of a rank in a unit, in elements of the block.
  Interval share(const Unit& unit, int rank) const {
    const auto n = unit.elements / ranks;
    return {unit.offset + n * rank, unit.offset + n * (rank + 1)};
  }
  /// The elements of tensor number `tensor`, which has `size` of them, in the share of a rank; empty if there are none.
  /// They begin and end with blocks of the gradient norm (ops/many_tensors.h).
  Interval piece(std::size_t tensor, std::int64_t size, int rank) const;
  /// Where that piece begins in a block of shares.
  std::int64_t piece_offset(std::size_t tensor, std::int64_t size, int rank) const;
  /// The unit of a tensor.
  const Unit& unit_of(std::size_t tensor) const;
};

struct BucketOptions {
  std::int64_t cap =
      std::int64_t{25} << 20;  // bytes of a bucket; a larger tensor has its own bucket; 0: every tensor has
  std::int64_t first = std::int64_t{1} << 20;  // bytes of the first bucket, which is sent while the second is filled
};

/// Units for sums over all ranks: buckets. elements: of f32 gradients, in the order in which backward completes them
/// (the reverse of forward, except for weights used twice). Each bucket is at most twice as large as the one before, so
/// that the link is busy early, and at most half of the rest (but at least `first`), since nothing can hide the
/// reduction of the last one. Every tensor begins at a multiple of 256 bytes, every bucket of 4096: the padding is
/// reduced with the rest and stays 0. Source: Li et al., "PyTorch Distributed: experiences on accelerating data parallel
/// training", VLDB 2020, section 3.2.3.
UnitPlan plan_buckets(std::span<const std::int64_t> elements, const BucketOptions& options = {});

struct UnitTensor {
  std::string unit;  // tensors with the same one follow each other
  std::int64_t elements = 0;
  std::string owner = {};  // the same for all tensors of a unit
};

/// Units that `ranks` ranks divide among themselves. Every tensor begins at a multiple of kTensorBlock elements and
/// every unit is as long as a multiple of `ranks` such blocks, so each block of the gradient norm belongs to one rank.
UnitPlan plan_units(std::span<const UnitTensor> tensors, int ranks);

/// The shares of a rank as units that are not divided further.
UnitPlan plan_of_shares(const UnitPlan& plan);

/// The part of a model that owns a parameter and is gathered as a whole: the block, "transformer.h.3" for
/// "transformer.h.3.attn.c_attn.weight", and where there is none the module, "transformer.wte".
std::string_view unit_name(std::string_view parameter);

}  // namespace hpcdl::parallel
