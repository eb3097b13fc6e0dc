#include "hpcdl/parallel/buckets.h"

#include <algorithm>

#include "hpcdl/core/error.h"

namespace hpcdl::parallel {
namespace {

constexpr std::int64_t kTensorAlign = 256;   // more than any kernel needs
constexpr std::int64_t kBucketAlign = 4096;  // a page, so that ranks with shared memory do not share pages

std::int64_t padded(std::int64_t bytes, std::int64_t align) { return (bytes + align - 1) / align * align; }

}  // namespace

BucketPlan plan_buckets(std::span<const std::int64_t> bytes, const BucketOptions& options) {
  require(options.cap >= 0 && options.first >= 0, "parallel",
          "expected bucket sizes of at least 0 bytes, found {}, and {} for the first", options.cap, options.first);
  BucketPlan plan;
  std::int64_t left = 0, limit = 0;
  for (const auto size : bytes) {
    require(size >= 0, "parallel", "expected a gradient of at least 0 bytes, found {}", size);
    left += padded(size, kTensorAlign);
  }
  for (const auto size : bytes) {
    const bool fits =
        !plan.buckets.empty() && plan.bytes + padded(size, kTensorAlign) - plan.buckets.back().offset <= limit;
    if (!fits) {
      plan.bytes = padded(plan.bytes, kBucketAlign);
      if (!plan.buckets.empty()) plan.buckets.back().bytes = plan.bytes - plan.buckets.back().offset;
      const int at = static_cast<int>(plan.offset.size());
      const auto grown = plan.buckets.empty() ? 0 : 2 * plan.buckets.back().bytes;
      limit = std::min(options.cap, std::max(options.first, std::min(grown, left / 2)));
      plan.buckets.push_back({.offset = plan.bytes, .bytes = 0, .begin = at, .end = at});
    }
    plan.offset.push_back(plan.bytes);
    plan.bytes += padded(size, kTensorAlign);
    left -= padded(size, kTensorAlign);
    ++plan.buckets.back().end;
  }
  plan.bytes = padded(plan.bytes, kBucketAlign);
  if (!plan.buckets.empty()) plan.buckets.back().bytes = plan.bytes - plan.buckets.back().offset;
  return plan;
}

}  // namespace hpcdl::parallel
