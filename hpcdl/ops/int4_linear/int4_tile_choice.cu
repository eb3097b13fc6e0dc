#include <algorithm>
#include <atomic>
#include <vector>

#include "hpcdl/cuda/launch.h"
#include "hpcdl/ops/int4_linear/int4_widened.h"

// The division of a widened product with the least expected time, from what its parts take on an H200 (bench/gpu/int4_rows
// --steps).

namespace hpcdl::cuda {
namespace {

/// Microseconds of a step of 64 inputs: if each multiprocessor has as many blocks as fit it, and if it has one.
struct StepTime {
  int row_sets, cols;
  bool exact;
  double full, alone;
};
constexpr StepTime kSteps[] = {
    {2, 32, false, 0.62, 0.41},  {2, 64, false, 0.68, 0.45},  {2, 96, false, 0.47, 0.47}, {2, 128, false, 0.51, 0.51},
    {2, 192, false, 0.60, 0.60}, {2, 256, false, 0.69, 0.69}, {3, 32, false, 0.49, 0.49}, {3, 64, false, 0.54, 0.54},
    {3, 96, false, 0.61, 0.61},  {3, 128, false, 0.65, 0.65}, {2, 64, true, 0.52, 0.52},  {2, 128, true, 0.67, 0.67},
    {2, 192, true, 0.80, 0.80},
};
/// Besides the steps: of a launch, and of each further round of places.
constexpr double kLaunch = 1.5, kRound = 1.5;
/// The same where a cluster adds up its sums.
double joining(const StepTime& t) { return 4.5 + 0.02 * t.cols; }

struct Division {
  WidenedTile tile;
  std::int64_t at_once;  // clusters
  StepTime step;
};

std::vector<Division> divisions(const Stream& s, bool exact) {
  std::vector<Division> all;
  for (WidenedTile tile : widened_tiles(exact)) {
    const auto* time = std::ranges::find_if(kSteps, [&](const StepTime& t) {
      return t.row_sets == tile.row_sets && t.cols == tile.cols && t.exact == exact;
    });
    require(time != std::end(kSteps), "int4_linear", "tile {} has no measured time: add a row to kSteps",
            name_of(tile));
    for (tile.splits = 1; tile.splits <= kMostSplits; ++tile.splits)
      all.push_back({tile, std::max(1, widened_blocks(s, tile) / tile.splits), *time});
  }
  return all;
}

/// The divisions on the stream's GPU, found once.
const std::vector<Division>& known_divisions(const Stream& s, bool exact) {
  static std::atomic<const std::vector<Division>*> known[64][2] = {};
  auto& slot = known[s.device().index % 64][exact ? 1 : 0];
  if (const auto* found = slot.load(std::memory_order_acquire)) return *found;
  const auto* fresh = new std::vector<Division>(divisions(s, exact));
  const std::vector<Division>* none = nullptr;
  if (!slot.compare_exchange_strong(none, fresh)) delete fresh;
  return *slot.load();
}

/// Rows of x times `n` rows of W.
struct Work {
  std::int64_t rows, n, steps, processors;

  std::int64_t columns(const Division& d) const { return (rows + d.tile.cols - 1) / d.tile.cols; }
  std::int64_t places(const Division& d) const {
    const std::int64_t of_place = 64 * d.tile.row_sets;
    return (n + of_place - 1) / of_place * columns(d);
  }
  double time(const Division& d) const {
    const std::int64_t all = places(d), rounds = (all + d.at_once - 1) / d.at_once, splits = d.tile.splits;
    const double step = std::min(all, d.at_once) * splits <= processors ? d.step.alone : d.step.full,
                 each = static_cast<double>((steps + splits - 1) / splits) * step;
    if (splits > 1) return static_cast<double>(rounds) * (each + joining(d.step));
    return static_cast<double>(rounds) * each + kLaunch + static_cast<double>(rounds - 1) * kRound;
  }
  /// The rows of W that whole rounds of undivided places take.
  std::int64_t rows_in_rounds(const Division& d) const {
    return places(d) / d.at_once * d.at_once / columns(d) * 64 * d.tile.row_sets;
  }
};

struct Timed {
  double time = 0;
  WidenedTile tile;
};
Timed quickest(const std::vector<Division>& all, const Work& work) {
  Timed best;
  for (const auto& d : all)
    if (d.tile.splits <= work.steps)
      if (const double t = work.time(d); best.time == 0 || t < best.time) best = {t, d.tile};
  return best;
}

}  // namespace

WidenedPlan widened_plan(const Stream& s, std::int64_t rows, std::int64_t n, std::int64_t k, bool exact) {
  const auto& all = known_divisions(s, exact);
  const Work work{rows, n, (k + 63) / 64, multiprocessors(s)};
  const Timed whole = quickest(all, work);
  WidenedPlan plan{whole.tile, n, whole.tile};
  double least = whole.time;
  for (const auto& d : all) {
    const std::int64_t first = d.tile.splits == 1 ? work.rows_in_rounds(d) : 0;
    if (first <= 0 || n - first < int4::kTileRows) continue;  // the copy engine needs whole tiles of W
    Work begin = work, end = work;
    begin.n = first, end.n = n - first;
    const Timed rest = quickest(all, end);
    if (const double t = begin.time(d) + rest.time; t < least) least = t, plan = {d.tile, first, rest.tile};
  }
  return plan;
}

}  // namespace hpcdl::cuda
