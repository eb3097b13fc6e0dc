#include "hpcdl/models/stream_plan.h"

#include <algorithm>
#include <numeric>

#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"

namespace hpcdl::models {
namespace {

// While a layer computes, the next one is read. A third block would hide reads that take longer once; a layer that
// stays instead saves its read in every pass.
constexpr int kBlocks = 2;

StreamPlan plan_of(std::int64_t others, std::span<const std::int64_t> layers, std::int64_t count) {
  const auto all = std::ssize(layers);
  StreamPlan p{.streams = {}, .blocks = kBlocks, .bytes = others};
  std::int64_t largest = 0;
  for (std::int64_t i = 0; i < all; ++i) {
    const bool streams = (i + 1) * count / all > i * count / all;
    p.streams.push_back(streams);
    const auto bytes = layers[static_cast<std::size_t>(i)];
    if (streams) largest = std::max(largest, bytes);
    else p.bytes += bytes;
  }
  p.bytes += kBlocks * largest;
  return p;
}

}  // namespace

StreamPlan plan_streaming(std::int64_t others, std::span<const std::int64_t> layers, std::int64_t ram,
                          std::int64_t instead) {
  const auto all = others + std::accumulate(layers.begin(), layers.end(), std::int64_t{0});
  if (all <= ram) return {.streams = std::vector<bool>(layers.size()), .blocks = 0, .bytes = all};
  for (auto count = std::int64_t{kBlocks} + 1; count <= std::ssize(layers); ++count)
    if (auto p = plan_of(others, layers, count); p.bytes <= ram) return p;
  const auto least =
      std::min(all, std::ssize(layers) > kBlocks ? plan_of(others, layers, std::ssize(layers)).bytes : all);
  if (instead < least)
    fail("model",
         "{} of memory are too little for the weights: give at least {} ({} bytes), for all but the experts, and the "
         "experts of one layer at a time; all weights take {}",
         format_bytes(static_cast<double>(ram)), format_bytes(static_cast<double>(instead)), instead,
         format_bytes(static_cast<double>(all)));
  fail("model",
       "{} of memory are too little for the weights: give at least {} ({} bytes), for the embeddings, the head and {} "
       "layers at a time; all weights take {}",
       format_bytes(static_cast<double>(ram)), format_bytes(static_cast<double>(least)), least, kBlocks,
       format_bytes(static_cast<double>(all)));
}

ExpertPlan plan_experts(std::int64_t others, std::int64_t expert, std::int64_t of_layer, std::int64_t all,
                        std::int64_t ram) {
  if (expert == 0) return {};
  const auto experts = std::min(std::max<std::int64_t>(ram - others, 0) / expert, all);
  if (experts < of_layer) return {.experts = 0, .bytes = others + of_layer * expert};
  return {.experts = experts, .bytes = others + experts * expert};
}

}  // namespace hpcdl::models
