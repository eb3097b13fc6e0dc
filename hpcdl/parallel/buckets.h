#pragma once
// Gradients in buckets: which are reduced together, and their positions in memory. A pure function of sizes, so every
// rank computes the same.

#include <cstdint>
#include <span>
#include <vector>

namespace hpcdl::parallel {

struct BucketOptions {
  std::int64_t cap =
      std::int64_t{25} << 20;  // bytes of a bucket; a larger tensor has its own bucket; 0: every tensor has
  std::int64_t first = std::int64_t{1} << 20;  // bytes of the first bucket, which is sent while the second is filled
};

struct Bucket {
  std::int64_t offset = 0, bytes = 0;  // of the block of all gradients
  int begin = 0, end = 0;              // tensors, by the order in which they become ready
};

struct BucketPlan {
  std::vector<std::int64_t> offset;  // per tensor
  std::vector<Bucket> buckets;       // one after the other without gaps
  std::int64_t bytes = 0;
};

/// bytes: of the gradients, in the order in which backward completes them (the reverse of forward, except for weights
/// used twice). Each bucket is at most twice as large as the one before, so that the link is busy early, and at most
/// half of the rest (but at least `first`), since nothing can hide the reduction of the last one. Every tensor begins
/// at a multiple of 256 bytes, every bucket of 4096: the padding is reduced with the rest and stays 0. Source: Li et
/// al., "PyTorch Distributed: experiences on accelerating data parallel training", VLDB 2020, section 3.2.3.
BucketPlan plan_buckets(std::span<const std::int64_t> bytes, const BucketOptions& options = {});

}  // namespace hpcdl::parallel
