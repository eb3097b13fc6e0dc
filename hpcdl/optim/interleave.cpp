#include "hpcdl/optim/interleave.h"

#include <algorithm>

namespace hpcdl {
namespace {

constexpr int kMost = 64;

}  // namespace

int choose_interleave(const UpdateRates& rates, const UpdateBytes& cpu, const UpdateBytes& device) {
  const auto seconds = [&](int k) {
    const double there = k == 0 ? 0 : 1.0 / k, here = 1 - there;
    return std::max({here * rates.cpu, (here * cpu.to_host + there * device.to_host) * rates.to_host,
                     (here * cpu.from_host + there * device.from_host) * rates.from_host});
  };
  int best = 0;
  for (int k = 1; k <= kMost; ++k)
    if (seconds(k) < seconds(best)) best = k;
  return best;
}

}  // namespace hpcdl
