#include "hpcdl/pipe/partition.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>

#include "hpcdl/core/error.h"
#include "hpcdl/core/units.h"

namespace hpcdl::pipe {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class Splitter {
 public:
  Splitter(std::span<const PartCost> layers, int stages, const MemoryLimit& limit)
      : stages_(static_cast<std::size_t>(stages)), limit_(limit), seconds_{0}, state_{0}, frame_{0} {
    for (const auto& layer : layers) {
      seconds_.push_back(seconds_.back() + layer.seconds());
      state_.push_back(state_.back() + layer.state_bytes);
      frame_.push_back(frame_.back() + layer.frame_bytes);
    }
  }

  /// The least possible `combine`d cost of the stages, where a stage from layer `first` to before `last` costs
  /// cost(first, last); infinity if nothing fits.
  template <class Cost, class Combine> double solve(Cost cost, Combine combine) {
    const std::size_t layers = seconds_.size() - 1;
    best_.assign(stages_ + 1, std::vector<double>(layers + 1, kNever));
    from_.assign(stages_ + 1, std::vector<std::size_t>(layers + 1));
    best_[0][0] = 0;
    for (std::size_t stage = 1; stage <= stages_; ++stage)
      for (std::size_t last = stage; last <= layers; ++last)
        for (std::size_t first = stage - 1; first < last; ++first) {
          if (best_[stage - 1][first] == kNever || !fits(stage - 1, first, last)) continue;
          const double all = combine(best_[stage - 1][first], cost(seconds_[last] - seconds_[first]));
          if (all < best_[stage][last]) best_[stage][last] = all, from_[stage][last] = first;
        }
    return best_[stages_][layers];
  }

  Partition partition() const {
    Partition counts;
    std::size_t last = seconds_.size() - 1;
    for (std::size_t stage = stages_; stage > 0; --stage) {
      const auto first = from_[stage][last];
      counts.push_back(static_cast<int>(last - first));
      last = first;
    }
    std::reverse(counts.begin(), counts.end());
    return counts;
  }

  std::int64_t bytes(std::size_t stage, std::size_t first, std::size_t last) const {
    const std::int64_t frames = stage < limit_.frames.size() ? limit_.frames[stage] : 1;
    return state_[last] - state_[first] + frames * (frame_[last] - frame_[first]);
  }

 private:
  bool fits(std::size_t stage, std::size_t first, std::size_t last) const {
    return limit_.bytes == 0 || bytes(stage, first, last) <= limit_.bytes;
  }

  std::size_t stages_;
  const MemoryLimit& limit_;
  std::vector<double> seconds_;  // of all layers before
  std::vector<std::int64_t> state_, frame_;
  std::vector<std::vector<double>> best_;       // by number of stages and of layers
  std::vector<std::vector<std::size_t>> from_;  // the first layer of the last of these stages
};

/// The least limit for which there is a split: the smallest possible largest stage, by its bytes.
std::int64_t least_limit(std::span<const PartCost> layers, int stages, const MemoryLimit& limit) {
  std::int64_t low = limit.bytes, high = 0;
  for (const auto& layer : layers)
    high +=
        layer.state_bytes +
        layer.frame_bytes * (limit.frames.empty() ? 1 : *std::max_element(limit.frames.begin(), limit.frames.end()));
  while (low + 1 < high) {
    const MemoryLimit middle{low + (high - low) / 2, limit.frames};
    const bool fits =
        Splitter(layers, stages, middle)
            .solve([](double s) { return s; }, [](double a, double b) { return std::max(a, b); }) < kNever;
    (fits ? high : low) = middle.bytes;
  }
  return high;
}

}  // namespace

Partition best_partition(std::span<const PartCost> layers, int stages, const MemoryLimit& limit) {
  if (std::ssize(layers) < stages)
    fail_usage("pipe", "{} layers, with embedding and head, cannot be cut into {} stages: use at most {} stages in all",
               layers.size(), stages, layers.size());
  Splitter splitter(layers, stages, limit);
  const double largest = splitter.solve([](double s) { return s; }, [](double a, double b) { return std::max(a, b); });
  if (largest == kNever)
    fail_usage("pipe", "no split of {} layers into {} stages fits into {} for each stage: it takes at least {}",
               layers.size(), stages, format_bytes(static_cast<double>(limit.bytes)),
               format_bytes(static_cast<double>(least_limit(layers, stages, limit))));
  const double most = largest * (1 + 1e-12);  // sums in another order
  splitter.solve([most](double s) { return s <= most ? s * s : kNever; }, [](double a, double b) { return a + b; });
  return splitter.partition();
}

Partition even_partition(int layers, int stages) {
  if (layers < stages)
    fail_usage("pipe", "{} layers, with embedding and head, cannot be cut into {} stages", layers, stages);
  const int ends = std::min(2, layers - stages);  // embedding and head, if there are enough layers for all stages
  const int blocks = layers - ends;
  Partition counts;
  for (int stage = 0; stage < stages; ++stage) counts.push_back(blocks / stages + (stage < blocks % stages));
  if (ends > 0) ++counts.front();
  if (ends > 1) ++counts.back();
  return counts;
}

void require_cut(const Partition& partition, int layers, int stages) {
  const auto sum = std::accumulate(partition.begin(), partition.end(), 0);
  if (std::ssize(partition) != stages || sum != layers)
    fail_usage("pipe",
               "parallel.layers = [{}] has {} layers in {} stages, but there are {} layers, the embedding and the head "
               "included, and {} stages: for example [{}]",
               fmt::join(partition, ", "), sum, partition.size(), layers, stages,
               fmt::join(even_partition(layers, stages), ", "));
}

std::vector<PartCost> stages_of(std::span<const PartCost> layers, const Partition& partition) {
  std::vector<PartCost> stages;
  std::size_t first = 0;
  for (const int count : partition) {
    stages.push_back(sum(layers.subspan(first, static_cast<std::size_t>(count))));
    first += static_cast<std::size_t>(count);
  }
  return stages;
}

}  // namespace hpcdl::pipe
