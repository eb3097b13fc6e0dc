#include "hpcdl/parallel/buckets.h"

#include <algorithm>

#include "hpcdl/core/error.h"

namespace hpcdl::parallel {
namespace {

constexpr std::int64_t kTensorAlign = 256;   // more than any kernel asks for
constexpr std::int64_t kBucketAlign = 4096;  // a page: ranks that share memory touch none of each other's

std::int64_t padded(std::int64_t bytes, std::int64_t align) { return (bytes + align - 1) / align * align; }

}  // namespace

BucketPlan plan_buckets(std::span<const std::int64_t> bytes, const BucketOptions& options) {
  require(options.cap >= 0 && options.first >= 0, "parallel",
          "a bucket of {} bytes, the first of {}; expected sizes of at least 0", options.cap, options.first);
  BucketPlan plan;
  std::int64_t left = 0, limit = 0;
  for (const auto size : bytes) {
    require(size >= 0, "parallel", "a gradient of {} bytes", size);
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
